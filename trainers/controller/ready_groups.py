"""Ready groups that no step has trained on, kept with a checkpoint, so that their episodes are not sampled again.

Their episodes are JSON lines in a file of the checkpoint; the rest of the groups is in its manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Group, read_jsonl
from forge_env.core.errors import UserError

READY_FILE = "ready.jsonl"


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    number: int
    """Of its prompt."""
    deadline: int
    """The step, from 0, that trains on it at the latest."""
    group: Group


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
        members, retries = _next(episodes, place["episodes"]), _next(episodes, place["replaced"])
        for episode in (*members, *retries):
            episode.line  # noqa: B018  is made here, and not on the event loop by the next checkpoint
        if len(members) < place["episodes"] or any(e.group_id != place["id"] for e in (*members, *retries)):
            raise UserError(f"{checkpoint / READY_FILE} does not hold the episodes of group {place['id']}")
        group = Group(task=members[0].task, episodes=members, id=place["id"], replaced=retries)
        groups.append(ReadyGroup(place["number"], place["deadline"], group))
    return groups


def _next(episodes: Iterator[Episode], count: int) -> tuple[Episode, ...]:
    return tuple(islice(episodes, count))
