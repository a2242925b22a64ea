"""What supervised training learns from: the section `sft`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval


@dataclass(frozen=True, kw_only=True)
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
    epochs: Annotated[int, Ge(1)] = 3
    """Times that the data is gone through, unless --steps says when to end."""
    min_reward: float = 1.0
    """The least reward of an Episode that is learned from."""
    held_out_share: Annotated[float, Interval(ge=0, le=0.5)] = 0.02
    """Share of the conversations that is kept for the held-out loss before and after; 0 is none."""
    tokens_per_step: Annotated[int, Ge(0)] = 0
    """Tokens of one optimizer step at most; 0 is training.max_tokens_per_micro_batch for each micro-step."""
