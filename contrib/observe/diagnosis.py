"""Why a run does not learn, found in what it measures: the figures, the likely cause, and settings to try.

Every rule of diagnosis_rules.py that becomes true is a finding. It is said once, and kept with the steps in which it
held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contrib.observe.diagnosis_rules import FEW, History, RunFacts, Values, cases
from forge_env.records.sinks import Record
from trainers.controller.alarms import make_alarm
from trainers.metrics.observer import Observer
from trainers.run.run import Run


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

    @property
    def steps(self) -> str:
        return f"steps {self.step} to {self.last_step}" if self.last_step > self.step else f"step {self.step}"


class Diagnosis:
    def __init__(self, facts: RunFacts, tell: Callable[[Finding], None] = lambda finding: None) -> None:
        self.facts = facts
        self._tell = tell
        self._clear()

    def _clear(self) -> None:
        self._history = History()
        self._findings: dict[str, Finding] = {}

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far, in the order in which it became true."""
        return list(self._findings.values())

    @property
    def has_learned(self) -> bool:
        """Whether success is higher than at the beginning by more than chance."""
        return self._history.has_learned

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        if phase == "train":
            self._history.add(step, values)
        elif phase == "evaluation":
            self._history.add_evaluation(values)
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
            self._findings = {kind: finding for kind, finding in self._findings.items() if finding.last_step > stands}

    def go_back(self, records: Sequence[Record]) -> None:
        """Be as if these records had been logged, without telling anybody again."""
        self._clear()
        tell, self._tell = self._tell, lambda finding: None
        for record in records:
            self.log(*record)
        self._tell = tell

    def summary(self) -> list[dict[str, Any]]:
        """The findings as JSON data."""
        return [asdict(finding) for finding in self.findings]

    def _look(self, step: int) -> None:
        for case in cases(self._history, self.facts):
            earlier = self._findings.get(case.kind)
            self._findings[case.kind] = finding = Finding(
                step=earlier.step if earlier else step, last_step=step, **case._asdict()
            )
            if earlier is None:
                self._tell(finding)


class RunDiagnosis(Observer):
    """Says what may keep a policy-gradient run from learning, and keeps it in run.json and summary.json."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._before: Sequence[Record] = ()
        self._run: Run | None = None
        self._diagnosis: Diagnosis | None = None

    def go_back(self, records: Sequence[Record]) -> None:
        self._before = records

    def begin(self, run: Run) -> None:
        if (facts := _facts(run)) is None:
            return
        self._run, self._diagnosis = run, (diagnosis := Diagnosis(facts, self._tell))
        diagnosis.go_back(self._before)
        if diagnosis.findings:  # of the steps before the checkpoint
            self._keep()

    def log(self, phase: str, step: int, values: Values) -> None:
        if self._diagnosis is not None:
            self._diagnosis.log(phase, step, values)

    def waiting(self, counts: Values) -> None:
        if self._diagnosis is not None:
            self._diagnosis.waiting(counts)

    def summary(self) -> dict[str, Any]:
        if self._diagnosis is None:
            return {}
        self._diagnosis.finish()
        return {"findings": self._keep()}

    def last_words(self) -> list[str]:
        if self._diagnosis is None:
            return []
        more = " more" if self._diagnosis.has_learned else ""
        findings = self._diagnosis.findings
        return [f"may have kept this run from learning{more}, {finding.steps}: {finding}" for finding in findings]

    def _tell(self, finding: Finding) -> None:
        assert self._run is not None
        self._run.record.warn(f"warning: step {finding.step}: this may keep the run from learning: {finding}")
        self._keep()

    def _keep(self) -> list[dict[str, Any]]:
        assert self._run is not None and self._diagnosis is not None
        findings = self._diagnosis.summary()
        self._run.record.add_fact("findings", findings)
        return findings


def _facts(run: Run) -> RunFacts | None:
    """The facts of a policy-gradient run; None for any other."""
    plan, objective = run.plan, run.plan.objective
    if objective is None:
        return None
    training, alarm = plan.config.training, make_alarm(plan, run.record.say)
    return RunFacts(
        algorithm=plan.algorithm.name,
        env=plan.config.env.name,
        reward=training.reward,
        loss=training.loss,
        learning_rate=training.learning_rate,
        n_samples=objective.group_size,
        max_turn_tokens=plan.config.env.max_turn_tokens,
        max_tokens=plan.config.env.max_tokens,
        sync_interval=training.sync_interval,
        staleness=plan.config.training.most_behind,
        entropy_coef=training.entropy_coef,
        needs_siblings=objective.needs_siblings,
        resamples=objective.needs_signal,
        mismatch_bounds=alarm.bounds,
        approximations=alarm.approximations,
    )
