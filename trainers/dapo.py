"""DAPO: decoupled clip and dynamic sampling policy optimisation (arXiv 2503.14476).

    python -m trainers.dapo --env code_exec
    python -m trainers.dapo --env math --dapo.overlong_filtering true --dapo.overlong_penalty 0

Its four parts:

1. Clip-Higher: the upper clip is wider than the lower one.
2. Every sampled token weighs the same.
3. Dynamic sampling: a group with one reward for all its episodes is dropped, and another one is sampled.
4. Soft overlong punishment: an episode that comes near the largest length loses reward. Or overlong filtering: an
   episode that was cut off is not learned from. The paper's ablation starts from it; verl's recipe leaves it off, as
   this default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Interval

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from trainers.algorithm import Algorithm, loss_options, make_objective
from trainers.api import main
from trainers.config import RunConfig
from trainers.objective.loss_base import ClippedLoss
from trainers.objective.settings import AlgorithmConfig

if TYPE_CHECKING:
    from trainers.objective.loss_call import Loss
    from trainers.objective.objective import Objective


@dataclass(frozen=True, kw_only=True)
class DAPOConfig(AlgorithmConfig):
    clip_low: Annotated[float, Interval(ge=0, le=1)] = 0.2
    clip_high: Annotated[float, Ge(0)] = 0.28
    dynamic_sampling: bool = True
    """Sample a group anew if all its episodes have one reward."""
    overlong_length: Annotated[int, Ge(0)] = 0
    """From this number of sampled tokens in an episode on, the penalty is due in full. 0 is the most that an episode
    can sample: env.max_turns times env.max_turn_tokens; without env.compact_at it is what its first prompt leaves of
    env.max_tokens if that is less."""
    overlong_buffer: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """The penalty rises from 0 over this share of that length, at its end; 4096 of 20480 tokens in the paper."""
    overlong_penalty: Annotated[float, Ge(0)] = 1.0
    """The full penalty, in units of reward; 0 is none."""
    overlong_filtering: bool = False
    """Leave episodes that were cut off out of the loss; they stay in their group's baseline."""


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    dapo: DAPOConfig = field(default_factory=DAPOConfig)


class DAPOLoss(ClippedLoss):
    """Decoupled clip: per token -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), the mean over all valid tokens.

    Equations 8, 10 and 12 of arXiv 2503.14476, with r = p_new / p_engine. It has no KL. TRL's "dapo" and verl's
    "token-mean" divide by the tokens of the whole step over all ranks; `normalizer` does the same here.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPunishment:
    """The soft overlong punishment, equation 13: 0, then a straight line down, then -penalty.

    The line ends at `length`, as in the paper. In verl it goes on.

    >>> punishment = OverlongPunishment(length=100, buffer=0.2)
    >>> [punishment(tokens) for tokens in (80, 90, 100, 200)]
    [0.0, -0.5, -1.0, -1.0]
    """

    length: int
    """From this number of sampled tokens in an episode on, the penalty is due in full."""
    buffer: float = 0.2
    """The penalty rises from 0 over this share of `length`, at its end."""
    penalty: float = 1.0
    context: int = 0
    """Prompt and sampled tokens of an episode at most; 0 means no limit. With a limit, the length of an episode is at
    most what its first prompt leaves of it: no episode can sample more."""

    def __post_init__(self) -> None:
        if self.length < 1 or not 0 <= self.buffer <= 1 or not self.penalty >= 0:
            raise UserError(
                f"overlong_length is {self.length}, overlong_buffer {self.buffer} and overlong_penalty {self.penalty}: "
                "the length is at least 1, the buffer a share of it from 0 to 1, and the penalty not negative"
            )

    def __call__(self, tokens: int, *, length: int = 0) -> float:
        """The punishment for this number of sampled tokens, from 0 down to -penalty; `length` 0 is the setting."""
        length = length or self.length
        width = self.buffer * length
        beyond = tokens - (length - width)
        if beyond <= 0:
            return 0.0
        return -self.penalty * (beyond / width if tokens < length else 1.0)

    def of_episode(self, episode: Episode) -> float:
        """The punishment for the tokens that an episode sampled in all its turns."""
        length = self.length
        if self.context and episode.work:
            length = max(1, min(length, self.context - len(episode.work[0].prompt_ids)))
        return self(episode.num_sampled, length=length)


def is_truncated(episode: Episode) -> bool:
    """Whether a limit of tokens, turns or time ended the episode."""
    return episode.outcome is Outcome.TRUNCATED


def loss(config: Config) -> DAPOLoss:
    section = config.dapo
    return DAPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config))


def objective(config: Config, loss: Loss) -> Objective:
    section = config.dapo
    if section.normalization == "mean" and section.overlong_penalty > 0:
        raise UserError(
            f"--dapo.normalization is 'mean', which needs rewards of 0 or more, and --dapo.overlong_penalty is "
            f"{section.overlong_penalty:g}, which makes some negative: set --dapo.overlong_penalty 0"
        )
    return make_objective(
        config,
        loss,
        addition=_punishment(config).of_episode,
        skips=is_truncated if section.overlong_filtering else None,
        needs_signal=section.dynamic_sampling,
    )


def _punishment(config: Config) -> OverlongPunishment:
    """The punishment of the settings. overlong_length 0 means max_turns * max_turn_tokens."""
    section, env = config.dapo, config.env
    return OverlongPunishment(
        length=section.overlong_length or env.max_turns * env.max_turn_tokens,
        buffer=section.overlong_buffer,
        penalty=section.overlong_penalty,
        context=0 if section.overlong_length or env.compact_at else env.max_tokens,
    )


DAPO = Algorithm(name="dapo", config=Config, loss=loss, objective=objective)
"""J = E[ sum over all sampled tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) / their number ]

with r = p_new(token) / p_engine(token), A = (R - mean(R)) / (std(R) + eps) over a group with 0 < std(R)
(`trainers.objective.advantages.group_relative`), and R the episode's reward less the penalty of its length.
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.dapo:DAPO"))
