#!/bin/sh
# Agent Lightning's rows for verl with `trace_aggregator.level: trajectory`, which joins the calls of an episode into one row
# where the next prompt goes on from the last answer.
# Packages: agentlightning 0.3.0, verl 0.9.1, torch 2.13.0; only the daemon of its verl integration is needed. Guess: the mask
# has the sampled tokens, each once, and nothing else.
# Seen: if a prompt does not go on (a template that drops old thoughts), a new row starts. The part of its prompt beyond
# trajectory_max_prompt_length is counted twice in the mask, as 1: that part, the results of tools behind it and padding are
# trained.
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


PROMPT = [1, 2, 3, 4]
second = PROMPT + [12, 21, 22, 23]  # the thought, 11, is dropped; 21 to 23 are the result of a tool
third = second + [13, 14] + [31, 32]
rows = batch([(PROMPT, [11, 12]), (second, [13, 14]), (third, [15])], max_prompt=4)
tokens, learned = trained(rows, 1)
print(f"sampled are 13 14 15; the row has {tokens}, trained are {learned}")
assert trained(rows, 0) == ([11, 12], [11, 12])
assert tokens == [12, 21, 22, 23, 13, 14, 31, 32, 15]
assert learned == [12, 21, 22, 23, 13, 14, 31, 32, 15, PAD, PAD]
EOP
