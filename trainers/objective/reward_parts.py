"""Reward vectors: the parts of a reward reach the advantages, each normalised in its group before their sum.

The sum of a reward's parts loses what tells them apart: (1, 0) and (0, 1) have one sum, and a part with a large spread
drowns the others. GDPO (arXiv 2601.05242) takes the advantage of each part over the siblings, as GRPO does of the sum:

    A = sum over k of w_k clip(A_k, -c_k, c_k),    A_k = (r_k - mean r_k) / (std r_k + eps)

Then it divides A by the deviation of A over the step; without a clip the mean is 0. Its conditioned reward: if a
part is below its bound, the episode has 0 of every other part, so that an easy part pays only beside a hard one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from annotated_types import Ge

from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError, nearest
from forge_env.core.reward_value import reaches
from forge_env.core.types import Outcome
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.settings import read_value
from trainers.objective.advantages import Advantages


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of the reward counts."""

    weight: float = 1.0
    """Of its advantage in the sum."""
    clip: Annotated[float, Ge(0)] = 0.0
    """The largest size of its advantage, before the weight; 0 is none."""
    at_least: float | None = None
    """The bound below which an episode has 0 of every other part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParts:
    """From the parts of the rewards of a group to one number for each episode, see this file's docstring."""

    parts: Mapping[str, Part]
    advantages: Advantages

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        """The sums of a group's valid episodes, in order. A part that a limit ended before its score counts 0."""
        for episode in episodes:
            missing = [name for name in self.parts if name not in episode.rewards]
            if missing and episode.outcome is Outcome.SCORED:
                raise UserError(f"the episode {episode.id}: {_no_part(missing[0], episode.rewards)}")
        values = [{name: episode.rewards.get(name, 0.0) for name in self.parts} for episode in episodes]
        bounds = {name: part.at_least for name, part in self.parts.items() if part.at_least is not None}
        low = [{name for name, bound in bounds.items() if not reaches(of_e[name], bound)} for of_e in values]
        columns = []
        for name, part in self.parts.items():
            of_part = [0.0 if lows - {name} else of_e[name] for of_e, lows in zip(values, low, strict=True)]
            bound = part.clip or math.inf
            columns.append([part.weight * min(max(each, -bound), bound) for each in self.advantages(of_part)])
        return [math.fsum(of_episode) for of_episode in zip(*columns, strict=True)]


def make_parts(
    settings_of_parts: Mapping[str, Any], option: str, advantages: Advantages, *, others: Mapping[str, object]
) -> RewardParts | None:
    """The reward vector of an algorithm's setting; None without one.

    Args:
        settings_of_parts: the setting: each part is a weight, or has the fields of `Part`.
        advantages: of one part in one group.
        others: settings that need a single number as the reward, by option; empty or false where they are not set.
    """
    kinds, parts = get_type_hints(Part, include_extras=True), dict[str, Part]()
    for name, settings in settings_of_parts.items():
        fields = settings if isinstance(settings, Mapping) else {"weight": settings}
        if unknown := next((field for field in fields if field not in kinds), None):
            raise UserError(f"there is no option {option}.{name}.{unknown}. {nearest(str(unknown), kinds)}")
        values = {field: read_value(value, kinds[field], f"{option}.{name}.{field}") for field, value in fields.items()}
        parts[name] = Part(**values)
    if not parts:
        return None
    if not any(part.weight for part in parts.values()):
        raise UserError(f"{option} has weights of 0 only, so that nothing would be trained: give one of them another")
    if other := next((other for other, is_given in others.items() if is_given), None):
        raise UserError(
            f"{option} takes advantages of the parts of a reward, and {other} needs one number: leave one out"
        )
    return RewardParts(parts=parts, advantages=advantages)


def check_names(names: Collection[str], env_class: type[Env], group_rewards: Sequence[str], option: str) -> None:
    """Refuse parts that an environment's reward does not have, where its class says which ones there are."""
    if not issubclass(env_class, ToolEnv) or any(
        getattr(env_class, name) is not getattr(ToolEnv, name) for name in ("step", "_all_scores")
    ):
        return
    there = [part.name for part in (*env_class._rewards, *env_class._rubric)] + [*group_rewards]
    for name in names:
        if name not in there:
            raise UserError(f"{option}.{name}: {_no_part(name, there)}")


def _no_part(name: str, there: Collection[str]) -> str:
    return f"its reward has no part {name!r}. {nearest(name, there)}" if there else f"its reward has no part {name!r}"
