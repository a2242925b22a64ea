"""Why a run does not learn, found in what it measures: the figures, the likely cause, and settings to try.

Every rule of trainers/metrics/diagnosis_rules.py that becomes true is a finding. It is said once, and kept with the
steps in which it held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forge_env.records.sinks import Record
from trainers.metrics.diagnosis_rules import FEW, History, RunFacts, Values, cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason why a run may not learn."""

    kind: str
    """Such as "too_hard"; each kind is found once."""
    step: int
    """The optimizer step at which it was first true."""
    last_step: int
    """And the last one."""
    measured: str
    """What was measured, with its numbers, at the last of these steps."""
    cause: str
    settings: str
    """What to try."""

    def __str__(self) -> str:
        return f"{self.measured}. Likely cause: {self.cause}. Try: {self.settings}"


class Diagnosis:
    """A sink that looks for reasons why a run does not learn."""

    def __init__(self, facts: RunFacts, tell: Callable[[Finding], None] = lambda finding: None) -> None:
        self.facts = facts
        self._tell = tell
        self._clear()

    def _clear(self) -> None:
        self._history = History()
        self._found: dict[str, Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far, in the order in which it became true."""
        return list(self._found.values())

    @property
    def has_learned(self) -> bool:
        """Whether success is higher than at the beginning by more than chance."""
        return self._history.has_learned

    @property
    def steps(self) -> int:
        """Optimizer steps that it has seen."""
        return self._history.steps

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        if phase == "train":
            self._history.add(step, values)
        elif phase == "evaluation":
            self._history.evaluated(values)
        if phase in ("train", "evaluation"):
            self._look(step)

    def waiting(self, counts: Values) -> None:
        """Look at groups that were dropped since the last step, in the counts of `SignalCounts`."""
        self._history.waiting = counts
        self._look(self._history.last_step + 1)

    def finish(self) -> None:
        """The training is done: look for reasons that only a whole run shows, and leave out those that it refutes.

        A run that has learned refutes what was not true any more in its last steps.
        """
        history = self._history
        history.is_done = True
        self._look(history.last_step)
        if history.has_learned:
            stands = history.last_step - FEW
            self._found = {kind: finding for kind, finding in self._found.items() if finding.last_step > stands}

    def go_back(self, records: Sequence[Record]) -> None:
        """Be as if these records had been logged, without telling anybody again."""
        self._clear()
        tell, self._tell = self._tell, lambda finding: None
        for record in records:
            self.log(*record)
        self._tell = tell

    def close(self) -> None:
        pass

    def summary(self) -> list[dict[str, Any]]:
        """The findings as JSON data."""
        return [asdict(finding) for finding in self.findings]

    def _look(self, step: int) -> None:
        for case in cases(self._history, self.facts):
            known = self._found.get(case.kind)
            self._found[case.kind] = finding = Finding(
                step=known.step if known else step, last_step=step, **case._asdict()
            )
            if known is None:
                self._tell(finding)
