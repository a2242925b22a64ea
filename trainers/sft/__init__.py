"""Supervised fine-tuning: `python -m trainers.sft`. `train.py` is the file to begin with."""

from trainers.sft.config import SFT, Config, SFTConfig

__all__ = ["SFT", "Config", "SFTConfig"]
