#!/bin/sh
# inspect_ai on a call whose arguments are the bare program and no JSON, as gpt-oss calls its Python tool.
# Package: inspect-ai 0.3.285. Guess: the text is the first argument as it was written, or a parse error tells the model.
# Seen: it is read as YAML. Two statements on two lines become one line ("a = 1 b = 2 print(a + b)"), so a right program is a
# SyntaxError; a comment in front and an empty line are lost; "ls -la # list" loses its end. With a colon and a space in it ("for
# ...:" at the end of a line, print('a: b')) it is a dictionary, `yes` a truth value: the model reads that its text is not of type
# 'string'. A text that YAML takes for a date raises out of execute_tools, so the whole sample fails. Nothing tells the model
# which of these happened. A function with an empty line in it arrives whole.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check inspect-ai==0.3.285
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import asyncio
from importlib.metadata import version

from inspect_ai.model import ChatMessageAssistant, execute_tools
from inspect_ai.model._call_tools import parse_tool_call  # what each of its providers calls
from inspect_ai.tool import ToolDef, ToolInfo, tool

assert version("inspect-ai") == "0.3.285", version("inspect-ai")
RAN = []


@tool
def python():
    async def execute(code: str) -> str:
        """Runs a program.

        Args:
            code: The program.
        """
        RAN.append(code)
        return "done"

    return execute


async def run(text):
    """What the tool gets, or the error that the model reads."""
    RAN.clear()
    tools = [ToolDef(python())]
    info = [ToolInfo(name=each.name, description=each.description, parameters=each.parameters) for each in tools]
    call = parse_tool_call("c1", "python", text, info)
    try:
        messages, _ = await execute_tools([ChatMessageAssistant(content="", tool_calls=[call])], tools)
    except Exception as error:
        return type(error)
    return RAN[0] if RAN else messages[0].error.message


function = "def f(x):\n    return x\n\nprint(f(1))"
for text, seen in (
    ("print(1)", "print(1)"),
    (function, function),
    ("a = 1\nb = 2\nprint(a + b)", "a = 1 b = 2 print(a + b)"),
    ("# first\nprint(2)", "print(2)"),
    ("a = 1\n\nb = 2", "a = 1\nb = 2"),
    ("ls -la # list", "ls -la"),
    ("for i in range(3):\n    print(i)", "is not of type 'string'"),
    ("print('a: b')", "is not of type 'string'"),
    ("yes", "True is not of type 'string'"),
):
    got = asyncio.run(run(text))
    print(f"{text!r}: {got!r}")
    assert got == seen or "type" in seen and got.strip().endswith(seen), got
raised = asyncio.run(run("2024-01-02"))
print(f"a date: {raised}")
assert raised.__name__ == "ValidationError"
EOP
