#!/bin/sh
# AgileRL's GRPO on episodes of several turns that are paid at their end, with its defaults (`advantage_granularity="auto"`).
# Packages: agilerl 2.58.0, agilerl-arena 1.29.0, torch 2.11.0, transformers 5.14.1, peft 0.21.0. Guess: where one episode of
# four fails and three solve the task, the failure has a negative advantage and the others a positive one.
# Seen: turns are compared with the same turn of the others, by the reward of that turn alone. If the one that fails gives up a
# turn before the others solve the task, its last turn is compared with turns that were paid 0, too, and the last turn of the
# others with each other: every advantage is 0, and so is the gradient. With "trajectory" it is as guessed. adv_zero_frac alone
# tells of it. liger-kernel and bitsandbytes are made for CUDA and left out: the flag that asks for them is set, and nothing of
# them runs.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.11.0 transformers==5.14.1 peft==0.21.0 \
        datasets==5.0.1 accelerate tensordict==0.13.0 gymnasium==1.4.0 pettingzoo dill fastrand filelock lazy-loader pillow \
        pydantic safetensors wandb pyyaml tqdm packaging
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps agilerl==2.58.0 agilerl-arena==1.29.0
    PYTHON="$folder/venv/bin/python"
fi
WANDB_MODE=disabled HF_HUB_OFFLINE=1 "$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version

import agilerl
import torch

assert version("agilerl") == "2.58.0", version("agilerl")
agilerl.HAS_LLM_DEPENDENCIES = True
from agilerl.algorithms.grpo import GRPO
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64
)


def learn(rewards, turns, **options):
    """One step on four episodes of one task. A turn is two sampled tokens behind one of the prompt or of a tool."""
    grpo = GRPO(
        pad_token_id=0, pad_token="<pad>", actor_network=LlamaForCausalLM(CONFIG), batch_size=1, group_size=4, lr=1e-4,
        lora_config=LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"), use_liger_loss=False, beta=0.0,
        gradient_checkpointing=False, device="cpu", **options,
    )  # fmt: skip
    ids = [torch.randint(1, 32, (1, 3 * count)) for count in turns]
    mask = [torch.tensor([[False, True, True] * count])[:, 1:] for count in turns]
    turn_ids = torch.full((4, 3 * max(turns) - 1), -1)
    for row, count in enumerate(turns):
        for turn in range(count):
            turn_ids[row, 3 * turn : 3 * turn + 2] = turn
    found = {}
    calculate = grpo._calculate_advantages

    def note(*args):
        found["advantages"] = calculate(*args)
        return found["advantages"]

    grpo._calculate_advantages = note
    result = grpo.learn((ids, mask, torch.tensor(rewards)), turn_ids=turn_ids)
    rows = found["advantages"][0].expand(4, turn_ids.shape[1])
    per_turn = [[round(float(rows[row, 3 * turn]), 2) for turn in range(count)] for row, count in enumerate(turns)]
    return per_turn, result["grad_norm_pre"]


rewards, turns = [[0.0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]], [2, 3, 3, 3]
seen, norm = learn(rewards, turns)
print(f"auto: {seen}, gradient {norm:.2g}")
assert all(value == 0 for row in seen for value in row) and norm == 0
whole, norm = learn(rewards, turns, advantage_granularity="trajectory")
print(f"trajectory: {whole}, gradient {norm:.2g}")
assert all(value < 0 for value in whole[0]) and all(value > 0 for row in whole[1:] for value in row) and norm > 0
EOP
