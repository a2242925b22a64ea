"""Defaults by what is trained: the one table of this file gives a setting of -1 the value of its case.

`take_defaults` sets them once, in the plan of a run. docs/configuration.md shows the table, and its sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import declared_limits
from forge_env.utils.settings import BY_CASE, with_values
from trainers.config import RunConfig
from trainers.model.shape import ModelShape

C = TypeVar("C", bound=RunConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """The default of a setting in the case of a run."""

    value: float
    reason: str
    """In brackets behind the value; "" is not worth a mention."""
    is_taken: bool = False
    """Whether the run has it, as no setting says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the table: what is trained, and the defaults of it."""

    name: str
    learning_rate: float
    """Of policy gradients."""
    supervised_rate: float
    """Of supervised steps: of the warm-up, and of supervised training."""
    reason: str
    """For the learning rates."""
    rising_part: int
    """The learning rate of policy gradients rises over the steps divided by this, 10 steps at most."""
    warmup_steps: int
    limits: EpisodeLimits


RECIPE = "the tiny CPU recipe, measured in README.md"
_SMALL = EpisodeLimits(max_turns=3, max_turn_tokens=32, max_tokens=512, episode_seconds=300.0)
TINY = Case(
    name="a tiny model made on the spot",
    learning_rate=6e-4,
    supervised_rate=3e-3,
    reason=RECIPE,
    rising_part=20,
    warmup_steps=200,
    limits=_SMALL,
)
LARGER = Case(
    name="a model of size 100m made on the spot",
    learning_rate=6e-5,
    supervised_rate=6e-4,
    reason="as in recipes/100m_code_exec.yaml",
    rising_part=20,
    warmup_steps=200,
    limits=_SMALL,
)
ALL_WEIGHTS = Case(
    name="all weights of a given model",
    learning_rate=1e-6,
    supervised_rate=1e-5,
    reason="all weights of a given model; GRPO of TRL and verl has 1e-6 for them",
    rising_part=2,
    warmup_steps=0,
    limits=EpisodeLimits(),
)
ADAPTERS = Case(
    name="adapters of a given model",
    learning_rate=1e-5,
    supervised_rate=1e-4,
    reason="adapters of a given model: ten times the rate of all weights, as in thinkingmachines.ai/blog/lora",
    rising_part=2,
    warmup_steps=0,
    limits=EpisodeLimits(),
)


def case_of(config: RunConfig) -> Case:
    """What a run trains."""
    if config.model.path:
        return ADAPTERS if config.lora.is_on else ALL_WEIGHTS
    return LARGER if config.model.size == "100m" else TINY


def rising_steps(config: RunConfig, steps: int) -> int:
    """The number of optimizer steps over which the learning rate rises from 0.

    This default follows the number of steps, which may change when a run goes on: it is never set.
    """
    if config.training.warmup_steps != BY_CASE:
        return config.training.warmup_steps
    if config.algorithm is None and not config.model.path:
        return 0
    return min(10, steps // case_of(config).rising_part)


def take_defaults(config: C, shape: ModelShape | None) -> tuple[C, dict[str, Default]]:
    """Give each setting that is -1 the default of its case, but `training.warmup_steps`: see `rising_steps`.

    Args:
        config: of the run.
        shape: of the model; None where its sizes are not known.

    Returns:
        The config with these values, and the defaults by the names of the settings, also of those that the user set.
    """
    defaults = dict(_defaults(config, shape))
    taken = {name: default for name, default in defaults.items() if value_of(config, name) == BY_CASE}
    defaults |= {name: replace(default, is_taken=True) for name, default in taken.items()}
    return with_values(config, {name: default.value for name, default in taken.items()}), defaults


def take_again(config: C, defaults: Mapping[str, Default], shape: ModelShape | None) -> tuple[C, dict[str, Default]]:
    """As `take_defaults`, for a config that has defaults already: more is known now, which they depend on."""
    taken = {name: BY_CASE for name, default in defaults.items() if default.is_taken}
    return take_defaults(with_values(config, taken), shape)


def is_warmed_up(config: RunConfig, case: Case) -> bool:
    """Whether the run has steps on demonstrations; supervised training with an environment counts, too."""
    if config.algorithm is None:
        return bool(config.env.name)
    return config.warmup.steps > 0 or (config.warmup.steps == BY_CASE and case.warmup_steps > 0)


def value_of(config: RunConfig, name: str) -> Any:
    section, _, field = name.partition(".")
    return getattr(getattr(config, section), field)


def _defaults(config: RunConfig, shape: ModelShape | None) -> Iterator[tuple[str, Default]]:
    case, is_supervised = case_of(config), config.algorithm is None
    rate = case.supervised_rate if is_supervised else case.learning_rate
    yield "training.learning_rate", Default(value=rate, reason=case.reason)
    is_shown = is_warmed_up(config, case)
    yield "warmup.learning_rate", Default(value=case.supervised_rate, reason=case.reason if is_shown else "")
    why = "" if is_supervised else "a given model needs none" if config.model.path else RECIPE
    yield "warmup.steps", Default(value=case.warmup_steps, reason=why)
    yield from _limits(config, case, shape)


def _limits(config: RunConfig, case: Case, shape: ModelShape | None) -> Iterator[tuple[str, Default]]:
    """What the environment declares, or else the case has; `training.seq_len` and the model's positions bound it."""
    env, longest = config.env, config.training.seq_len
    try:
        declared = declared_limits(env_class(env.name), env.options, name=env.name) if env.name else {}
    except UserError:
        declared = {}  # the checks of the environment report it
    why = "as in forge-env eval" if config.model.path else RECIPE
    limits = {name: Default(value=value, reason=why) for name, value in asdict(case.limits).items()}
    limits |= {name: Default(value=value, reason=f"declared by {env.name}") for name, value in declared.items()}
    if longest > 0:
        of_row = Default(value=longest, reason="training.seq_len")
        limits |= {"max_tokens": of_row, "max_turn_tokens": of_row}
    positions = shape.max_position_embeddings if shape is not None else 0
    if not longest and 0 < positions < limits["max_tokens"].value:
        limits["max_tokens"] = Default(value=positions, reason="all that the model reads")
    for name, limit in limits.items():
        is_shown = env.name and (name in declared or name in ("max_turns", "max_turn_tokens", "max_tokens"))
        yield f"env.{name}", limit if is_shown else Default(value=limit.value, reason="")
