"""Trainers: `python -m trainers.grpo`, `python -m trainers.sft`. Nothing heavy is imported here."""

import importlib.util
import sys

# argv is so while Python looks for the module of `python -m`. These modules import torch, which the gym half lacks.
if sys.argv[:1] == ["-m"] and importlib.util.find_spec("torch") is None:
    from trainers.setup.packages import missing

    print(f"error: {missing('torch')}", file=sys.stderr)
    sys.exit(2)
