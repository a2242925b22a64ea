"""LoopWork: the work that a `Loop` schedules. A run implements it with actors, a test without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forge_env.core.episode import Group
from forge_env.core.faults import SHRINK
from forge_env.rollout.rollout import GroupSpec
from trainers.controller.loop_state import LoopState


class LoopWork(Protocol):
    """The work of a `Loop`: it decides when, and this does it.

    A class that inherits from the protocol has defaults for what it leaves out: no windows, no evaluations between the
    first and the last, no checkpoints, a group trained on with two valid episodes.
    """

    @property
    def engine_steps(self) -> int:
        """Optimizer steps behind the weights that every engine has."""
        ...

    # ---- groups ----

    def spec(self, number: int) -> GroupSpec:
        """The group of a number; there is one for every number from 0 on."""
        ...

    async def run_group(self, spec: GroupSpec) -> Group:
        """Run one group.

        Raises:
            ReplicaDied: its process died in every try; the group is dropped.
        """
        ...

    async def run_wave(self, specs: Sequence[GroupSpec]) -> Sequence[Group]:
        """Run groups in lockstep; called instead of `run_group` if the settings say waves."""
        raise NotImplementedError

    def keeps(self, group: Group) -> bool:
        """Whether a group has enough valid episodes to be trained on."""
        return SHRINK.keeps(group)

    def dropped(self, group: Group, rewards: Sequence[float]) -> None:
        """Take note of a group that dynamic sampling drops, with the task rewards of its valid episodes."""

    async def progress(self) -> object:
        """A value that changes whenever engines or environments make progress.

        By default only groups that come back count as progress.
        """
        return None

    # ---- steps ----

    async def begin_window(self, batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        """Prepare a window; awaited before its first step, with the groups of all its steps.

        Returns:
            Metrics of the first step.
        """
        return {}

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Make the samples of a step's groups, and take one optimizer step on them; returns its metrics."""
        ...

    async def publish_weights(self, step: int) -> dict[str, float]:
        """Publish the trainer's weights after `step` steps; returns when the next step cannot change the copy."""
        ...

    async def pull_weights(self, step: int) -> dict[str, float]:
        """Let the engines pull the published weights; returns when `engine_steps` is `step`."""
        ...

    async def prove_weights(self, step: int) -> dict[str, float]:
        """Check that the engines have the weights that they pulled last; sampling goes on meanwhile."""
        return {}

    # ---- between two steps ----

    def record_step(self, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        """Write down a step that is done."""

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights after a step are evaluated; asked only of those that the engines get."""
        return False

    async def evaluate(self, step: int) -> None:
        """Evaluate the weights after a step. Every engine has them, and gets no others meanwhile."""

    async def after_step(self, step: int, state: LoopState | None) -> None:
        """Awaited between two steps, once the first is recorded; saves checkpoints.

        Args:
            step: that is done.
            state: what a checkpoint keeps of the loop; None inside of a window, where groups are taken that no step
                has trained on.
        """
