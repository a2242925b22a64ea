"""Controls: what may be asked of the loop of a run while it trains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from forge_env.core.errors import UserError


class Controls:
    """The loop looks here before each step and each group. All methods are for the thread of the event loop.

    What is asked is taken up between two steps, so that no group is lost: a step in progress is finished first.
    """

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Wakes the loop, which also uses it itself."""
        self.is_paused = False
        """No step and no group begins; groups under way are finished."""
        self.evaluates = False
        """The weights of the engines are evaluated before the next step."""
        self.steps = 0
        """Optimizer steps of the run, from the next step on."""
        self.steps_begun = 0
        """The last step that has groups, or waits for them."""
        self.queue: Callable[[], dict[str, Any]] | None = None
        """What the loop says of its groups; None before its first step and after its last."""

    @property
    def holds(self) -> bool:
        return self.is_paused or self.evaluates

    def check(self) -> None:
        """Raises UserError if the run has no loop now."""
        if self.queue is None:
            raise UserError("the run takes no steps now: it is starting, or has taken its last one; wait, or stop it")

    def pause(self) -> None:
        """Let no step and no group begin until `resume`."""
        self.check()
        if self.is_paused:
            raise UserError("the run is paused already")
        self.is_paused = True
        self.news.set()

    def resume(self) -> None:
        self.check()
        if not self.is_paused:
            raise UserError("the run is not paused")
        self.is_paused = False
        self.news.set()

    def evaluate(self) -> None:
        """Evaluate the weights that the engines have before the next step begins."""
        self.check()
        if self.evaluates:
            raise UserError("an evaluation is asked for already, and begins before the next step")
        self.evaluates = True
        self.news.set()

    def check_steps(self, steps: int) -> None:
        """Raises UserError if the run cannot have this number of steps any more."""
        self.check()
        if self.steps_begun >= self.steps:
            raise UserError(
                f"step {self.steps} is the last one and has begun: when the run has ended, --resume with "
                f"--training.steps {steps} goes on with it"
            )
        if steps <= self.steps_begun:
            began = f"step {self.steps_begun} has begun"
            raise UserError(f"training.steps cannot be {steps}, as {began}: give more, or stop it")
