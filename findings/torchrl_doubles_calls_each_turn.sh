#!/bin/sh
# TorchRL's History, in which its environments and policies of language models keep a chat, with a call of a tool in it.
# Packages: torchrl 0.14.1, tensordict 0.14.3, torch 2.13.0, transformers 5.19.0; its own template "qwen". Guess: a history that
# is read from a text (from_text, as its policies read each answer of an engine) is written as the same text.
# Seen: the parsed call is kept beside the content, which holds its text still, and the template writes both. The prompt of the
# next turn has the call twice, the one after it four times, then eight. The answer of the tool becomes a list: "r", then "['r']",
# then "[\"['r']\"]". Spaces at the ends of a message are lost, too. With "chatml_format", which knows no calls, the text of the
# call stays as it was.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torchrl==0.14.1 tensordict==0.14.3 torch==2.13.0 \
        transformers==5.19.0
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torchrl.data.llm import History
from transformers import PreTrainedTokenizerFast

assert version("torchrl") == "0.14.1", version("torchrl")
words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))  # only the texts matter
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def written(history, template, prompt=False):
    return history.apply_chat_template(
        tokenizer=words, chat_template_name=template, add_generation_prompt=prompt, tokenize=False
    )


def counts(template):
    """How often a call of the first turn is in the prompt of each later turn, and the tool's answer in the last prompt."""
    question = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    text = written(History.from_chats([question])[0], template, prompt=True) + f"I look.\n{CALL}<|im_end|>\n"
    seen = []
    for turn in range(3):
        history = History.from_text(text, chat_template_name=template)
        if turn == 0:
            history = history.append(History(role="tool", content="r", batch_size=()), inplace=False)
        text = written(history, template)
        seen.append(text.count(CALL))
    return seen, text


seen, text = counts("qwen")
print(f"qwen: {seen} calls\n{text}")
assert seen == [2, 4, 8] and "\nr\n" not in text and "['r']" in text
seen, text = counts("chatml_format")
print(f"chatml_format: {seen} calls")
assert seen == [1, 1, 1] and "tool\nr<|im_end|>" in text
EOP
