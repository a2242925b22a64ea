"""What becomes of a group when episodes of it end by a fault of ours, or a TIMEOUT.

Such an episode has no reward. It is never scored as a zero and takes no part in its group's baseline; what is left to
decide is whether it is run again, and how many valid siblings a group needs to be trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forge_env.core.episode import Group
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPolicy:
    """What to do about faulted siblings.

    "refill" runs a faulted episode again, with the same seed, and then does as "shrink"; "shrink" keeps the group as
    long as it has `min_valid` valid episodes; "drop" gives the whole group up for a single fault.

    Raises:
        UserError: for an unknown mode or a number out of range.
    """

    mode: Literal["refill", "shrink", "drop"] = "shrink"
    min_valid: int = 2
    """Valid episodes that a group needs; fewer than two have no baseline to differ from."""
    tries: int = 2
    """How often one place of a group is filled at most, the first time among them, where the mode is "refill"."""
    refills_timeouts: bool = True
    """Whether "refill" is of TIMEOUTs too: not in an evaluation, where each is an attempt that counts."""

    def __post_init__(self) -> None:
        if self.mode not in ("refill", "shrink", "drop"):
            raise UserError(f"the fault policy is {self.mode!r}; it is refill, shrink or drop")
        if self.min_valid < 1 or self.tries < 1:
            raise UserError(f"min_valid is {self.min_valid} and tries are {self.tries}; both are 1 or more")

    @property
    def attempts(self) -> int:
        return self.tries if self.mode == "refill" else 1

    def runs_again(self, outcome: Outcome, attempts: int) -> bool:
        """Whether a place is filled once more, whose last episode of so many ended so."""
        stays = outcome.is_valid or (outcome is Outcome.TIMEOUT and not self.refills_timeouts)
        return not stays and attempts < self.attempts

    def keeps(self, group: Group) -> bool:
        """Whether a group can be trained on."""
        if self.mode == "drop" and len(group.valid) < len(group.episodes):
            return False
        return len(group.valid) >= self.min_valid


SHRINK = FaultPolicy()
"""Nothing is run again, and a group of two valid siblings is kept."""
