"""The settings of a loop, and its state: where it begins or goes on, and what a checkpoint keeps of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainers.controller.ledger import Ledger
from trainers.controller.length_bias import LengthBias
from trainers.controller.ready_groups import ReadyGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How a loop goes."""

    steps: int
    """Optimizer steps in all, those before a checkpoint among them."""
    batch_size: int
    """Groups of one optimizer step."""
    staleness: int = 0
    """Optimizer steps between the weights that sampled a group and those that it trains, at most."""
    sync_interval: int = 1
    """Optimizer steps between two updates of the engines; at most staleness + 1, or no group could ever begin."""
    patience: float = 600.0
    """Seconds to wait for one step's groups while nothing moves."""
    in_waves: bool = False
    """All groups that may begin do so at once, in one wave, and the next ones when all are back. Which episodes run
    together then does not depend on the clock."""
    in_windows: bool = False
    """The groups of every step until the next update (a window) are all taken before the first of these steps. Without
    it, each step takes its groups when it begins."""


@dataclass(kw_only=True)
class LoopState:
    """What has become of a run's groups so far."""

    steps_done: int = 0
    """Optimizer steps that were taken."""
    ledger: Ledger = field(default_factory=Ledger)
    """What has become of every prompt."""
    ready: Sequence[ReadyGroup] = ()
    """Groups that are ready, and that no step has taken."""
    lengths: LengthBias = field(default_factory=LengthBias)
    faults: Counter[str] = field(default_factory=Counter)
    """Episodes of each fault, and groups that were dropped: "dropped groups" had too few valid episodes, "groups
    without signal" one reward for all of them; "idle groups" had that too and were trained on all the same, for the
    algorithm drops none. Each also "in a row", and the latter two ", longest row"."""
