"""The chat endpoint of the tests of agents."""

from tests.agents.conftest import _chat_server, chat_server  # noqa: F401
