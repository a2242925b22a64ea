"""What the algorithms have in common; each one adds its own section."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Interval

from forge_env.core.types import HOTTEST


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """What the sections of all policy-gradient algorithms have in common; an algorithm sets its own defaults."""

    clips_within_rounding: ClassVar[bool] = False
    """Whether the clip range is narrower than what a 16-bit engine's logprobs are off by."""

    n_samples: Annotated[int, Ge(1)] = 8
    """Episodes of one group."""
    temperature: Annotated[float, Interval(ge=0.01, le=HOTTEST)] = 1.0
    """The sampling temperature; all logprobs are taken at it."""
    credit: Literal["episode", "turn"] = "episode"
    """"episode": every token answers for the whole reward of its episode. "turn": for the reward from its own turn
    on."""
    beta: Annotated[float, Ge(0)] = 0.0
    """Weight of the KL penalty; 0 is none. Without services.ref_model it is against the generator's own logprobs; with
    lora.rank it is against the model that the adapters started from."""
    kl_in: Literal["loss", "reward"] = "loss"
    """"loss": the penalty is a term of the loss. "reward": it is subtracted from the episode's reward before the
    advantages."""
    kl: Literal["auto", "k1", "k2", "k3"] = "auto"
    """Estimator of the KL penalty; "auto" is k3 in the loss, and k1 in the reward. The gradient of k2 is
    the KL's own on the policy's own samples."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """"token" weighs every sampled token alike, "sequence" every episode, "constant" is Dr.GRPO's sum of tokens."""
    constant: Annotated[float, Ge(0)] = 0.0
    """What "constant" divides an episode's sum by; 0 is env.max_tokens."""
    correction: Literal["none", "truncate", "mask", "sequence_truncate", "sequence_mask"] = "mask"
    """What happens to tokens, or to whole episodes, if their ratio of trainer to engine is out of the two bounds
    below."""
    correction_low: Annotated[float, Interval(ge=0, le=1)] = 1e-4
    correction_high: Annotated[float, Ge(1)] = 100.0
    normalization: Literal["none", "group", "batch", "mean"] = "group"
    """What divides the advantages: "group" and "batch" are the standard deviation of the rewards of the group, or of
    the whole batch; "mean" is the mean reward of the group, as in MaxRL, and needs rewards of 0 or more."""
    std_ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1, 0 by n."""
    std_eps: Annotated[float, Ge(0)] = 1e-4
    reward_parts: dict[str, Any] = field(default_factory=dict)
    """Take advantages of these parts of the reward, each normalised in its group, and sum them (GDPO):
    `--ALGORITHM.reward_parts.PART.weight`, `.clip` bounds its advantage, and below `.at_least` the others are 0. Empty
    takes them of the reward itself."""
