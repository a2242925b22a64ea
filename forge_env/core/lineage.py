"""Where a row of an episode comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The origin of one row of an episode, and the reason for it. Turns are numbered as in `Episode.turns`, from 0 on.

    Example: ``Lineage(turn=4, parent=1, known_by="call", kind="sub_agent", why="its text is an argument of a call")``
    """

    turn: int
    """The row's first turn."""
    parent: int | None = None
    """The turn of another row that it branches from: the last one that both have, or that asked for an agent; the first
    turn of the other row, if they share a prompt and no answer. None for a row without a parent."""
    known_by: str = ""
    """What the parent is known by: the field in which the client named it, "call" for a call that holds the request's
    text, "messages" for equal messages, "template" or "summary" for a row of the same conversation. "" without a
    parent."""
    agent: str = ""
    """The client's own name for the agent, thread or session; "" if it gives none."""
    kind: str = ""
    """Why it began, as a word for counting, such as "edited_message"; "" for the row that began first."""
    why: str = ""
    """What differs from an earlier row, in a sentence that lets a user mend his agent."""
