"""The settings of a loop, and its state, which a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainers.controller.drop_counts import DropCounts
from trainers.controller.ledger import Ledger
from trainers.controller.ready_groups import READY_FILE, ReadyGroup, pack, unpack
from trainers.metrics.length_bias import LengthBias


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
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
    signal_error: int = 0
    """The run ends if so many of its first steps have no gradient; 0 is never."""
    in_waves: bool = False
    """Begin all admitted groups at once, as one wave, and the next wave when all are back. Then the clock does not
    decide which episodes run together."""
    in_windows: bool = False
    """The groups of every step until the next update (a window) are all taken before the first of these steps. Without
    it, each step takes its groups when it begins."""


@dataclass(kw_only=True)
class LoopState:
    """The progress of a run: its groups, counters and prompts."""

    steps_done: int = 0
    """Optimizer steps that were taken."""
    ledger: Ledger = field(default_factory=Ledger)
    """The fate of every prompt."""
    ready: Sequence[ReadyGroup] = ()
    """Groups that are ready, and that no step has taken."""
    lengths: LengthBias = field(default_factory=LengthBias)
    drops: DropCounts = field(default_factory=DropCounts)

    def to_json(self) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
        """The state as JSON, and the lines of further files of the checkpoint."""
        ready, lines = pack(self.ready)
        place = {
            "ledger": self.ledger.state_dict(),
            "ready": ready,
            "lengths": asdict(self.lengths),
            "drops": asdict(self.drops),
        }
        return place, {READY_FILE: lines} if ready else {}

    @classmethod
    def of(cls, place: Mapping[str, Any], steps_done: int, checkpoint: Path, ledger: Ledger) -> LoopState:
        """Read a state back from a checkpoint, into a new ledger."""
        state = cls(
            steps_done=steps_done,
            ledger=ledger,
            ready=unpack(place["ready"], checkpoint),
            lengths=LengthBias(**place["lengths"]),
            drops=DropCounts(**place["drops"]),
        )
        state.ledger.load_state_dict(place["ledger"])
        return state
