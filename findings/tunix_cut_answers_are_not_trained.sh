#!/bin/sh
# Answers that reach max_response_length in Tunix's agentic GRPO, with its default `overlong_filter=False`.
# Packages: google-tunix 0.1.7, jax 0.10.2; the episodes are played by its own engine, agent and environment, with scripted
# answers. Guess: an answer that was cut off is trained with its reward, so a model unlearns to ramble; overlong_filter=True
# would mask it.
# Seen: with both settings the answer is dropped before the row is made. Reward functions are given an empty text, the row has
# an advantage of -0.71 and not one token, so nothing of it is learned. An answer whose last token is the last that fits, and so
# is whole, is dropped as well; one token more room, and it is trained.
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
from tunix.rl.agentic.agents.model_agent import ModelAgent
from tunix.rl.agentic.environments.task_environment import TaskEnvironment
from tunix.rl.agentic.parser.chat_template_parser.parser import QwenChatTemplateParser
from tunix.rl.agentic.trajectory.trajectory_collect_engine import TrajectoryCollectEngine
from tunix.rl.reward_manager import AgenticSequenceRewardManager
from tunix.rl.rollout.base_rollout import RolloutOutput

assert version("google-tunix") == "0.1.7"
RIGHT = "The answer is 12."
RAMBLING = "Let me think about it once more, and then again."


class Letters:
    """A tokenizer: each letter is a token."""

    bos_token, eos_token = None, "<|im_end|>"

    def encode(self, text, **_):
        return [ord(letter) for letter in text]

    def dedup_bos_ids(self, tokens):
        return tokens


def episode(answer, limit, overlong_filter):
    def model(messages, env, max_generation_steps=None):
        text = answer[:max_generation_steps]
        tokens = np.array(Letters().encode(text))
        return RolloutOutput(text=[text], logits=[], tokens=[tokens], left_padded_prompt_tokens=None, logprobs=None)

    engine = TrajectoryCollectEngine(
        ModelAgent(""), TaskEnvironment({"question": "How much is 3 times 4?", "policy_version": 0}), model_call=model,
        tokenizer=Letters(), chat_parser=QwenChatTemplateParser(Letters()), max_response_length=limit,
        overlong_filter=overlong_filter,
    )  # fmt: skip
    return asyncio.run(engine.collect("Token")) | {"original_input": {"prompts": np.array(["How much is 3 times 4?"])}}


def train(limit, overlong_filter):
    """What the reward function is given, the advantages, and how many tokens of each row are trained."""
    given = []

    def right(prompts, completions, **_):
        given.extend(completions)
        return [float("12" in text) for text in completions]

    config = GRPOConfig(num_generations=2, max_response_length=limit, beta=0.0)
    cluster = MagicMock()  # the models; only these values of it are asked for
    cluster.rollout.pad_id.return_value, cluster.rollout.eos_id.return_value = 0, 1
    cluster.cluster_config.rollout_config.max_prompt_length = 256
    cluster.r2m.__getitem__.return_value = None
    learner = GRPOLearner.__new__(GRPOLearner)
    learner.__dict__.update(
        rl_cluster=cluster, algo_config=config, metric_fns=[], reward_manager=AgenticSequenceRewardManager([right], config),
        _trajectory_logger=None, _rewards_window_lock=threading.Lock(), _train_rewards_window=[], _full_batch_size=0,
    )  # fmt: skip
    rows = [SimpleNamespace(traj=episode(answer, limit, overlong_filter)) for answer in (RIGHT, RAMBLING)]
    (batch,) = learner._process_results(rows)
    return given, [round(float(value), 2) for value in batch.advantages], batch.completion_mask.sum(axis=1).tolist()


assert GRPOConfig(max_response_length=8).overlong_filter is False
for limit in (len(RIGHT) + 1, len(RIGHT)):
    for overlong_filter in (False, True):
        given, advantages, trained = train(limit, overlong_filter)
        print(f"limit {limit}, overlong_filter={overlong_filter}: graded {given}, advantages {advantages}, tokens {trained}")
        if limit > len(RIGHT):
            assert (given, advantages, trained) == ([RIGHT, ""], [0.71, -0.71], [len(RIGHT), 0])
        else:
            assert (given, advantages, trained) == (["", ""], [0.0, 0.0], [0, 0])
EOP
