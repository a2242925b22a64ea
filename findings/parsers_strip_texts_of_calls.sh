#!/bin/sh
# Two readers of calls that trainers use: TRL's, for known chat templates, and renderers, of verifiers and TorchTitan.
# Packages: trl 1.16.0, renderers 0.1.12, transformers 5.19.0, torch 2.13.0; the templates are TRL's own copies. Guess: a call is
# read as the template has written it, so a tool gets the text that the model chose.
# Seen: for Qwen3.5, 3.6 and 3.8, Nemotron 3 and GLM-4.5 TRL drops all white space around a text: "    return 1\n", a line of a
# file, is "return 1" for the tool, and " " is empty. renderers does so for Qwen3.5, and says that the call is ok. The line ends
# of the form itself are only one on each side. For LFM2.5 TRL ends a text at its first apostrophe. Qwen3, Llama 3.1 and Gemma 4
# are read right.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check trl==1.16.0 transformers==5.19.0 torch==2.13.0 \
        renderers==0.1.12 httpx==0.28.1 openai==2.54.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import os
from importlib.metadata import version
from pathlib import Path

import trl
from renderers.qwen35 import Qwen35Renderer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import add_response_schema, parse_response

assert version("trl") == "1.16.0" and version("transformers") == "5.19.0"
raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
TOOL = {"name": "write", "description": "Writes.", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
TOOLS, GO = [{"type": "function", "function": TOOL}], [{"role": "user", "content": "go"}]


def reader(template):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>")
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    return add_response_schema(tokenizer)


def calls(tokenizer, prompt, text):
    prompt, ids = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompt, text))
    message = parse_response(tokenizer, ids, prefix=prompt, tools=TOOLS)
    return [call["function"]["arguments"] for call in message.get("tool_calls", [])], message["content"]


def read_back(template, text):
    """The text that the tool gets, if the template writes a call with `text`."""
    tokenizer = reader(template)
    function = {"name": "write", "arguments": {"text": text}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    prompt = tokenizer.apply_chat_template(GO, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template([*GO, call], tools=TOOLS, tokenize=False)
    start = len(os.path.commonprefix([prompt, whole]))  # a prompt may open a thought, which a call in the history has not
    ((arguments,), _) = calls(tokenizer, whole[:start], whole[start:])
    return arguments["text"]


marks = [f"<{mark}>" for mark in ("think", "/think", "tool_call", "/tool_call", "tool_response", "/tool_response")]
marks += [f"<|{mark}|>" for mark in ("im_start", "im_end", "endoftext", "vision_start", "vision_end", "image_pad", "video_pad")]
qwen = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", additional_special_tokens=marks)
for text, read in (("    return 1\n", "return 1"), (" ", ""), ("it's so", "it's so")):
    form = f"<tool_call>\n<function=write>\n<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call><|im_end|>"
    (call,) = Qwen35Renderer(qwen).parse_response(qwen(form)["input_ids"], tools=TOOLS).tool_calls
    print(f"renderers, Qwen3.5: {text!r} is read as {call.arguments['text']!r}, status {call.status.value}")
    assert call.arguments == {"text": read} and call.status.value == "ok"
stripping = ("qwen3_5_think", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_ultra", "glm4moe")
for template in (*stripping, "qwen3", "llama3_1", "gemma4", "lfm2_2_5"):
    read = [read_back(template, text) for text in ("    return 1\n", " ", "it's so")]
    print(f"TRL, {template}: {read}")
    strips, cuts = template in stripping, template == "lfm2_2_5"
    assert read == ["return 1" if strips else "    return 1\n", "" if strips else " ", "it" if cuts else "it's so"]
EOP
