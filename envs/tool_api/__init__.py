"""tool_api: tools that exist already, functions and services alike, as an environment."""

from envs.tool_api.env import ToolApi

__all__ = ["ToolApi"]
