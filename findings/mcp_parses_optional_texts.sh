#!/bin/sh
# One tool with optional text parameters, served by the two Python servers of the Model Context Protocol.
# Packages: mcp 2.3.0 (MCPServer), fastmcp 4.2.3. Guess: a text that a client sends for `content: str | None` is that text.
# Seen: with mcp only a parameter that is exactly `str` is left alone. All others are parsed as JSON first, and an object, a list
# or null stays parsed: a model that writes a JSON file reads "Input should be a valid string", with a line end behind it too, and
# the text "null" is None. For Any, '{"a": 1}' is a dictionary. "12" and "true" stay texts. An argument that the tool does not
# have is dropped without a word, so a misspelt name runs the tool with its default. The same function served by fastmcp, which
# wraps mcp 2.3.0, gets all texts as they were sent, and refuses unknown names.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>/dev/null <<'EOP'
import asyncio
from importlib.metadata import version
from typing import Any

import mcp
from fastmcp import Client, FastMCP
from mcp.server.mcpserver import MCPServer

assert version("mcp") == "2.3.0" and version("fastmcp") == "4.2.3"


def write(content: str | None = None, plain: str = "", value: Any = None) -> str:
    """Writes a file."""
    return repr([content, plain, value])


async def ask(server, client):
    server.tool()(write)
    answers = []
    async with client(server) as session:
        for arguments in (
            {"content": '{"a": 1}\n'}, {"content": "null"}, {"content": "12"}, {"plain": '{"a": 1}'},
            {"value": '{"a": 1}'}, {"contents": "text"},
        ):  # fmt: skip
            try:
                result = await session.call_tool("write", arguments)
                answers.append(result.content[0].text)
            except Exception as error:
                answers.append(str(error))
    return ["error" if "validation error" in each else each for each in answers]


sdk = asyncio.run(ask(MCPServer("one"), mcp.Client))
fast = asyncio.run(ask(FastMCP("two"), Client))
print(f"mcp: {sdk}\nfastmcp: {fast}")
as_sent = "'{\"a\": 1}'"
assert sdk == ["error", "[None, '', None]", "['12', '', None]", f"[None, {as_sent}, None]", "[None, '', {'a': 1}]", "[None, '', None]"]
assert fast[:2] == ["['{\"a\": 1}\\n', '', None]", "['null', '', None]"] and fast[4:] == [f"[None, '', {as_sent}]", "error"]
EOP
