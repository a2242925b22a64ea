#!/bin/sh
# Reward functions of Tunix's agentic GRPO on an episode with a tool: a call, its result, the answer.
# Packages: google-tunix 0.1.7, jax 0.10.2; the episodes are played by its own engine, agent and environment, with two scripted
# answers. Guess: `completions` are the final answers, or all that the model wrote.
# Seen: they are the first message of the assistant, so the call. The final answer reaches no reward function. An episode that
# guesses right beside its call and then answers wrongly has the advantage +0.71, and the one with the right answer -0.71. (What
# the environment pays is added apart.)
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check google-tunix==0.1.7 jax==0.10.2 flax==0.12.8 transformers==5.12.1
    PYTHON="$folder/venv/bin/python"
fi
JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import asyncio
import threading
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
from tunix.rl.agentic.agentic_grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.agentic.agents.tool_agent import ToolAgent
from tunix.rl.agentic.environments.tool_environment import ToolEnvironment
from tunix.rl.agentic.parser.chat_template_parser.parser import QwenChatTemplateParser
from tunix.rl.agentic.tools.calculator_tool import CalculatorTool
from tunix.rl.agentic.trajectory.trajectory_collect_engine import TrajectoryCollectEngine
from tunix.rl.reward_manager import AgenticSequenceRewardManager
from tunix.rl.rollout.base_rollout import RolloutOutput

assert version("google-tunix") == "0.1.7"
TOOLS = {"calculator": CalculatorTool}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"a": 3, "b": 4, "op": "*"}}\n</tool_call>'


class Letters:
    """A tokenizer: each letter is a token."""

    bos_token, eos_token = None, "<|im_end|>"

    def encode(self, text, **_):
        return [ord(letter) for letter in text]

    def dedup_bos_ids(self, tokens):
        return tokens


def episode(*answers):
    left = iter(answers)

    def model(messages, env, max_generation_steps=None):
        text = next(left)
        tokens = np.array(Letters().encode(text))
        return RolloutOutput(text=[text], logits=[], tokens=[tokens], left_padded_prompt_tokens=None, logprobs=None)

    task = {"question": "How much is 3 times 4?", "policy_version": 0}
    agent, env = ToolAgent("Use the tools.\n", tool_map=TOOLS), ToolEnvironment(task, tool_map=TOOLS)
    parser = QwenChatTemplateParser(Letters())
    engine = TrajectoryCollectEngine(agent, env, model_call=model, tokenizer=Letters(), chat_parser=parser)
    row = asyncio.run(engine.collect("Token"))
    assert [message["role"] for message in row["conversation_text"]] == ["system", "user", "assistant", "tool", "assistant"]
    return row | {"original_input": {"prompts": np.array([task["question"]])}}


given = []


def right(prompts, completions, **_):
    """1 for a text that says 12."""
    given.extend(completions)
    return [float("12" in text) for text in completions]


config = GRPOConfig(num_generations=2, max_response_length=512, beta=0.0)
cluster = MagicMock()  # the models; only these values of it are asked for
cluster.rollout.pad_id.return_value, cluster.rollout.eos_id.return_value = 0, 1
cluster.cluster_config.rollout_config.max_prompt_length = 4096
cluster.r2m.__getitem__.return_value = None
learner = GRPOLearner.__new__(GRPOLearner)
learner.__dict__.update(
    rl_cluster=cluster, algo_config=config, metric_fns=[], reward_manager=AgenticSequenceRewardManager([right], config),
    _trajectory_logger=None, _rewards_window_lock=threading.Lock(), _train_rewards_window=[], _full_batch_size=0,
)  # fmt: skip
rows = [episode(CALL, "The answer is 12."), episode("It may be 12.\n" + CALL, "The answer is 13.")]
(batch,) = learner._process_results([SimpleNamespace(traj=row) for row in rows])
advantages = [round(float(value), 2) for value in batch.advantages]
for row, text, advantage in zip(rows, given, advantages):
    print(f"final {row['conversation_text'][-1]['content']!r}, graded {text!r}, advantage {advantage}")
assert given == [CALL, "It may be 12.\n" + CALL]
assert advantages == [-0.71, 0.71]
EOP
