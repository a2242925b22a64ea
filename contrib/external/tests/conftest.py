"""An endpoint for the agent that asks one."""

from tests.agents.conftest import _chat_server, chat_server  # noqa: F401
