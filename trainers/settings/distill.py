"""Who teaches a policy gradient: the section `distill`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Interval

SELF = "self"
"""The teacher that is the policy itself, with a hint in its prompt."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    teacher: str = ""
    """On-policy distillation: a frozen model with the policy's vocabulary judges every token that the policy samples. A
    Hugging Face folder, a hub id, or a training run; --teacher.procs and --teacher.with_gpus say where it runs. "self"
    is the policy with a hint of the environment in its prompt. One of several environments may have its own teacher:
    --mixture.LABEL.distill.teacher."""
    coef: Annotated[float, Gt(0)] = 1.0
    """Weight of the reverse KL to the teacher."""
    top_k: Annotated[int, Interval(ge=0, le=256)] = 0
    """Tokens that the reverse KL is over: the teacher's most likely ones, and all others as one more. 0 estimates it at
    the sampled token, whose advantage gets coef times log p_teacher - log p_policy."""
    only: bool = False
    """The teacher alone is learned from. Rewards are measured, and are not part of the advantages."""
