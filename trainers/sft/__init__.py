"""Supervised fine-tuning: `python -m trainers.sft`. `train.py` is the file to begin with."""

from trainers.sft.config import Config, SFTConfig

__all__ = ["Config", "SFTConfig"]
