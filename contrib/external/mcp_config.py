"""The MCP servers of a task, as the files that programs take them from. The names of servers are their keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MCP = "mcp.json"
"""The file in the usual form, for Claude Code, Qwen Code and others."""


def mcp_files(servers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return files by name: MCP, `mcp.toml` with the value of Codex's `mcp_servers`, `mcp.opencode.json` for opencode.

    Args:
        servers: as `WorkspaceEnv.mcp_servers` has them.
    """
    usual: dict[str, Any] = {}
    codex: dict[str, Any] = {}
    opencode: dict[str, Any] = {}
    for name, server in servers.items():
        if "command" in server:
            usual[name] = server
            codex[name] = {"command": server["command"], "args": server["args"]}
            opencode[name] = {"type": "local", "command": [server["command"], *server["args"]]}
        else:
            url, headers = server["url"], server["headers"]
            usual[name] = {**server, **({"httpUrl": url} if server["type"] == "http" else {})}  # for Qwen Code
            codex[name] = {"url": url, "http_headers": headers}
            opencode[name] = {"type": "remote", "url": url, "headers": headers, "oauth": False}
    return {
        MCP: json.dumps({"mcpServers": usual}),
        "mcp.toml": _toml(codex),
        "mcp.opencode.json": json.dumps({"mcp": opencode}),
    }


def _toml(value: Any) -> str:
    """Return tables, arrays and strings as TOML in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
