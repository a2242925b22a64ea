#!/bin/sh
# Agent Lightning's rows for verl with `trace_aggregator.level: trajectory`, which joins the calls of an episode into one row
# where the next prompt goes on from the last answer; here for an agent that asks twice, as in a vote.
# Packages: agentlightning 0.3.0, verl 0.9.1, torch 2.13.0; only the daemon of its verl integration is needed. Guess: two calls
# with the same prompt are two rows, and the sampled token of each is trained.
# Seen: if the answers are equal too, there is one row, with a piece of the prompt between the answers and a mask that is
# shorter than the row: a token of the prompt is trained, and the second answer is not. Other answers make two rows.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check agentlightning==0.3.0 torch==2.13.0 tensordict==0.15.3 \
        ray==2.55.1 transformers==5.19.0 omegaconf==2.3.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps verl==0.9.1
    PYTHON="$folder/venv/bin/python"
fi
HF_HUB_OFFLINE=1 LITELLM_LOCAL_MODEL_COST_MAP=True "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
import importlib.util
import sys
from importlib.metadata import distribution, version
from types import ModuleType

import torch
from agentlightning import InMemoryLightningStore
from agentlightning.types import RolloutLegacy, Triplet

assert version("agentlightning") == "0.3.0" and version("verl") == "0.9.1"
NAME = "agentlightning.verl.daemon"
sys.modules["agentlightning.verl"] = ModuleType("agentlightning.verl")  # the rest of it needs vLLM
FILE = distribution("agentlightning").locate_file("agentlightning/verl/daemon.py")
spec = importlib.util.spec_from_file_location(NAME, FILE)
module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
PAD = 0


def batch(calls, max_prompt):
    """The rows that the trainer gets for one episode with the reward 1, whose calls are (prompt, answer)."""
    daemon = module.AgentModeDaemon(
        None, 1, {}, tokenizer=None, mini_batch_size=1, pad_token_id=PAD, store=InMemoryLightningStore(), llm_proxy=object(),
        trace_aggregator={"level": "trajectory"},
    )  # fmt: skip
    triplets = [Triplet(prompt={"token_ids": list(p)}, response={"token_ids": list(a)}) for p, a in calls]
    daemon._completed_rollouts_v0["0"] = RolloutLegacy(rollout_id="0", final_reward=1.0, triplets=triplets)
    daemon._task_id_to_original_sample["0"] = {"data_id": "task"}
    daemon._total_tasks_queued = 1
    return daemon.get_train_data_batch(max_prompt, 16, torch.device("cpu"), 0)[0].batch


def trained(rows, row):
    """The tokens of a row behind its prompt, and those of them that are trained."""
    tokens, mask = rows["responses"][row].tolist(), rows["response_mask"][row].tolist()
    real = sum(rows["attention_mask"][row, -len(tokens) :].tolist())
    return tokens[:real], [token for token, one in zip(tokens, mask) if one]


rows = batch([([1, 2, 3], [9]), ([1, 2, 3], [9])], max_prompt=4)
print(f"sampled is 9, twice; rows and trained tokens are {[trained(rows, row) for row in range(len(rows))]}")
assert len(rows) == 1 and trained(rows, 0) == ([9, 2, 3, 9], [9, 2])

rows = batch([([1, 2, 3], [9]), ([1, 2, 3], [8])], max_prompt=4)
print(f"sampled are 9 and 8; rows and trained tokens are {[trained(rows, row) for row in range(len(rows))]}")
assert [trained(rows, row) for row in range(len(rows))] == [([9], [9]), ([8], [8])]
EOP
