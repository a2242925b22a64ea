#!/bin/sh
# TRL's reader of calls for gpt-oss, in a GRPO run with tools.
# Packages: trl 1.16.0, transformers 5.19.0, torch 2.13.0; the template is TRL's own copy. Guess: it reads the calls that gpt-oss
# makes: by Harmony's guide the recipient stands in the role or in the channel, and <|constrain|> before json.
# Seen: only the form that the chat template gives to a call in the history is read, with the recipient in the role and no
# <|constrain|>. The other forms are no calls, and their text is lost too, since only the channel "final" is content: the episode
# ends with an empty answer. No tool ever runs, and nothing says so; a line of commentary before a call is lost as well.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check trl==1.16.0 transformers==5.19.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 HF_HOME="$folder/hf" "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version
from pathlib import Path

import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import add_response_schema, parse_response

assert version("trl") == "1.16.0" and version("transformers") == "5.19.0"
raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
TOOL = {"name": "write", "description": "Writes.", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}
TOOLS, GO = [{"type": "function", "function": TOOL}], [{"role": "user", "content": "go"}]

tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|return|>")
tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "gptoss.jinja").read_text()
add_response_schema(tokenizer)
prompt = tokenizer.apply_chat_template(GO, tools=TOOLS, tokenize=False, add_generation_prompt=True)
assert prompt.endswith("<|start|>assistant")
call = '<|channel|>commentary to=functions.write <|constrain|>json<|message|>{"text": "a"}<|call|>'
for text, found in (
    (' to=functions.write<|channel|>commentary json<|message|>{"text": "a"}<|call|>', True),
    (' to=functions.write<|channel|>commentary <|constrain|>json<|message|>{"text": "a"}<|call|>', False),
    (call, False),
    (f"<|channel|>analysis<|message|>A file.<|end|><|start|>assistant{call}", False),
    (f"<|channel|>commentary<|message|>I write the file.<|end|><|start|>assistant{call}", False),
):
    before, ids = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompt, text))
    message = parse_response(tokenizer, ids, prefix=before, tools=TOOLS)
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    print(f"{text}\n    calls {calls}, content {message['content']!r}, thought {message.get('thinking')!r}")
    assert (calls, message["content"]) == ([{"text": "a"}] if found else [], "")
EOP
