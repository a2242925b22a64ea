#!/bin/sh
# RLinf's REINFORCE++ (`adv_type: reinpp`) on the rows of its agents with several turns, which are prompt, answer, padding.
# Packages: rlinf 0.3.0, torch 2.13.0. Guess: the reward of a row is put on its last sampled token, so each sampled token of a
# solved row has one positive advantage, and each of a failed row a negative one.
# Seen: the mask is turned over along the rows instead of along the tokens. The reward stands as far from the right end as the
# prompt of another row (the first row's from the last row) is long; tokens behind it have none. With prompts of 4 to 6 of 16
# tokens the end of solved answers is punished as a failure is. With prompts of 9 or more it lands inside the prompt: solved and
# failed tokens have the same advantage, 0, and nothing is learned. Rows without a prompt are right.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 omegaconf==2.3.0 ray==2.55.1 sympy==1.14.0 \
        regex==2026.11.15 pydantic==2.14.4 psutil==7.2.2 numpy==2.4.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps rlinf==0.3.0
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

import torch
from rlinf.algorithms.registry import calculate_adv_and_returns
from rlinf.data.io_struct import DynamicRolloutResult

assert version("rlinf") == "0.3.0"
REWARDS = torch.tensor([1.0, 0.0, 1.0, 0.0])
for prompts, answers, per_row in (
    ([0, 0, 0, 0], [8, 8, 8, 8], [[1.0] * 8, [-1.0] * 8] * 2),
    ([4, 5, 6, 4], [9, 9, 9, 9], [[1.0] * 8 + [-1.0], [-1.0] * 9, [1.0] * 5 + [-1.0] * 4, [-1.0] * 9]),
    ([9, 9, 10, 9], [6, 6, 6, 6], [[0.0] * 6] * 4),
):
    _, mask, _ = DynamicRolloutResult._get_attention_masks_and_position_ids(torch.tensor(prompts), torch.tensor(answers), 16)
    advantages, _ = calculate_adv_and_returns(
        task_type="reasoning", adv_type="reinpp", rewards=REWARDS, loss_mask=mask, group_size=4, logprob=torch.zeros(4, 16)
    )
    print(f"prompts of {prompts} tokens:")
    for reward, row, kept, expected in zip(REWARDS.tolist(), advantages, mask, per_row, strict=True):
        seen = row[kept]
        print(f"  reward {reward:g}: {[round(value, 2) for value in seen.tolist()]}")
        assert torch.equal(torch.sign(seen), torch.tensor(expected))
EOP
