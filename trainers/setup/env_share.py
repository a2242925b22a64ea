"""EnvShare: one environment of a run, with the config as it has it, and its share of the training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forge_env.rollout.factory import EnvFactory
from trainers.config import RunConfig
from trainers.setup.options.defaults import Default
from trainers.setup.run_tasks import RunTasks


@dataclass(frozen=True, kw_only=True)
class EnvShare:
    """Example: ``plan.share(episode.env).config.env.max_turns``"""

    label: str = ""
    """Names it in settings, metrics and episodes; "" is the only environment of a run."""
    weight: float = 1.0
    """Its share of the training is this part of the sum of all weights."""
    config: RunConfig
    """The settings of the run as this environment has them."""
    defaults: Mapping[str, Default]
    """By the names of the settings."""
    factory: EnvFactory
    source: str = ""
    """Its data as the user wrote it, for errors; "" for tasks of its own."""
    group_size: int = 0
    """Episodes of a group; 0 in supervised training."""
    tasks: RunTasks | None = None
    """Tasks of a local file, which are read before anything is started; None if the start reads them."""

    def about(self, sentences: Iterable[str]) -> list[str]:
        """Sentences about it, with its label."""
        return [f"{self.label}: {sentence}" if self.label else sentence for sentence in sentences]
