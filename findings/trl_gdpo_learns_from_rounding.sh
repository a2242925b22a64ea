#!/bin/sh
# TRL's GRPOTrainer with `multi_objective_aggregation="normalize_then_sum"` (GDPO) on a batch in which no group has any signal.
# Packages: trl 1.16.0, transformers 5.19.0, torch 2.13.0. Guess: where all answers to a prompt have the same reward, as for tasks
# that are always or never solved, all advantages are 0, and the step changes nothing, as with the default aggregation.
# Seen: two prompts with the rewards 0.7 and 0.3 for each of their 8 answers have advantages of +0.59 and -0.59. The mean of a
# group is rounded, so a difference of 6e-8 stays; it is divided by 1e-4, and then by the deviation over the batch, which is as
# small. The norm of the gradient is 1.1, and 1.8 for rewards that differ; by default it is 0.0009. `frac_reward_zero_std` says
# 0.0 in both cases, though all groups are tied. Rewards of 0 and 1 are exact: no gradient, and 1.0.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check trl==1.16.0 transformers==5.19.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
cat >"$folder/gdpo.py" <<'EOP'
import sys
from importlib.metadata import version

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

assert version("trl") == "1.16.0", version("trl")
raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>")


def step(aggregation, reward):
    """Advantages by prompt and the metrics of one step; `reward` maps prompt and completion to a number."""

    def score(prompts, completions, **_):
        return [reward(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes))
    options = {"per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 8, "max_steps": 1}
    quiet = {"report_to": [], "use_cpu": True, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "bf16": False}
    args = GRPOConfig(output_dir=sys.argv[1], multi_objective_aggregation=aggregation, gradient_checkpointing=False, **options, **quiet)
    rows = Dataset.from_list([{"prompt": "a"}, {"prompt": "b"}])
    trainer = GRPOTrainer(model, score, args=args, processing_class=tokenizer, train_dataset=rows)
    seen = []
    trainer.log = lambda logs, *a, **k: seen.append(
        (dict(zip(trainer._logs["prompt"], trainer._logs["advantages"])), logs, trainer._metrics["train"]["frac_reward_zero_std"])
    )
    trainer.train()
    advantages, logs, zero = seen[0]
    return advantages, logs["grad_norm"], zero[-1]


tied = {"a": 0.7, "b": 0.3}
for name, aggregation, reward, low, high, share in (
    ("tied", "sum_then_normalize", lambda prompt, completion: tied[prompt], 0.0, 0.01, 0.0),
    ("tied", "normalize_then_sum", lambda prompt, completion: tied[prompt], 0.3, 3.0, 0.0),
    ("tied, 0 and 1", "normalize_then_sum", lambda prompt, completion: float(prompt == "a"), 0.0, 0.0, 1.0),
    ("different", "normalize_then_sum", lambda prompt, completion: len(set(completion)) / 8, 0.3, 5.0, 0.0),
):
    advantages, gradient, zero = step(aggregation, reward)
    print(f"{name}, {aggregation}: last advantages {advantages}, gradient {gradient:.5f}, frac_reward_zero_std {zero}")
    assert low <= gradient <= high and zero == share
    if name == "tied":
        sizes = [abs(value) for value in advantages.values()]
        assert min(sizes) > 0.5 if aggregation == "normalize_then_sum" else max(sizes) < 0.001
EOP
export TRL_EXPERIMENTAL_SILENCE=1 HF_HOME="$folder/hf" HF_HUB_OFFLINE=1
"$PYTHON" -W ignore "$folder/gdpo.py" "$folder/run" >"$folder/said" 2>&1 || { cat "$folder/said"; exit 1; }
grep frac_reward "$folder/said"
