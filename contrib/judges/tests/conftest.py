"""The chat endpoint of the tests of agents."""

from contrib.chat.tests.conftest import _chat_server, chat_server  # noqa: F401
