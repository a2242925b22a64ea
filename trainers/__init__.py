"""Trainers: `python -m trainers.grpo`, `python -m trainers.sft`. Nothing heavy is imported here."""
