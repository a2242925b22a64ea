"""Settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainers.config import EnvConfig, RunConfig, TrainingConfig, WarmupConfig


@dataclass(kw_only=True)
class SFTConfig:
    data: str = ""
    """A .jsonl, .json, .csv or .parquet file, or a hub dataset ("owner/name:configuration"): Episodes or chats. Empty
    is the environment's own demonstrations, which the section `warmup` is about."""
    split: str = "train"
    """The split of a hub dataset."""
    streaming: bool = False
    """Read the data while training, rather than all of it at the start; it then needs --steps."""
    messages_field: str = "messages"
    """The column of the messages."""
    epochs: int = 3
    """Times that the data is gone through, unless --steps says when to end."""
    min_reward: float = 1.0
    """The least reward of an Episode that is learned from."""
    held_out_share: float = 0.02
    """Share of the conversations that is kept for the held-out loss before and after; 0 is none."""
    tokens_per_step: int = 0
    """Tokens of one optimizer step at most; 0 is training.max_tokens_per_micro_batch for each micro-step."""


@dataclass(kw_only=True)
class Config(RunConfig):
    env: EnvConfig = field(default_factory=lambda: EnvConfig(name=""))
    """Without a name it is code_exec, or with sft.data none."""
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=0, learning_rate=0.0))
    """steps 0 is 150 on demonstrations, and on data as many as its epochs have; learning_rate 0 is, on data, 3e-3 for
    the tiny model and 1e-5 for one that was given. Data is always packed on a GPU."""
    warmup: WarmupConfig = field(default_factory=lambda: WarmupConfig(until_success=1.0))
    sft: SFTConfig = field(default_factory=SFTConfig)
