#!/bin/sh
# CoMLRL's MAGRPO on two answers of one prompt, one of two tokens and one of seven, and its four `advantage_mode`s.
# Packages: comlrl 1.4.3, transformers 5.19.0, torch 2.13.0; the model is a table whose generate returns what Transformers
# returns for these answers: the shorter one padded. Guess: the tokens up to the end mark are trained, with mean, raw, max and
# rloo to choose the baseline.
# Seen: 1. The answers of a group are kept as wide as the longest, and each position is trained. Of the short answer's seven
# trained tokens five are padding, which no model sampled; the sum over tokens is not divided, so beside one long answer padding
# makes most of the gradient. The texts that rewards get are cut right. 2. With the default advantage_normalization the mean is
# taken off once more behind the mode, so raw and max have the same gradient as mean.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 datasets==4.7.0 \
        wandb==0.31.0 openai==2.54.0
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps comlrl==1.4.3
    PYTHON="$folder/venv/bin/python"
fi
"$PYTHON" -W ignore - 2>"$folder/log" <<'EOP' || { cat "$folder/log"; exit 1; }
from importlib.metadata import version
from types import SimpleNamespace

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

assert version("comlrl") == "1.4.3"
PAD, END, GO, A, B = range(5)
words = Tokenizer(models.WordLevel({"<pad>": PAD, "<end>": END, "go": GO, "a": A, "b": B}, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


class Agent(torch.nn.Module):
    """The next token depends on the last one alone, so a row of the gradient tells what was trained behind that token."""

    def __init__(self):
        super().__init__()
        self.table, self.config = torch.nn.Parameter(torch.zeros(5, 5)), SimpleNamespace()

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.table[input_ids])

    def generate(self, **_):
        return SimpleNamespace(sequences=torch.tensor([[GO, A, END] + [PAD] * 5, [GO] + [B] * 6 + [END]]))


gradients = []
for mode in ("mean", "raw", "max", "rloo"):
    agent, options = Agent(), MAGRPOConfig(num_agents=1, num_generations=2, num_turns=1, advantage_mode=mode)
    trainer = MAGRPOTrainer(agents=[agent], tokenizer=tokenizer, reward_func=lambda texts: [0.0] * len(texts), args=options)
    data = trainer._generate_completions(agent, [{"prompt": "go"}], agent_idx=0, num_return_sequences=2, max_new_tokens=7)
    trainer._compute_loss_with_gradients(agent, data, [1.0, 0.0]).backward()
    gradients.append(agent.table.grad)
print(f"texts {data['completions'][0]}, trained tokens {[len(tokens) for tokens in data['completion_input_ids'][0]]}")
print(f"gradient of padding behind the end mark {gradients[0][END, PAD]:.1f}, behind padding {gradients[0][PAD, PAD]:.1f}")
assert data["completions"] == [["a", "b b b b b b"]] and gradients[0][END, PAD] < 0 and gradients[0][PAD, PAD] < -1
print(f"gradients of the four modes are equal: {all(torch.allclose(each, gradients[0]) for each in gradients)}")
assert all(torch.allclose(each, gradients[0]) for each in gradients)
EOP
