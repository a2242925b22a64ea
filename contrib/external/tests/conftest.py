"""An endpoint for the agent that asks one."""

from contrib.chat.tests.conftest import _chat_server, chat_server  # noqa: F401
