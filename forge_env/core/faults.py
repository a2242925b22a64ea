"""What happens to a group in which an episode ends by a fault or a TIMEOUT.

Such an episode has no reward. It is never scored as zero and takes no part in its group's baseline. A FaultPolicy
decides whether it is run again, and how many valid siblings a group needs to be trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome

_NAMED = 20
MAX_FAULTS_IN_A_ROW = 32
"""Groups with too few valid episodes, after which something is broken for good, and a run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPolicy:
    """What to do about faulted siblings.

    "shrink" keeps the group if it has at least `min_valid` valid episodes; "refill" first runs a faulted episode again,
    with the same seed; "drop" discards the whole group after a single fault.

    Raises:
        UserError: for an unknown mode or a number out of range.
    """

    mode: Literal["refill", "shrink", "drop"] = "shrink"
    min_valid: int = 2
    """Minimum number of valid episodes of a group; fewer than two have no baseline. A group of one needs that one."""
    tries: int = 2
    """Maximum number of runs of one sibling with "refill", the first one included."""
    refills_timeouts: bool = True
    """Whether "refill" also runs TIMEOUTs again; not in an evaluation, where a TIMEOUT counts as an attempt."""

    def __post_init__(self) -> None:
        if self.mode not in ("refill", "shrink", "drop"):
            raise UserError(f"the fault policy is {self.mode!r}; it is refill, shrink or drop")
        if self.min_valid < 1 or self.tries < 1:
            raise UserError(f"min_valid is {self.min_valid} and tries are {self.tries}; both are 1 or more")

    @property
    def attempts(self) -> int:
        return self.tries if self.mode == "refill" else 1

    def runs_again(self, outcome: Outcome, attempts: int) -> bool:
        """Whether a sibling is run again after `attempts` runs, if the last one ended with `outcome`."""
        is_final = outcome.is_valid or (outcome is Outcome.TIMEOUT and not self.refills_timeouts)
        return not is_final and attempts < self.attempts

    def keeps(self, group: Group) -> bool:
        """Whether a group can be trained on."""
        if self.mode == "drop" and len(group.valid) < len(group.episodes):
            return False
        return len(group.valid) >= min(self.min_valid, len(group.episodes))


SHRINK = FaultPolicy()
"""The default: no episode is run again, and a group with two valid siblings is kept."""


def broken_tasks(episodes: Iterable[Episode]) -> dict[str, str]:
    """Return the tasks whose episodes were all ended by faults of the environment, with the first error of each."""
    errors: dict[str, str] = {}
    names: dict[str, str] = {}
    for episode in episodes:
        names[episode.task.id] = str(episode.task.metadata.get("name") or episode.task.id)
        if episode.outcome is Outcome.ENV_FAULT:
            errors.setdefault(episode.task.id, episode.error or "a fault")
        else:
            errors[episode.task.id] = ""
    return {names[task]: error for task, error in errors.items() if error}


def broken_note(errors: Mapping[str, str]) -> str:
    """Say how many and which tasks cannot be played here, and why the first one cannot."""
    names = ", ".join(list(errors)[:_NAMED]) + (f" and {len(errors) - _NAMED} more" if len(errors) > _NAMED else "")
    count = "1 task has" if len(errors) == 1 else f"{len(errors)} tasks have"
    return f"{count} no result, since every episode ended by a fault: {names}; the first: {next(iter(errors.values()))}"


def why_faulty(group: Group) -> str:
    """How the episodes of a group without a reward ended, and what one of them says."""
    outcomes = Counter(episode.outcome.value for episode in group.faults)
    ends = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
    error = next((e.error for e in group.faults if e.error), "none was given")
    return f"outcomes without a reward in the last one: {ends or 'none'}; the last error: {error}"
