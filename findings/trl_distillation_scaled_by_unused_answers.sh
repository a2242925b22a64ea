#!/bin/sh
# TRL's two distillation trainers over `messages`, fully on-policy: the student answers, and only its own answers are trained.
# Packages: trl 1.16.0, transformers 5.19.0, torch 2.13.0. Guess: with lmbda=1.0 the data set's answers have no effect, and the
# column `tools`, which all of TRL's chat data sets may have, is in the prompt.
# Seen, for GKDTrainer and GOLDTrainer: the loss is divided by the number of tokens of the data set's answers, which were replaced.
# With the same 32 sampled tokens, answers of 4 letters give 80 times the loss and the gradient that answers of 400 letters give. So
# the weight of a batch depends on texts that nobody trains on. Half on-policy (lmbda=0.5) it depends on which batch was drawn.
# `tools` is dropped without a word: the template is rendered without it.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check trl==1.16.0 transformers==5.19.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
cat >"$folder/distil.py" <<'EOP'
import sys
from importlib.metadata import version

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.gold import GOLDConfig, GOLDTrainer

assert version("trl") == "1.16.0", version("trl")
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
raw.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<eos>", pad_token="<pad>")
tokenizer.chat_template = (
    "{% if tools %}tools: {{ tools[0]['function']['name'] }}\n{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
assert "look_up" in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tools=[TOOL], tokenize=False)


def model(seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes))


def step(trainer_class, config_class, limit, letters):
    """Loss, norm of the gradient and prompt of one step; `letters`: the length of the data set's answers."""
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "x" * letters}]
    options = {"lmbda": 1.0, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "max_steps": 1, limit: 16}
    quiet = {"report_to": [], "use_cpu": True, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "seed": 0}
    args = config_class(output_dir=sys.argv[1], max_length=1024, gradient_checkpointing=False, **options, **quiet)
    prompts = []
    student = model(1)
    generate = student.generate
    student.generate = lambda *a, **k: prompts.append(tokenizer.decode(k["input_ids"][0])) or generate(*a, **k)
    rows = Dataset.from_list([{"messages": chat, "tools": [TOOL]}] * 4)
    trainer = trainer_class(student, model(2), args=args, processing_class=tokenizer, train_dataset=rows)
    trainer.train()
    return trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["grad_norm"], prompts[0]


for classes in ((GKDTrainer, GKDConfig, "max_new_tokens"), (GOLDTrainer, GOLDConfig, "max_completion_length")):
    (short, short_norm, prompt), (long, long_norm, _) = step(*classes, 4), step(*classes, 400)
    print(f"{classes[0].__name__}: loss {short:.3f}, gradient {short_norm:.3f}; with long answers {long:.4f}, {long_norm:.4f}")
    print(f"    ratio {short / long:.1f}; prompt {prompt!r}")
    assert 75 < short / long < 85 and 75 < short_norm / long_norm < 85  # 802 tokens to 10: two answers, each with its line end
    assert "look_up" not in prompt
EOP
export TRL_EXPERIMENTAL_SILENCE=1 HF_HOME="$folder/hf" HF_HUB_OFFLINE=1
"$PYTHON" -W ignore "$folder/distil.py" "$folder/run" >"$folder/said" 2>&1 ||
    { cat "$folder/said"; exit 1; }
grep -E "Trainer: |    ratio" "$folder/said"
