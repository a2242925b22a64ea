"""DAPO: decoupled clip and dynamic sampling policy optimisation (arXiv 2503.14476).

    python -m trainers.dapo --env code_exec
    python -m trainers.dapo --env math --dapo.overlong_filtering true --dapo.overlong_penalty 0

Its four parts: the upper clip is wider than the lower one (Clip-Higher); every sampled token weighs the same; a group
whose episodes all have one reward is dropped and another one sampled (dynamic sampling); an episode that comes near the
largest length loses reward (soft overlong punishment), or is not learned from once it is cut off (overlong filtering,
which the paper's ablation starts from; verl's recipe leaves it off, and so does this default).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Interval

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from trainers.algorithm import Algorithm
from trainers.config import RunConfig
from trainers.objective.loss_base import ClippedLoss
from trainers.objective.loss_call import Loss
from trainers.objective.objective import Objective, loss_options, make_objective
from trainers.settings.algorithm import AlgorithmConfig
from trainers.train import main


@dataclass(frozen=True, kw_only=True)
class DAPOConfig(AlgorithmConfig):
    clip_low: Annotated[float, Interval(ge=0, le=1)] = 0.2
    clip_high: Annotated[float, Ge(0)] = 0.28
    dynamic_sampling: bool = True
    """Whether groups whose episodes all have one reward are sampled anew."""
    signal_error: Annotated[int, Ge(0)] = 512
    """Dropped groups in a row after which the run ends with an error; 0 is never, and a step
    is then waited for as long as groups come back."""
    overlong_length: Annotated[int, Ge(0)] = 0
    """Sampled tokens of an episode from which on the whole penalty is due; 0 is what an episode can sample:
    env.max_turns times env.max_turn_tokens, or what its first prompt leaves of env.max_tokens where that is less."""
    overlong_buffer: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """The share of that length, at its end, over which the penalty rises from 0; the paper's is 4096 of 20480."""
    overlong_penalty: Annotated[float, Ge(0)] = 1.0
    """The whole penalty, in units of reward; 0 is none."""
    overlong_filtering: bool = False
    """Whether episodes that were cut off are left out of the loss; they stay in their group's baseline."""


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    dapo: DAPOConfig = field(default_factory=DAPOConfig)


class DAPOLoss(ClippedLoss):
    """Decoupled clip: per token -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), the mean over all valid tokens.

    Equations 8, 10 and 12 of arXiv 2503.14476, with r = p_new / p_engine. It has no KL. TRL's "dapo" and verl's
    "token-mean" divide by the tokens of the whole step over all ranks, which is what `normalizer` does here.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPunishment:
    """The soft overlong punishment, equation 13: nothing, then a straight line down, then the whole of it.

    verl's line goes on beyond `length`; the paper's, and this one, ends there.

    >>> punishment = OverlongPunishment(length=100, buffer=0.2)
    >>> [punishment(tokens) for tokens in (80, 90, 100, 200)]
    [0.0, -0.5, -1.0, -1.0]

    Raises:
        UserError: for a setting out of range.
    """

    length: int
    """Sampled tokens of an episode from which on the whole penalty is due."""
    buffer: float = 0.2
    """The share of `length`, at its end, over which the penalty rises from 0."""
    penalty: float = 1.0
    context: int = 0
    """Prompt and sampled tokens of an episode at most. Where it is above 0, the length of an episode is at most what
    its first prompt leaves of it: no episode can sample more."""

    def __post_init__(self) -> None:
        if self.length < 1 or not 0 <= self.buffer <= 1 or not self.penalty >= 0:
            raise UserError(
                f"overlong_length is {self.length}, overlong_buffer {self.buffer} and overlong_penalty {self.penalty}: "
                "the length is at least 1, the buffer a share of it from 0 to 1, and the penalty not negative"
            )

    def __call__(self, tokens: int, *, length: int = 0) -> float:
        """What an episode of so many sampled tokens gets, from 0 down to -penalty; `length` 0 is the setting."""
        length = length or self.length
        width = self.buffer * length
        beyond = tokens - (length - width)
        if beyond <= 0:
            return 0.0
        return -self.penalty * (beyond / width if tokens < length else 1.0)

    def length_of(self, episode: Episode) -> int:
        """The sampled tokens from which on the whole penalty is due for this episode, at least 1."""
        if not self.context or not episode.work:
            return self.length
        return max(1, min(self.length, self.context - len(episode.work[0].prompt_ids)))

    def of_episode(self, episode: Episode) -> float:
        """What an episode gets for the tokens that it sampled in all its turns."""
        return self(episode.num_sampled, length=self.length_of(episode))


def is_truncated(episode: Episode) -> bool:
    """Whether a limit ended the episode: of tokens, turns or time."""
    return episode.outcome is Outcome.TRUNCATED


def loss(config: Config) -> DAPOLoss:
    section = config.dapo
    return DAPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config))


def objective(config: Config, loss: Loss) -> Objective:
    section = config.dapo
    return make_objective(
        config,
        loss,
        addition=_punishment(config).of_episode,
        skips=is_truncated if section.overlong_filtering else None,
        needs_signal=section.dynamic_sampling,
        signal_error=section.signal_error,
    )


def _punishment(config: Config) -> OverlongPunishment:
    """The punishment of the settings: without a length of its own, that of an episode that samples all it can."""
    section, env = config.dapo, config.env
    return OverlongPunishment(
        length=section.overlong_length or env.max_turns * env.max_turn_tokens,
        buffer=section.overlong_buffer,
        penalty=section.overlong_penalty,
        context=0 if section.overlong_length else env.max_tokens,
    )


DAPO = Algorithm(name="dapo", config=Config, loss=loss, objective=objective)
"""J = E[ sum over all sampled tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) / their number ]

with r = p_new(token) / p_engine(token), A = (R - mean(R)) / (std(R) + eps) over a group that has 0 < std(R), which
is `trainers.objective.advantages.group_relative`, and R the episode's reward less the penalty of its length.
"""

if __name__ == "__main__":
    raise SystemExit(main("trainers.dapo:DAPO"))
