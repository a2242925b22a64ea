"""Episode and Group: the token-exact record of an episode, and the only input of trainers and evaluation.

A Turn holds only its delta: the messages that the environment added, and the answer of the model. Concatenating the
deltas of a row gives exactly the token ids that the engine saw. Each turn keeps a digest of the ids that the engine
reported, so that this can be checked again from disk. A row is one contiguous token sequence: it ends where a chat
template would rewrite history, and the next turn then starts another row.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from forge_env.core.errors import InvariantError, UserError
from forge_env.core.routes import Routes
from forge_env.core.tokens import FLOATS, IDS, Ids, array_of, json_list
from forge_env.core.turn import Row, Turn, TurnKind, digest, join, require, violation
from forge_env.core.types import NOT_SAMPLED, Message, Outcome, Task, ToolCall, ToolUse

__all__ = ["Episode", "Group", "Row", "Turn", "TurnKind", "digest", "read_jsonl", "write_jsonl"]


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


SCHEMA_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Episode:
    """The record of one run of an agent in an environment.

    A script that samples one answer to one prompt may use a short form, without `task`, `turns` and `outcome`:
    ``Episode(prompt_ids=c.prompt_ids, response_ids=c.token_ids, logprobs=c.logprobs, reward=1.0)``. Without logprobs it
    can be trained on once it has some, see `with_logprobs`.

    Raises:
        InvariantError: when the turns contradict each other, or the outcome contradicts the reward.
    """

    reward: float | None
    """The environment's reward: the sum of its step rewards, in a `ToolEnv` the rubric's score with the last of them,
    and after a limit its `truncation_reward`. None if and only if the outcome is TIMEOUT or a fault. Training may use
    another number in its place, which is never stored here: `--reward`, DAPO's overlong punishment, a KL penalty."""
    task: Task = None  # type: ignore[assignment]  # omitted only in the short form
    turns: tuple[Turn, ...] = ()
    outcome: Outcome = Outcome.SCORED
    id: str = ""
    group_id: str = ""
    env: str = ""
    seed: int = 0
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The value of each part of the rubric, by its name and before its weight."""
    tail: tuple[Message, ...] = ()
    """Messages that the environment added after the last turn."""
    error: str = ""
    """Why there is no reward."""
    ended_by: str = ""
    """What ended the episode: "environment", or the name of a limit ("max_turns", "max_turn_tokens", "max_tokens",
    "episode_seconds", "step_seconds"), or "context": the agent's own context is full; info["context_tokens"] is its
    length, if it is known. Empty after a fault."""
    success: bool | None = None
    """The environment's verdict on success; None if there is none, and without a reward."""
    info: Mapping[str, Any] = field(default_factory=dict)
    lineage: tuple[Lineage, ...] = ()
    """Where each row comes from, in the order of the rows; empty for an episode of one row. A conversation without
    tokens counts as a row."""
    schema_version: int = SCHEMA_VERSION
    # The short form; ignored if `turns` is given.
    prompt_ids: InitVar[Ids | None] = None
    response_ids: InitVar[Ids | None] = None
    logprobs: InitVar[Sequence[float] | np.ndarray | None] = None

    def __post_init__(
        self,
        # With defaults, because a dataclass that inherits from this one does not pass the short form.
        prompt_ids: Ids | None = None,  # noqa: RUF033
        response_ids: Ids | None = None,  # noqa: RUF033
        logprobs: Sequence[float] | np.ndarray | None = None,  # noqa: RUF033
    ) -> None:
        if response_ids is not None and not self.turns:
            prompt = () if prompt_ids is None else prompt_ids
            self._set(turns=(_single_turn(prompt, response_ids, logprobs),))
            if self.task is None:
                self._set(task=Task(prompt=(), id=digest(prompt)))
            if not self.id:
                self._set(id=f"{self.task.id}/{uuid.uuid4().hex}")
        require(self.task is not None, "an episode has a task, or a prompt and a response")
        if self.outcome.is_valid:
            is_finite = self.reward is not None and math.isfinite(self.reward)
            if not is_finite:
                raise violation(f"outcome {self.outcome} needs a finite reward, got {self.reward}")
        elif self.reward is not None:
            raise violation(f"outcome {self.outcome} has no reward, got {self.reward}")
        numbers = [number for row in self.lineage for number in (row.turn, row.parent or 0)]
        require(all(0 <= number < len(self.turns) for number in numbers), "a row's lineage names turns of the episode")
        for turn in self.turns:
            if turn.kind != "text":
                require(turn.starts_row, "the first turn with tokens starts a row")
                self.rows  # noqa: B018  checks the digests
                break
        else:
            self._set(rows=())  # as reading them would do, which takes a lock

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def with_logprobs(self, logprobs: Sequence[float] | np.ndarray, version: int = 0) -> Episode:
        """Return a single-turn episode with the logprobs of its sampled tokens, so that it can be trained on.

        Args:
            logprobs: one for each token, at the sampling temperature.

        Raises:
            InvariantError: for several turns, or another number of logprobs.
        """
        require(len(self.turns) == 1, "logprobs are added to an episode of a single turn")
        turn = replace(
            self.turns[0], kind="sampled", logprobs=array_of(logprobs, FLOATS), versions=((version, len(logprobs)),)
        )
        return replace(self, turns=(turn,))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The training rows. This checks every digest that an engine reported."""
        return tuple(join(turns) for turns in self._turns_of_rows())

    @property
    def supervised_rows(self) -> tuple[Row, ...]:
        """The rows for supervised training, where the tokens that were sampled under a grammar are learned, too.

        A loss that reads logprobs leaves those tokens out, since they are not the model's own; an imitation does not.
        """
        if not any(turn.constrained for turn in self.turns):
            return self.rows
        return tuple(join([replace(turn, constrained=0) for turn in turns]) for turns in self._turns_of_rows())

    def _turns_of_rows(self) -> list[list[Turn]]:
        rows: list[list[Turn]] = []
        for turn in self.turns:
            if turn.kind == "text":
                continue
            if turn.starts_row:
                rows.append([])
            rows[-1].append(turn)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields, and the line if it was made; the rows are derived again when they are needed."""
        return {key: value for key, value in self.__dict__.items() if key != "rows"}

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        whole = [m for turn in self.turns for m in (*turn.observation, turn.message)]
        return whole + list(self.tail)

    @property
    def work(self) -> tuple[Turn, ...]:
        """The turns that are part of the work: all but the auxiliary ones."""
        return tuple(turn for turn in self.turns if not turn.auxiliary)

    @property
    def steps(self) -> tuple[Turn, ...]:
        """The turns of the work that the environment took: all but the summaries."""
        return tuple(turn for turn in self.work if not turn.is_summary)

    @property
    def num_sampled(self) -> int:
        """Tokens that the model sampled in its work."""
        return sum(turn.num_written for turn in self.work if turn.kind == "sampled")

    @property
    def is_trainable(self) -> bool:
        """Whether reinforcement learning may use it: valid, and every turn sampled."""
        return self.outcome.is_valid and bool(self.turns) and all(turn.kind == "sampled" for turn in self.turns)

    @property
    def versions(self) -> tuple[int, ...]:
        """The weight versions that sampled it, ascending."""
        return tuple(sorted({version for turn in self.turns for version, _ in turn.versions} - {NOT_SAMPLED}))

    def to_json(self) -> str:
        """One line of JSON, lossless: `Episode.from_json(e.to_json()) == e`."""
        # ASCII: a model may write lone surrogates, which UTF-8 cannot encode.
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        texts = {name: _json(value) for name, value in values.items() if name != "turns"}
        turns = f"[{', '.join(map(_turn_json, self.turns))}]"
        return "{" + ", ".join(f'"{name}": {texts.get(name, turns)}' for name in values) + "}"

    @cached_property
    def line(self) -> bytes:
        """The line of a file of episodes, with its end. It travels with the episode from the process that made it."""
        return self.to_json().encode() + b"\n"

    @classmethod
    def from_json(cls, line: str | Mapping[str, Any]) -> Episode:
        """Read what `to_json` wrote, as text or as the object that it stands for.

        Raises:
            UserError: when the line is not an Episode of a schema that this version reads.
        """
        try:
            data = json.loads(line) if isinstance(line, str) else dict(line)
            version = data.pop("schema_version")
            if version != SCHEMA_VERSION:
                raise UserError(f"this Episode has schema version {version}; this forge_env reads {SCHEMA_VERSION}")
            task = data.pop("task")
            return cls(
                task=Task(**{**task, "prompt": tuple(task["prompt"])}),
                turns=tuple(_turn_from(item) for item in data.pop("turns")),
                outcome=Outcome(data.pop("outcome")),
                tail=tuple(data.pop("tail")),
                lineage=tuple(Lineage(**row) for row in data.pop("lineage", ())),
                **data,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(
                f"not an Episode: {str(line)[:80]!r} ({reason}); expected one JSON object per line"
            ) from None


for _name in ("prompt_ids", "response_ids", "logprobs"):
    # They are arguments only: as class attributes they would read None, and `replace` would pass them on.
    delattr(Episode, _name)
    del Episode.__dataclass_fields__[_name]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Sibling episodes of one task; advantages are computed over its valid members only."""

    task: Task
    episodes: tuple[Episode, ...]
    id: str
    replaced: tuple[Episode, ...] = ()
    """Episodes without a reward that were run again. They are counted, but never trained on."""

    def __post_init__(self) -> None:
        require(all(not e.outcome.is_valid for e in self.replaced), "only an episode without a reward is replaced")
        require(bool(self.episodes), "a group holds at least one episode")
        require(all(e.task.id == self.task.id for e in self.episodes), "all episodes of a group have its task")
        ids = [e.id for e in self.episodes]
        require(len(set(ids)) == len(ids), "an episode counts once in its group")

    @property
    def env(self) -> str:
        """The name of its environment; in a run with several, the label."""
        return self.episodes[0].env

    @property
    def valid(self) -> tuple[Episode, ...]:
        """The episodes that have a reward."""
        return tuple(e for e in self.episodes if e.outcome.is_valid)

    @property
    def faults(self) -> tuple[Episode, ...]:
        """The episodes without a reward, including the replaced ones."""
        return (*(e for e in self.episodes if not e.outcome.is_valid), *self.replaced)

    @property
    def rewards(self) -> tuple[float, ...]:
        """Rewards of the valid members, in order."""
        return tuple(e.reward for e in self.valid if e.reward is not None)


def write_jsonl(path: Path, episodes: Iterable[Episode], *, routes: bool = True) -> None:
    """Append episodes to a JSON-lines file; their lines are then forgotten, for they are as large as all the rest.

    Args:
        routes: whether to write the experts that an engine chose, if there are any: the most of an episode then.
    """
    with path.open("ab") as file:
        for episode in episodes:
            if routes or not any(turn.routes for turn in episode.turns):
                file.write(episode.line)
            else:
                turns = tuple(replace(turn, routes=()) for turn in episode.turns)
                file.write(replace(episode, turns=turns).line)
            vars(episode).pop("line", None)


def read_jsonl(path: Path) -> Iterator[Episode]:
    """Read episodes back, one at a time.

    Raises:
        UserError: with file and line, when a line is not an Episode.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Episode.from_json(line.decode())
            except (UserError, InvariantError, UnicodeDecodeError) as error:
                raise UserError(f"{path}:{number}: {error}") from None


def _single_turn(prompt_ids: Ids, response_ids: Ids, logprobs: Sequence[float] | np.ndarray | None) -> Turn:
    turn = Turn(
        kind="tokens",
        observation=(),
        message={"role": "assistant", "content": ""},
        prompt_ids=array_of(prompt_ids, IDS, "prompt_ids"),
        token_ids=array_of(response_ids, IDS, "response_ids"),
        starts_row=True,
    )
    if logprobs is None:
        return turn
    return replace(turn, kind="sampled", logprobs=array_of(logprobs, FLOATS), versions=((0, len(logprobs)),))


def _json(value: Any) -> str:
    return json.dumps(value, default=_fields_of)


def _fields_of(value: Any) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} is no JSON: {value!r:.80}")
    return asdict(value)


_ONLY_IF_SET = ("routes", "auxiliary", "is_summary", "constraint", "constrained")  # in a line


def _turn_json(turn: Turn) -> str:
    values = ((f.name, getattr(turn, f.name)) for f in fields(turn))
    texts = [
        f'"{name}": {json_list(value) if name in Turn.ARRAYS else _json(value)}'
        for name, value in values
        if name not in _ONLY_IF_SET or (name != "routes" and value)
    ]
    if turn.routes:
        texts.append(f'"routes": {_json([routes.text for routes in turn.routes])}')
    return "{" + ", ".join(texts) + "}"


def _turn_from(item: dict[str, Any]) -> Turn:
    tuples = {key: tuple(item[key]) for key in ("observation", *Turn.ARRAYS)}
    calls = tuple(ToolCall(**call) for call in item["tool_calls"])
    spans = tuple((version, count) for version, count in item["versions"])
    uses = tuple(ToolUse(**use) for use in item["tool_uses"])
    routes = tuple(map(Routes.of_text, item.get("routes", ())))
    return Turn(**{**item, **tuples, "tool_calls": calls, "versions": spans, "tool_uses": uses, "routes": routes})
