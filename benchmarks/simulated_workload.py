"""What the episodes of a simulated run are made of: tokens and seconds of every turn, recorded or drawn.

A workload is a pool of groups. A run draws from it by the number of the prompt, so that two runs with one seed meet the
same groups, whatever their settings are.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import UserError

RECORDED = Path(__file__).parent / "recorded_turns.json"
POOL = 512  # groups of a workload that is drawn


class Turn(NamedTuple):
    """One turn of an episode, e.g. `Turn(prompt_tokens=76, tokens=32, env_seconds=0.05)`."""

    prompt_tokens: int
    """Tokens that the environment added before it."""
    tokens: int
    """Tokens that the model sampled; at least one."""
    env_seconds: float
    """How long the environment took to react."""


EpisodePlan = tuple[Turn, ...]
GroupPlan = tuple[EpisodePlan, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A pool of groups to draw from."""

    name: str
    groups: tuple[GroupPlan, ...] = field(repr=False)

    def group(self, seed: int, number: int) -> GroupPlan:
        """The group of a prompt."""
        return self.groups[random.Random(seed * 1_000_003 + number).randrange(len(self.groups))]

    @property
    def episodes(self) -> list[EpisodePlan]:
        return [episode for group in self.groups for episode in group]

    @property
    def episodes_per_group(self) -> float:
        return len(self.episodes) / len(self.groups)

    @property
    def sampled(self) -> float:
        """Sampled tokens of an episode, in the mean."""
        return sum(turn.tokens for episode in self.episodes for turn in episode) / len(self.episodes)

    @property
    def trained(self) -> float:
        """Tokens of an episode that the trainer sees, in the mean."""
        prompts = sum(turn.prompt_tokens for episode in self.episodes for turn in episode)
        return prompts / len(self.episodes) + self.sampled

    @property
    def env_seconds(self) -> float:
        """Seconds of an episode that its environment takes, in the mean."""
        return sum(turn.env_seconds for episode in self.episodes for turn in episode) / len(self.episodes)

    def quantile(self, share: float) -> float:
        """Sampled tokens of an episode that this share of all episodes stays below."""
        lengths = sorted(sum(turn.tokens for turn in episode) for episode in self.episodes)
        return lengths[min(int(share * len(lengths)), len(lengths) - 1)]

    @property
    def description(self) -> str:
        """How long its episodes are."""
        median, last = self.quantile(0.5), self.quantile(1.0)
        return (
            f"{self.sampled:,.0f} sampled tokens an episode, median {median:,.0f}, 99th percentile "
            f"{self.quantile(0.99) / median:.1f} and longest {last / median:.1f} times that; "
            f"{self.trained:,.0f} tokens to train on; {self.env_seconds:.1f} s in the environment"
        )

    def stretched(self, mean_tokens: float) -> Workload:
        """The same shape with `mean_tokens` sampled tokens to an episode; the environments stay as they are."""
        factor = mean_tokens / self.sampled
        groups = tuple(
            tuple(
                tuple(turn._replace(tokens=max(1, round(turn.tokens * factor))) for turn in episode)
                for episode in group
            )
            for group in self.groups
        )
        return Workload(f"{self.name}, stretched to {mean_tokens:g} tokens an episode", groups)


def lognormal(
    sigma: float,
    *,
    median_tokens: float = 400.0,
    turns: tuple[int, int] = (1, 5),
    prompt_tokens: int = 150,
    env_median: float = 0.5,
    siblings: int = 8,
    most_tokens: int = 16_384,
    seed: int = 0,
) -> Workload:
    """Groups whose turns are lognormal, independent of each other: sampled tokens and the environment's seconds alike.

    Args:
        sigma: of both; the 99th percentile of a turn is exp(2.33 * sigma) times its median.
        median_tokens: sampled tokens of a turn.
        turns: of an episode, from and to, all as likely.
        prompt_tokens: that the environment adds before each turn.
        env_median: seconds.
        siblings: episodes of a group.
        most_tokens: sampled tokens at which an episode is cut off.
        seed: of the pool.
    """
    rng = random.Random(seed)

    def episode() -> EpisodePlan:
        made, left = [], most_tokens
        for _ in range(rng.randint(*turns)):
            tokens = min(left, max(1, round(rng.lognormvariate(math.log(median_tokens), sigma))))
            made.append(Turn(prompt_tokens, tokens, rng.lognormvariate(math.log(env_median), sigma)))
            left -= tokens
            if not left:
                break
        return tuple(made)

    groups = tuple(tuple(episode() for _ in range(siblings)) for _ in range(POOL))
    return Workload(f"lognormal turns, sigma {sigma:g}", groups)


def constant(*, tokens: int, turns: int = 1, env_seconds: float = 0.0, siblings: int = 8) -> Workload:
    """Groups that are all the same."""
    return Workload("constant", (((Turn(0, tokens, env_seconds),) * turns,) * siblings,))


def recorded(path: Path = RECORDED) -> Workload:
    """The turns of a real run, as `record` wrote them."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    groups = tuple(tuple(tuple(Turn(*turn) for turn in episode) for episode in group) for group in saved["groups"])
    return Workload(saved["name"], groups)


def of_run(folder: Path) -> Workload:
    """The turns of a run's training episodes.

    Raises:
        UserError: when the folder has none.
    """
    path = folder / "episodes" / "train.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} is no folder of a run: {path} is missing")
    groups: dict[str, list[EpisodePlan]] = {}
    for episode in read_jsonl(path):
        if episode.is_trainable:
            groups.setdefault(episode.group_id, []).append(_plan(episode))
    if not groups:
        raise UserError(f"{path} has no episode with sampled turns")
    return Workload(f"turns of {folder.name}", tuple(tuple(group) for group in groups.values()))


def record(workload: Workload, path: Path = RECORDED) -> None:
    """Write a workload down, one group to a line."""
    lines: Iterable[str] = (json.dumps(group, separators=(",", ":")) for group in workload.groups)
    text = f'{{"name": {json.dumps(workload.name)}, "groups": [\n' + ",\n".join(lines) + "\n]}\n"
    path.write_text(text, encoding="utf-8")


def _plan(episode: Episode) -> EpisodePlan:
    return tuple(Turn(len(t.prompt_ids), len(t.token_ids), round(t.env_seconds, 5)) for t in episode.turns)
