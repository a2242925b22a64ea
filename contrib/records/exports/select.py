"""Which episodes of a run are exported: one at a time, from all its files, or from those that the options name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from contrib.records.run_settings import all_files, episode_line
from contrib.records.trained import read_trained
from forge_env.core.episode import Episode
from forge_env.core.errors import InvariantError, UserError, nearest
from forge_env.core.reward_value import reaches
from forge_env.core.types import Outcome

_EVALUATION = re.compile(r"evaluation_(\d+)(?:\..*)?")
"""Phase of an evaluation during training, after its number of steps."""


class Selected(NamedTuple):
    episode: Episode
    phase: str
    """"train", "after" and so on in a training run, "faults" for the faults of an evaluation, else ""."""
    step: int | None
    """The optimizer step that trained on it, or that an evaluation followed; None if there is none."""


FIELDS: Mapping[str, Callable[[Selected], Any]] = {
    "outcome": lambda s: s.episode.outcome,
    "success": lambda s: s.episode.success,
    "env": lambda s: s.episode.env,
    "phase": lambda s: s.phase,
    "kind": lambda s: s.episode.task.kind,
    "task": lambda s: s.episode.task.id,
    "group": lambda s: s.episode.group_id,
    "ended_by": lambda s: s.episode.ended_by,
}
"""What `--where` can ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which episodes are wanted; all conditions must hold."""

    where: Mapping[str, tuple[str, ...]]
    """Field of `FIELDS` -> the values that it may have, as text."""
    min_reward: float | None = None
    """An episode without a reward has less than any."""
    steps: tuple[int, int] | None = None
    """First and last step."""

    def problem(self, selected: Selected) -> str:
        for name, values in self.where.items():
            if _text(FIELDS[name](selected)) not in values:
                return f"of another {name}"
        reward = selected.episode.reward
        if self.min_reward is not None and (reward is None or not reaches(reward, self.min_reward)):
            return f"of a reward below {self.min_reward:g}"
        if self.steps and not (selected.step is not None and self.steps[0] <= selected.step <= self.steps[1]):
            return "of another step"
        return ""


def parse_wanted(where: Sequence[str], min_reward: float | None, step: str) -> Wanted:
    """Read the options of a command: `where` as FIELD=VALUE[,VALUE], `step` as N, N..M, N.. or ..M."""
    fields: dict[str, tuple[str, ...]] = {}
    for text in where:
        name, is_given, values = text.partition("=")
        if not is_given or name not in FIELDS:
            raise UserError(f"--where {text} is not FIELD=VALUE of the fields {', '.join(FIELDS)}")
        fields[name] = tuple(value.strip() for value in values.split(","))
    choices_of = {"outcome": [str(outcome) for outcome in Outcome], "success": ["true", "false", "none"]}
    for name, choices in choices_of.items():
        for value in fields.get(name, ()):
            if value not in choices:
                raise UserError(f"--where {name}={value}: {nearest(value, choices)}")
    return Wanted(where=fields, min_reward=min_reward, steps=_steps(step))


class Selection:
    """The episodes of a run that are wanted, as often as it is iterated over; one is in memory at a time."""

    def __init__(self, run: Path, choice: Wanted) -> None:
        self.files = all_files(run)
        self._choice = choice
        self._steps = {episode: step for step, episode, _ in read_trained(run)}
        if choice.steps and not self._steps and not any(map(_EVALUATION.fullmatch, self.files)):
            raise UserError(f"--step asks for steps of a training run, and {run} records none")
        self.left_out: dict[str, int] = {}
        """Number of episodes that are not wanted, by the reason."""
        self.cut: list[str] = []
        """Places of half-written last lines, as a killed process or one that still writes leaves them."""

    def __iter__(self) -> Iterator[Selected]:
        self.left_out, self.cut = {}, []
        for phase, path in self.files.items():
            evaluation = _EVALUATION.fullmatch(phase)
            for episode in self._episodes(path):
                step = int(evaluation[1]) if evaluation else self._steps.get(episode.id)
                selected = Selected(episode, phase, step)
                if problem := self._choice.problem(selected):
                    self.leave_out(problem)
                else:
                    yield selected

    def leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def _episodes(self, path: Path) -> Iterator[Episode]:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                try:
                    yield Episode.from_json(episode_line(data.decode("utf-8")))
                except (UserError, InvariantError, UnicodeDecodeError, RecursionError) as error:
                    if not data.endswith(b"\n"):
                        self.cut.append(f"{path}:{number}")
                        return
                    raise UserError(f"{path}:{number}: {error}") from None


def _steps(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d+)|(\d*)\.\.(\d*)", text.strip())
    if match is None or text.strip() == "..":
        raise UserError(f"--step {text} is no step N and no range N..M, N.. or ..M")
    if match[1]:
        return int(match[1]), int(match[1])
    first, last = int(match[2] or 0), int(match[3]) if match[3] else 2**63
    if first > last:
        raise UserError(f"--step {text} begins after its end")
    return first, last


def _text(value: Any) -> str:
    return {True: "true", False: "false", None: "none"}[value] if value in (True, False, None) else str(value)
