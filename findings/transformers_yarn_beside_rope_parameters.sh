#!/bin/sh
# The usual edit that gives a model a longer context, in a folder that transformers 5 wrote.
# Packages: transformers 5.19.0. Guess: `rope_scaling` (yarn), added to config.json as the cards of Qwen's models tell, extends
# what the folder says; the base of the rotation stays the model's own, or loading says that two keys disagree.
# Seen: transformers 5 writes the base into `rope_parameters`. `rope_scaling` beside it replaces that dictionary whole: the base
# 1,000,000 becomes 10,000, without a word. The folder that transformers 4 wrote (base at the top) keeps its base.
# PYTHON may name an interpreter that has these packages; otherwise they are installed in a temporary folder.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv" >/dev/null
    "$folder/venv/bin/pip" install -q transformers==5.19.0 torch==2.13.0
    PYTHON="$folder/venv/bin/python"
fi
export HF_HUB_OFFLINE=1
"$PYTHON" - "$folder" <<'EOP'
import json
import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar, get_logger

assert version("transformers") == "5.19.0", version("transformers")
BASE = 1_000_000.0
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SIZES = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256, "initializer_range": 0.3},
}
said = []


class Said(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


disable_progress_bar()
get_logger().addHandler(Said(logging.WARNING))
warnings.simplefilter("error")
tokens = torch.randint(0, 64, (1, 60), generator=torch.Generator().manual_seed(0))


def edited(folder, **edit):
    """The folder's config.json with other keys (None: without); the base and the logits that transformers then has."""
    before = (folder / "config.json").read_text()
    keys = {key: value for key, value in (json.loads(before) | edit).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(keys))
    rope = AutoConfig.from_pretrained(folder).rope_parameters
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(tokens).logits
    (folder / "config.json").write_text(before)
    return rope["rope_theta"], logits.log_softmax(-1)


for family in ("qwen3", "llama", "mistral"):
    folder = Path(sys.argv[1]) / family
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": BASE}
    config = AutoConfig.for_model(family, **SIZES, rope_parameters=rope)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["rope_parameters"] == rope
    right, meant = edited(folder, rope_parameters=YARN | {"rope_theta": BASE})
    said.clear()
    wrong, seen = edited(folder, rope_scaling=YARN)
    of_four, old = edited(folder, rope_parameters=None, rope_scaling=YARN, rope_theta=BASE)
    apart = float((seen - meant).abs().max())
    print(f"{family}: yarn in rope_parameters {right:,.0f}; rope_scaling beside it {wrong:,.0f}, {apart:.2f} nats off;", end=" ")
    print(f"as transformers 4 wrote it {of_four:,.0f}; words: {[text for text in said if 'rope' in text or 'theta' in text]}")
    assert (right, wrong, of_four) == (BASE, 10_000.0, BASE) and apart > 0.1 and torch.equal(old, meant)
    assert not [text for text in said if "rope" in text or "theta" in text]
EOP
