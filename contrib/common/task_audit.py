"""What an environment says about each task, if its tasks are files of others, so that `forge-env check` can audit
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_env.core.types import Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheat:
    """What agents do to be paid without doing the work. An environment lists them as `known_cheats`."""

    name: str
    """What it does, as "the tests are replaced"."""
    hole: str
    """What is wrong with a grader that pays it."""
    script: str
    """Its commands."""
    pattern: str = ""
    """A regular expression that a text argument of a call matches in an episode with the cheat; "" is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAudit:
    """How one task is audited."""

    name: str
    task: Task
    solution: Callable[[list[Message]], Any]
    """Plays the solution: from the conversation so far to the next assistant message."""
    cheats: Mapping[str, Sequence[Message]]
    """What a cheat does -> its assistant messages."""
    verifier_limit: float = 0.0
    """Seconds that the verifier may take; 0 for no limit. It took `info["verdict"]["verifier_seconds"]`."""
    fetches: str = ""
    """What the verifier seems to fetch from a network; named if the solution does not earn 1."""
