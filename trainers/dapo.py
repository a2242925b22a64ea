"""DAPO: decoupled clip and dynamic sampling policy optimisation (arXiv 2503.14476).

    python -m trainers.dapo --env code_exec
    python -m trainers.dapo --env math --dapo.overlong_filtering true --dapo.overlong_penalty 0

Its four parts: the upper clip is wider than the lower one (Clip-Higher); every sampled token weighs the same; a group
whose episodes all have one reward is dropped and another one sampled (dynamic sampling); an episode that comes near the
largest length loses reward (soft overlong punishment), or is not learned from once it is cut off (overlong filtering,
which the paper's ablation starts from; verl's recipe leaves it off, and so does this page).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from forge_env.core.errors import UserError
from trainers.config import AlgorithmConfig, RunConfig
from trainers.objective.losses import DAPOLoss
from trainers.objective.objective import Objective, loss_options, make_objective
from trainers.objective.overlong import OverlongPunishment, is_truncated


@dataclass(kw_only=True)
class DAPOConfig(AlgorithmConfig):
    clip_low: float = 0.2
    clip_high: float = 0.28
    dynamic_sampling: bool = True
    """Whether groups whose episodes all have one reward are sampled anew."""
    signal_warning: int = 32
    """Dropped groups in a row after which the run says so, once; 0 is never. The summary counts them in any case."""
    signal_error: int = 512
    """Dropped groups in a row after which the run ends with an error; 0 is never, and a step
    is then waited for as long as groups come back."""
    overlong_length: int = 0
    """Sampled tokens of an episode from which on the whole penalty is due; 0 is what an episode can sample:
    env.max_turns times env.max_turn_tokens, or what its first prompt leaves of env.max_tokens where that is less."""
    overlong_buffer: float = 0.2
    """The share of that length, at its end, over which the penalty rises from 0; the paper's is 4096 of 20480."""
    overlong_penalty: float = 1.0
    """The whole penalty, in units of reward; 0 is none."""
    overlong_filtering: bool = False
    """Whether episodes that were cut off are left out of the loss; they stay in their group's baseline."""


@dataclass(kw_only=True)
class Config(RunConfig):
    dapo: DAPOConfig = field(default_factory=DAPOConfig)


def objective(config: Config) -> Objective:
    """J = E[ sum over all sampled tokens of min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) / their number ]

    with r = p_new(token) / p_engine(token), A = (R - mean(R)) / (std(R) + eps) over a group that has 0 < std(R), and R
    the episode's reward less the penalty of its length.
    """
    section = config.dapo
    for name in ("signal_warning", "signal_error"):
        if getattr(section, name) < 0:
            raise UserError(f"--dapo.{name} is {getattr(section, name)}; it is a number of groups, or 0 for never")
    loss = DAPOLoss(clip_low=section.clip_low, clip_high=section.clip_high, **loss_options(config, section))
    return make_objective(
        "dapo",
        loss,
        section,
        reward=_punishment(config).reward,
        skips=is_truncated if section.overlong_filtering else None,
        needs_signal=section.dynamic_sampling,
        signal_warning=section.signal_warning,
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


async def train(config: Config) -> None:
    """Warm up, measure, train, measure again."""
    from trainers.controller.policy_gradient import run_policy_gradient

    await run_policy_gradient("dapo", config, objective(config))


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
