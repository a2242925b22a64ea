"""When a run samples, trains, publishes and ends: the options of the loop in the section `training`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from forge_env.utils.settings import BY_CASE, MAY_CHANGE, OR_BY_CASE


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    steps: Annotated[int, Ge(1), MAY_CHANGE] = 120
    """Optimizer steps."""
    batch_size: Annotated[int, Ge(1)] = 12
    """Global prompts (= groups) per micro-step, over all ranks."""
    gradient_accumulation_steps: Annotated[int, Ge(1)] = 1
    """Micro-steps per optimizer step; an optimizer step has batch_size times this many groups."""
    sync_interval: Annotated[int, Ge(1)] = 1
    """Optimizer steps between two updates of the engine's weights: the number of mini-batches per batch of rollouts, 4
    in GSPO's paper and 16 in DAPO's. Each mini-batch has the groups of one step."""
    seq_len: Annotated[int, Ge(0)] = 0
    """Another name for env.max_tokens, the most tokens of an episode and of a training row; 0 uses env.max_tokens. A
    turn may then use all of them, unless env.max_turn_tokens says otherwise."""
    mixture_by: Literal["groups", "tokens"] = "groups"
    """What the weights of several environments divide: the groups, or the sampled tokens."""
    packing: Annotated[bool, MAY_CHANGE] = False
    """Rows share sequences of max_tokens_per_micro_batch tokens; otherwise they are padded to one length. It is true
    by default if the trainer is on GPUs, unless training.attention is sdpa."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    loss: str = ""
    """A loss of your own instead of the algorithm's, "module:MyLoss"; see trainers/objective/plugins.py."""
    advantages: str = ""
    """A function of your own from the rewards of a group to its advantages, "module:function"."""
    reward: str = ""
    """A function of your own from an episode to its reward, "module:function"; the environment's is still recorded."""
    staleness: Annotated[int, Ge(0), OR_BY_CASE] = BY_CASE
    """Optimizer steps at most between the weights that sampled a group and the weights that it trains. -1 is
    sync_interval less one: rollouts and training then take turns."""
    step_seconds: Annotated[float, Gt(0), MAY_CHANGE] = 600.0
    """Deadline of one optimizer step. A run also waits this long for groups while nothing moves: no group comes back,
    no engine computes, no episode ends. It waits at least as long as a legal episode may take between two of these."""
    old_logprobs: Literal["auto", "generator", "trainer"] = "auto"
    """The denominator of the importance ratio: the logprobs of the engine that sampled the token, or of the trainer,
    frozen at each update of the engine's weights. With "trainer" the correction bounds trainer / engine. "auto" is
    "trainer" for GSPO if the trainer or the engine computes in bfloat16, and else "generator"."""
    mismatch_alarm: Annotated[float, Ge(0), MAY_CHANGE] = 0.0
    """The run warns if the mean |logprob difference| of trainer and engine on the same weights is above this. 0 is 1e-4
    if both compute in float32, and else 0.1."""

    signal_error: Annotated[int, Ge(0), MAY_CHANGE] = 5
    """The run ends with the reason if its first steps, this number of them, have no gradient, because no group had a
    signal: all its episodes have one reward. With dynamic sampling it ends after as many groups as these steps take,
    and later after 512 in a row. 0 never ends it."""

    @property
    def most_behind(self) -> int:
        """`staleness`, with -1 resolved."""
        return self.staleness if self.staleness >= 0 else self.sync_interval - 1

    @property
    def groups_per_step(self) -> int:
        return self.batch_size * self.gradient_accumulation_steps
