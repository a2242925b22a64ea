"""tool_api: tools that exist already, functions and services alike, as an environment.

`env` holds the environment and `sources` opens its tools, which come from registered functions, `openapi` documents,
`mcp` servers and the `shop`. The environment is imported on first use: the process of the shop does without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrib.apis.env import ToolApi

__all__ = ["ToolApi"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from contrib.apis.env import ToolApi

    return ToolApi
