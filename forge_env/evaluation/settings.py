"""The settings of an evaluation. They have the same names in Python, in the file of a set and, with dashes, on the
command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from forge_env.core.errors import UserError, nearest
from forge_env.core.types import EpisodeLimits
from forge_env.core.usage import Prices
from forge_env.utils.settings import kinds_of, read_value


@dataclass(frozen=True, kw_only=True)
class EvalSettings:
    """All settings but the environment, the agent and the folder."""

    samples: int = 1
    """Attempts at each task."""
    tasks: int | None = None
    """Number of tasks; else 200, or as many as there are. With ids of tasks: how many are searched for them, else the
    first 200, 2,000 and 20,000."""
    task_ids: Sequence[str] = ()
    """Id of a task, as its episodes have it: only the named tasks are played."""
    split: str = "test"
    """Split of the tasks."""
    seed: int = 0
    """Seed of the tasks and the episodes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Option of the environment, such as level=2; may be repeated."""
    group_reward: str = ""
    """A function of your own, such as own.py:best, that compares the attempts at a task and adds a number to the reward
    of each."""
    concurrency: int = 16
    """Episodes at the same time."""
    temperature: float | None = None
    """Of sampling; else 1, or the endpoint's default."""
    top_p: float | None = None
    """Of sampling; else 1, or the endpoint's default."""
    deterministic: bool = False
    """Greedy, and exactly repeatable."""
    greedy: bool = True
    """Beside the attempts of a local model, one at each task at temperature 0."""
    thinking: str | None = None
    """Whether a model thinks: off, on or template; else as a checkpoint's training did, off for vllm:, and an endpoint
    decides."""
    adapter: str = ""
    """Folder of an adapter in PEFT's format, for the model of vllm:."""
    like: str = ""
    """Folder of the training run that openai: serves: warn if the endpoint renders prompts otherwise."""
    requests_per_minute: float | None = None
    """Rate limit of requests to an endpoint."""
    api_key_env: str = "OPENAI_API_KEY"
    """Variable that holds an endpoint's key."""
    answer_seconds: float | None = None
    """Time limit of one answer; else 1800 for a script, 120 for an endpoint, none for a local model."""
    idle_seconds: float | None = None
    """Silence after which an answer is given up: an endpoint then streams; else 300 for a local model."""
    price_prompt: float | None = None
    """Price of a million prompt tokens."""
    price_completion: float | None = None
    """Price of a million sampled tokens."""
    sinks: Sequence[str] = ()
    """Where episodes and figures go beside the folder: a sink by its name, NAME or NAME:MODE, or your own
    module:Class; may be repeated."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits of an episode, by the fields of `EpisodeLimits`. Else a checkpoint's training gives them, or the
    environment declares them."""

    @property
    def prices(self) -> Prices | None:
        if self.price_prompt is None and self.price_completion is None:
            return None
        return Prices(prompt=self.price_prompt or 0.0, completion=self.price_completion or 0.0)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return settings of plain values; a limit of an episode is a setting, too.

        Raises:
            UserError: an unknown name, or a value of another type.
        """
        limits = {name: kind for name, (kind, _) in kinds_of(EpisodeLimits).items()}
        kinds = {name: kind for name, (kind, _) in kinds_of(EvalSettings).items() if name != "limits"} | limits
        for name in options:
            if name not in kinds:
                raise UserError(f"an evaluation has no setting {name!r}. {nearest(str(name), kinds)}")
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        values = {name: read_value(value, kinds[name], name) for name, value in plain.items()}
        own = {name: value for name, value in values.items() if name not in limits}
        return cls(**own, limits={name: value for name, value in values.items() if name in limits})
