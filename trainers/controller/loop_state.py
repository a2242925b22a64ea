"""The settings of a loop, and its state, which a checkpoint keeps with the groups that no step has trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Group, read_jsonl
from forge_env.core.errors import UserError
from trainers.controller.drop_counts import DropCounts
from trainers.controller.ledger import Ledger

READY_FILE = "ready.jsonl"
"""Episodes of ready groups, in a checkpoint; the rest of the groups is in its manifest."""


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


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    number: int
    deadline: int
    """The step, from 0, that trains on it at the latest."""
    group: Group


@dataclass(kw_only=True)
class LoopState:
    """The progress of a run: its groups, counters and prompts."""

    steps_done: int = 0
    """Optimizer steps that were taken."""
    ledger: Ledger = field(default_factory=Ledger)
    """The fate of every prompt."""
    ready: Sequence[ReadyGroup] = ()
    """Groups that are ready, and that no step has taken."""
    drops: DropCounts = field(default_factory=DropCounts)

    def to_json(self) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
        ready, lines = pack(self.ready)
        place = {"ledger": self.ledger.state_dict(), "ready": ready, "drops": asdict(self.drops)}
        return place, {READY_FILE: lines} if ready else {}

    @classmethod
    def of(cls, place: Mapping[str, Any], steps_done: int, checkpoint: Path, ledger: Ledger) -> LoopState:
        """Read a state back from a checkpoint, into a new ledger."""
        state = cls(
            steps_done=steps_done,
            ledger=ledger,
            ready=unpack(place["ready"], checkpoint),
            drops=DropCounts(**place["drops"]),
        )
        state.ledger.load_state_dict(place["ledger"])
        return state


def pack(groups: Sequence[ReadyGroup]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The entries of the manifest, as JSON, and the lines of READY_FILE."""
    places = []
    lines = []
    for ready in groups:
        group = ready.group
        sizes = {"episodes": len(group.episodes), "replaced": len(group.replaced)}
        places.append({"number": ready.number, "deadline": ready.deadline, "id": group.id, **sizes})
        lines += [episode.line for episode in (*group.episodes, *group.replaced)]
    return places, lines


def unpack(places: Sequence[Mapping[str, Any]], checkpoint: Path) -> list[ReadyGroup]:
    """Read them back from a checkpoint's folder."""
    if not places:
        return []
    episodes = read_jsonl(checkpoint / READY_FILE)
    groups = []
    for place in places:
        members, replaced = _next(episodes, place["episodes"]), _next(episodes, place["replaced"])
        for episode in (*members, *replaced):
            episode.line  # noqa: B018  is made here, and not on the event loop by the next checkpoint
        if len(members) < place["episodes"] or any(e.group_id != place["id"] for e in (*members, *replaced)):
            raise UserError(f"{checkpoint / READY_FILE} does not hold the episodes of group {place['id']}")
        group = Group(task=members[0].task, episodes=members, id=place["id"], replaced=replaced)
        groups.append(ReadyGroup(place["number"], place["deadline"], group))
    return groups


def _next(episodes: Iterator[Episode], count: int) -> tuple[Episode, ...]:
    return tuple(islice(episodes, count))
