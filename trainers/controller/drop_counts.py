"""DropCounts: the groups that a run could not train on, and how the episodes without a reward ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from forge_env.core.episode import Group
from forge_env.core.errors import ServiceError
from forge_env.core.types import Outcome

MAX_FAULTS_IN_A_ROW = 32  # groups with too few valid episodes; then something is broken for good


@dataclass(slots=True, kw_only=True)
class DropCounts:
    """Counts of a whole run. Every field is JSON, so that a checkpoint keeps `asdict`."""

    outcomes: dict[str, int] = field(default_factory=dict)
    """Episodes without a reward by outcome, of all groups."""
    faulty: int = 0
    """Groups that were dropped with too few valid episodes."""
    faulty_in_a_row: int = 0
    flat: int = 0
    """Groups that were dropped because all their valid episodes have one reward. A flat group is no fault."""
    flat_in_a_row: int = 0

    def add_outcomes(self, group: Group) -> None:
        for episode in group.faults:
            outcome = episode.outcome.value
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def keep(self) -> None:
        """A group can be trained on, so that both rows end."""
        self.faulty_in_a_row = self.flat_in_a_row = 0

    def drop_faulty(self, reason: str) -> None:
        """Count a group with too few valid episodes, or none.

        Raises:
            ServiceError: there were MAX_FAULTS_IN_A_ROW of them in a row.
        """
        self.faulty += 1
        self.faulty_in_a_row += 1
        if self.faulty_in_a_row >= MAX_FAULTS_IN_A_ROW:
            raise ServiceError(f"{MAX_FAULTS_IN_A_ROW} groups in a row had too few valid episodes; {reason}")

    def drop_flat(self, reward: float, most: int) -> None:
        """Count a group with one reward. It ends a row of faulty groups.

        Args:
            reward: of all its episodes.
            most: of such groups in a row; 0 is without end.

        Raises:
            ServiceError: there were `most` of them in a row.
        """
        self.faulty_in_a_row = 0
        self.flat += 1
        self.flat_in_a_row += 1
        if most and self.flat_in_a_row >= most:
            raise ServiceError(
                f"{self.flat_in_a_row} groups in a row were dropped, each with one reward for all its episodes, "
                f"{reward:g} in the last: the tasks are too easy or too hard, or dynamic sampling must be off"
            )

    @property
    def metrics(self) -> dict[str, float]:
        """The counts that every step records."""
        return {
            "episodes_timed_out": float(self.outcomes.get(Outcome.TIMEOUT.value, 0)),
            "groups_dropped": float(self.faulty),
            "groups_without_signal": float(self.flat),
        }


def why_faulty(group: Group) -> str:
    """How the episodes of a group without a reward ended, and what one of them says."""
    outcomes = Counter(episode.outcome.value for episode in group.faults)
    ended = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
    error = next((e.error for e in group.faults if e.error), "none was given")
    return f"outcomes without a reward in the last one: {ended or 'none'}; the last error: {error}"
