#!/bin/sh
# Xinference's parser of calls for DeepSeek-V3 on a reply with two calls of one tool.
# Package: xinference 4.1.0; only the files of its parsers are needed. Guess: "deduplicates identical tool calls" drops a call that
# was made before with the same arguments, and keeps others, as its parsers of DeepSeek-R1 and V3.1 do.
# Seen: calls are the same if the tool and the names of its arguments are. The values are not looked at, so of weather in Rome and
# weather in Oslo the first is made. The second is in neither the calls nor the text, and no log says so; a client that answers
# each call sees nothing missing. The order of the names does not matter either.
# PYTHON may name an interpreter that has the package; otherwise it is installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps xinference==4.1.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import importlib
import json
import sys
from importlib.metadata import distribution
from types import ModuleType

package = distribution("xinference")
assert package.version == "4.1.0"
for name in ("xinference", "xinference.model", "xinference.model.llm"):  # these import its servers
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(package.locate_file(name.replace(".", "/")))]
PARSERS = "xinference.model.llm.tool_parsers"
V3 = importlib.import_module(f"{PARSERS}.deepseek_v3_tool_parser").DeepseekV3ToolParser()
V31 = importlib.import_module(f"{PARSERS}.deepseek_v3_1_tool_parser").DeepseekV3_1ToolParser()


def write_v3(name, arguments):
    return "```json\n" + json.dumps({"name": name, "parameters": arguments}) + "\n```\n"


def write_v31(name, arguments):
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"


rome, oslo = ("weather", {"city": "Rome", "days": 1}), ("weather", {"days": 2, "city": "Oslo"})
other, time = ("weather", {"city": "Oslo"}), ("time", {"city": "Rome", "days": 1})
for parser, write, calls, made in (
    (V31, write_v31, [rome, oslo], [rome, oslo]),
    (V31, write_v31, [rome, rome], [rome]),
    (V3, write_v3, [rome, oslo], [rome]),
    (V3, write_v3, [oslo, rome], [oslo]),
    (V3, write_v3, [rome, other, time], [rome, other, time]),
):
    read = parser.extract_tool_calls("".join(write(*call) for call in calls))
    print(f"{type(parser).__name__}, written {calls}: {read}")
    assert read == [(None, *call) for call in made]
EOP
