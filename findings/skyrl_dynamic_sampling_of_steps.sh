#!/bin/sh
# SkyRL's dynamic sampling (DAPO's "filter", POLARIS' "replace") on episodes of several turns with `step_wise_trajectories`, where
# each turn is a row of its own, and on a batch without signal. validate_cfg allows each combination.
# Package: skyrl 0.4.0 (made for Python 3.12; typing.TypedDict is set for 3.11 here) and what its trainer_utils imports.
# Guess: a task that all episodes solve is dropped; whole episodes stay; a batch with no signal is sampled again.
# Seen: 1. The deviation is taken over rows, and only the last row of an episode has the reward: a solved task of two turns has
# rewards 0, 1, 0, 1 and is not dropped. 2. The batch is cut at prompts x samples rows, not episodes: of 2 x 2 episodes with three
# turns, one and a third are left, the last one without its end. 3. "replace" copies a good group over a bad one row by row until
# the shorter is used up: rows of a bad episode stay as an episode of their own, under the bad task's id. 4. If no group of a
# batch has signal, as late in training, "filter" raises AssertionError instead of sampling again.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check ray==2.55.1 pybase64==1.5.1 torch==2.13.0 torchdata==0.11.0 transformers==5.19.0 \
        peft==0.21.2 datasets==4.7.0 loguru==0.7.3 omegaconf==2.3.1 hydra-core==1.3.8 cloudpathlib==0.26.0 jaxtyping==0.3.11 \
        orjson==3.13.0 pydantic==2.14.4
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python skyrl==0.4.0 skyrl-gym==0.4.0
    PYTHON="$folder/venv/bin/python"
fi
cd "$folder"
HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import typing
from importlib.metadata import version

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict
from skyrl.train.utils.trainer_utils import handle_dynamic_sampling

assert version("skyrl") == "0.4.0", version("skyrl")


def batch(*episodes):
    """Rows of episodes, each (task, name, number of turns, reward of the last turn)."""
    rows = []
    for task, name, turns, reward in episodes:
        rows += [(task, f"{name}{turn + 1}/{turns}", turn == turns - 1, reward) for turn in range(turns)]
    output = {
        "prompt_token_ids": [[1] for _ in rows],
        "response_ids": [[2, 3] for _ in rows],
        "loss_masks": [[1, 1] for _ in rows],
        "rewards": [[0.0, reward if last else 0.0] for _, _, last, reward in rows],
        "trajectory_ids": [name for _, name, _, _ in rows],  # stands for SkyRL's ids, to tell rows apart
        "is_last_step": [last for _, _, last, _ in rows],
    }
    return output, [task for task, *_ in rows]


def sampled(kind, *episodes, prompts=2):
    settings = {"type": kind, "train_batch_size": prompts, "n_samples_per_prompt": 2, "min_replace_ratio": 0.3}
    output, uids, again, _ = handle_dynamic_sampling(*batch(*episodes), settings, {"sample_batch_count": 1})
    return list(zip(uids, output["trajectory_ids"], strict=True)), again


solved = ("solved", "a", 2, 1.0), ("solved", "b", 2, 1.0)
mixed = ("mixed", "c", 2, 1.0), ("mixed", "d", 2, 0.0)
for turns, kept in ((1, {"mixed"}), (2, {"solved", "mixed"})):
    rows, _ = sampled("filter", *((task, name, turns, reward) for task, name, _, reward in (*solved, *mixed)), prompts=len(kept))
    print(f"1. filter, {turns} turn(s): tasks kept {sorted({task for task, _ in rows})}, rows {rows}")
    assert ("solved" in {task for task, _ in rows}) is (turns == 2)
rows, again = sampled("filter", ("p", "a", 3, 1.0), ("p", "b", 3, 0.0), ("q", "c", 3, 1.0), ("q", "d", 3, 0.0))
print(f"2. filter, 2 prompts x 2 samples x 3 turns: {rows}, sample again {again}")
assert [name for _, name in rows] == ["a1/3", "a2/3", "a3/3", "b1/3"] and not again
rows, again = sampled("replace", ("good", "a", 1, 1.0), ("good", "b", 1, 0.0), ("bad", "c", 2, 0.0), ("bad", "d", 2, 0.0))
print(f"3. replace, 1 turn over 2: {rows}, sample again {again}")
assert rows[2:] == [("good", "a1/1"), ("good", "b1/1"), ("bad", "d1/2"), ("bad", "d2/2")] and not again
try:
    sampled("filter", ("p", "a", 1, 1.0), ("p", "b", 1, 1.0), ("q", "c", 1, 0.0), ("q", "d", 1, 0.0))
except AssertionError as error:
    print(f"4. filter, no group with signal: AssertionError: {error}")
else:
    raise RuntimeError("a batch without signal no longer raises")
EOP
