#!/bin/sh
# OpenRLHF's GRPO (`--algo.advantage.estimator group_norm`) on groups in which all answers have the same reward.
# Packages: openrlhf 0.11.2, torch 2.13.0. Guess: a group without any difference has no advantage, whatever its reward is.
# Seen: eight answers with the reward 0.7 have the advantage +10 each, four times as much as the one right answer of eight. The
# mean of the group is rounded to 0.69999994, torch's deviation of its rows is exactly 0, and 6e-8 / 1e-9 is 59.6, which the
# default clip of rewards (-10, 10) cuts. (Of one group alone the deviation is rounded, too: 0.92.) 0.9 gives -10, so a task that
# is always solved well is unlearned; 0.5, 0 and 1 give 0. Dynamic filtering asks whether the mean is strictly between 0 and 1, so
# it keeps such groups.
# flash-attn and deepspeed cannot be built without CUDA; they, and vllm, are stand-ins here, and nothing of them runs.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 peft==0.21.2 ray==2.55.1 \
        datasets==4.7.0 pylatexenc==2.10 einops==0.8.2 torchdata==0.11.0 sympy==1.14.0 pillow==12.0.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps openrlhf==0.11.2
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from types import SimpleNamespace
from unittest.mock import MagicMock

import peft  # before the stand-ins: it asks whether flash-attn is there
import torch

assert version("openrlhf") == "0.11.2", version("openrlhf")


class StandIns:
    def find_spec(self, name, *_):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("flash_attn", "deepspeed", "vllm") else None

    def create_module(self, spec):
        return MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module):
        pass


sys.meta_path.append(StandIns())
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker


def advantages(groups):
    """The advantages of a batch with one token an answer, with the trainer's defaults."""
    maker, count = object.__new__(RemoteExperienceMaker), len(groups) * len(groups[0])
    algo = SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm", gamma=1.0, lambd=1.0, no_std_norm=False))
    rollout = SimpleNamespace(n_samples_per_prompt=len(groups[0]))
    maker.strategy = SimpleNamespace(args=SimpleNamespace(algo=algo, rollout=rollout, reward=SimpleNamespace(clip_range=(-10, 10))))
    maker.advantage_estimator, maker.kl_ctl = "group_norm", SimpleNamespace(value=0.0)
    ones, rewards = torch.ones(count, 1), torch.tensor(groups).flatten()
    batch = Experience(rewards=rewards, action_mask=ones, kl=0 * ones, index=list(range(count)), info={})
    (batch,) = maker.compute_advantages_and_returns([batch])
    return [[round(value, 2) for value in group] for group in batch.advantages.reshape(len(groups), -1).tolist()]


groups = [[0.7] * 8, [0.9] * 8, [0.5] * 8, [1.0] * 8, [1.0] + [0.0] * 7]
for rewards, seen, first in zip(groups, advantages(groups), (10.0, -10.0, 0.0, 0.0, 2.47), strict=True):
    print(f"rewards {rewards}: advantages {seen}")
    assert abs(seen[0] - first) < 0.01 and (len(set(rewards)) > 1 or len(set(seen)) == 1)
(alone,) = advantages([[0.7] * 8])
print(f"a batch of one group of 0.7: advantages {alone}")
assert set(alone) == {0.92}
EOP
