#!/bin/sh
# verl's estimators of advantages on episodes that end with a text of the environment, as a game's last answer or a tool's result.
# Packages: verl 0.9.1, tensordict 0.15.3, torch 2.13.0. Guess: the reward of an episode reaches the tokens that were sampled, by
# each estimator of `algorithm.adv_estimator`, whoever had the last word.
# Seen: AgentLoopOutput puts the reward on the last token, also where the mask says that the environment wrote it. grpo, rloo,
# opo, gpg and reinforce_plus_plus_baseline sum over all tokens and keep it. gae, reinforce_plus_plus, remax and
# optimal_token_baseline skip tokens of the environment and the reward with them: all advantages are 0 (remax: minus its
# baseline), one solved episode of four teaches nothing. One more sampled token behind it, and all of them are right.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 tensordict==0.15.3 ray==2.55.1 transformers==5.19.0 \
        peft==0.21.2 datasets==4.7.0 hydra-core==1.3.8 codetiming==1.4.0 torchdata==0.11.0 cloudpickle==3.1.2 orjson==3.13.0 \
        pillow==12.0.0 aiohttp fastapi uvicorn cachetools
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps verl==0.9.1
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

assert version("verl") == "0.9.1", version("verl")
ALL = "grpo rloo opo gpg reinforce_plus_plus_baseline gae reinforce_plus_plus remax optimal_token_baseline".split()
GROUP = np.array(["task"] * 4)


def first_advantages(name, mask):
    """The advantage of the first token of four episodes, of which the first was solved."""
    episodes = [
        AgentLoopOutput(
            prompt_ids=[1], response_ids=[2] * len(mask), response_mask=mask, reward_score=reward, num_turns=2, metrics={}
        ).as_dict()
        for reward in (1.0, 0.0, 0.0, 0.0)
    ]
    rewards, masks = (torch.stack([each[key] for each in episodes]).float() for key in ("rm_scores", "response_mask"))
    needed = {"config": AlgoConfig(gamma=1.0, lam=1.0), "index": GROUP}
    if name == "gae":
        needed = {"values": torch.zeros_like(rewards), "gamma": 1.0, "lam": 1.0}
    elif name == "remax":
        needed = {"reward_baselines": torch.zeros(4)}
    elif name == "reinforce_plus_plus":
        needed.pop("index")
    elif name == "optimal_token_baseline":
        needed |= {"old_log_probs": torch.full_like(rewards, -1.0), "sum_pi_squared": torch.full_like(rewards, 0.3)}
    advantages, _ = get_adv_estimator_fn(name)(token_level_rewards=rewards, response_mask=masks, **needed)
    return [round(x, 2) for x in advantages[:, 0].tolist()]


lost = []
for name in ALL:
    last_sampled = first_advantages(name, [1, 1, 0, 0, 1])
    last_shown = first_advantages(name, [1, 1, 0, 0])
    print(f"{name}: {last_sampled} where the model has the last word, {last_shown} where the environment has it")
    assert last_sampled[0] > 0
    lost += [name] if last_shown == [0.0] * 4 else []
assert lost == ALL[5:], lost
EOP
