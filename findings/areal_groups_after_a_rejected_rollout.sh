#!/bin/sh
# AReaL's GRPO (`reward_norm` per group) when one rollout of a group is rejected, and `mask_no_eos_with_zero`.
# Packages: areal 1.0.4, torch 2.13.0. Guess: the other rollouts stay a group of three, all other groups are not touched; and
# answers that were cut off lose their reward, those that ended keep it.
# Seen: 1. A workflow that returns None (AReaL's way to reject a rollout; "using remaining results", it says) makes a group of
# three. The groups are then cut every four rows of the batch, so rows of two tasks are one group: where all solved theirs, one
# gets 0.87. And the rows that are left at the end are divided by 1e-5 alone: solved ones get an advantage of 100,000. No clip
# follows. 2. An answer counts as cut off if it is as long as the batch is wide. So the longest answer of each batch loses its
# reward, though it ended, and one that was cut off after a shorter prompt keeps it.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torchdata==0.11.0 transformers==5.19.0 \
        datasets==4.7.0 ray==2.60.0 colorlog==6.12.0 tenacity==9.2.1 hydra-core==1.3.8 omegaconf==2.3.0 aiofiles==25.1.0 \
        msgpack==1.2.4 orjson==3.13.0 swanlab==0.10.3 prettytable==3.18.0 trackio==0.43.0 tensorboardx==2.6.5 \
        wandb==0.31.0 openai==3.52.0 math-verify==0.9.0 \
        flask==3.1.3 fastapi==0.136.3 uvicorn==0.54.0 uvloop==0.23.0 lark==1.2.2 pybase64 tabulate einops numba
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps areal==1.0.4
    PYTHON="$folder/venv/bin/python"
fi
WANDB_MODE=disabled HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import asyncio
import logging
from importlib.metadata import version

import torch
from areal.api.cli_args import NormConfig, PPOActorConfig
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow
from areal.trainer.ppo.actor import PPOActor

assert version("areal") == "1.0.4", version("areal")
logging.disable(logging.CRITICAL)


class Rollouts:
    """A workflow of the user: each episode returns its row, or None where it is rejected."""

    def __init__(self, rewards, lengths):
        self.rows = iter(zip(rewards, lengths))

    async def arun_episode(self, engine, data):
        reward, length = next(self.rows)
        if reward is None:
            return None
        ones = torch.ones(1, length)
        mask = torch.cat([torch.zeros(1, 2), ones[:, 2:]], dim=1).int()  # the prompt has two tokens
        return {
            "input_ids": ones.long(), "attention_mask": ones.bool(), "loss_mask": mask, "logprobs": ones * 0,
            "versions": ones.int(), "rewards": torch.tensor([float(reward)]),
        }  # fmt: skip


def advantages(groups, lengths=(6, 6, 6, 6), **options):
    rows = []
    for rewards in groups:
        workflow = GroupedRolloutWorkflow(Rollouts(rewards, lengths), len(rewards), logging.getLogger())
        rows.append(asyncio.run(workflow.arun_episode(None, {})))
    config = PPOActorConfig(
        experiment_name="e", trial_name="t", path="p", adv_norm=None, kl_ctl=0.0, reward_scaling=1.0, reward_bias=0.0,
        use_decoupled_loss=False, recompute_logprob=False, **options,
    )  # fmt: skip
    found = PPOActor(config, None).compute_advantages(rows)
    return [[round(x, 2) for x in each["advantages"][:, 2].tolist()] for each in found]


norm = NormConfig(mean_level="group", std_level="group", group_size=4)
whole = advantages([[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]], reward_norm=norm)
short = advantages([[1, 0, 0, None], [1, 1, 1, 1], [1, 1, 1, 1]], reward_norm=norm)
print(f"all rollouts: {whole}\none rejected: {short}")
assert whole == [[1.5, -0.5, -0.5, -0.5], [0.0] * 4, [0.0] * 4]
assert short[1] != [0.0] * 4 and short[2][1:] == [100000.0] * 3
ended = advantages([[1, 1, 1, 1]], lengths=(5, 6, 7, 8), mask_no_eos_with_zero=True, reward_norm=None)
print(f"four answers that ended, of 3 to 6 tokens: {ended}")
assert ended == [[1.0, 1.0, 1.0, 0.0]]
EOP
