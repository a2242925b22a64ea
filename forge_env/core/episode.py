"""Episode and Group: the token-exact record of an episode, and the only input of trainers and evaluation.

A Turn holds only its delta: the messages that the environment added, and the answer of the model. Concatenating the
deltas of a row gives exactly the token ids that the engine saw. Each turn keeps a digest of the ids that the engine
reported, so that this can be checked again from disk. A row is one contiguous token sequence: it ends where a chat
template would rewrite history, and the next turn then starts another row.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from forge_env.core.errors import InvariantError, UserError
from forge_env.core.types import NOT_SAMPLED, Message, Outcome, Task, ToolCall, ToolUse

SCHEMA_VERSION = 2
TurnKind = Literal["text", "tokens", "sampled"]


def digest(token_ids: Sequence[int]) -> str:
    """Hash of a token sequence, as kept with each turn: 64 bits of blake2b over little-endian 32-bit ids."""
    return hashlib.blake2b(array("i", token_ids).tobytes(), digest_size=8).hexdigest()


@dataclass(slots=True, kw_only=True)
class Turn:
    """One answer of the model, and the messages that the environment added before it.

    The agent creates it, and the rollout loop sets the result of the step once (`reward`, `tool_uses`, the seconds);
    nothing else changes a turn. It is not frozen, because freezing costs as much time as a step of a simple
    environment.

    kind "text" has messages only (an external endpoint), "tokens" has ids without logprobs (an expert's demonstration),
    "sampled" has ids, logprobs and weight versions. Only sampled turns enter reinforcement learning.

    Example: ``Turn(kind="sampled", observation=({"role": "user", "content": "2+2?"},),
    message={"role": "assistant", "content": "4"}, prompt_ids=(1, 8, 3), token_ids=(9, 2), logprobs=(-0.2, -0.1),
    versions=((0, 2),), starts_row=True, context_digest=digest((1, 8, 3)))``
    """

    kind: TurnKind
    observation: tuple[Message, ...]
    """Messages that the environment added before this turn."""
    message: Message
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    """Ids of the tokens since the end of the last turn; the whole prompt at the start of a row."""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of each sampled token, as the engine reported it; `generator_logprobs` from here to the loss."""
    versions: tuple[tuple[int, int], ...] = ()
    """Spans (weight version, number of tokens) that cover `token_ids`; the version of tokens that the agent inserted,
    to end a thought for example, is NOT_SAMPLED, and their logprob 0."""
    starts_row: bool = False
    context_digest: str = ""
    """`digest` of the whole prompt as the engine reported it; empty for demonstrations. Where generation went on after
    inserted tokens, a space and the digest of that prompt follow."""
    finish_reason: str = "stop"
    reward: float = 0.0
    """The environment's step reward for this turn, a part of `Episode.reward`."""
    policy_seconds: float = 0.0
    """Duration of the model's answer."""
    env_seconds: float = 0.0
    """Duration of the environment's step."""
    tool_uses: tuple[ToolUse, ...] = ()
    """Results of the tool calls."""
    usage: Mapping[str, float] | None = None
    """Token counts reported by an external endpoint: "prompt_tokens", "completion_tokens"."""

    def __post_init__(self) -> None:
        if self.kind == "text":
            _require(
                not (self.prompt_ids or self.token_ids or self.logprobs or self.versions), "a text turn has no tokens"
            )
            return
        _require(bool(self.token_ids), "a turn holds at least one token that the model wrote")
        if self.kind == "tokens":
            _require(not self.logprobs and not self.versions, "a demonstration has no logprobs and no versions")
            return
        _require(len(self.logprobs) == len(self.token_ids), "one logprob per sampled token")
        _require(sum(n for _, n in self.versions) == len(self.token_ids), "version spans cover the sampled tokens")
        _require(all(n > 0 for _, n in self.versions), "a version span is never empty")

    @property
    def generator_logprobs(self) -> tuple[float, ...]:
        """The logprobs of `token_ids` under the policy that sampled them; empty where there are none."""
        return self.logprobs

    @property
    def num_written(self) -> int:
        """Number of `token_ids` that the model sampled, or the expert wrote: all but those that were inserted."""
        return len(self.token_ids) - sum(n for version, n in self.versions if version == NOT_SAMPLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contiguous training sequence of an Episode; all four fields have one entry per token.

    Example: ``Row(token_ids=(1, 8, 3, 9, 2), loss_mask=(False, False, False, True, True),
    generator_logprobs=(0.0, 0.0, 0.0, -0.2, -0.1), versions=(-1, -1, -1, 0, 0))``
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True exactly on the tokens that the model sampled (or the expert wrote)."""
    generator_logprobs: tuple[float, ...]
    """The logprob of the policy that sampled, where the mask is true and there is one, else 0."""
    versions: tuple[int, ...]
    """Weight version of each sampled token, -1 elsewhere."""

    @property
    def mask(self) -> tuple[bool, ...]:
        """The former name of `loss_mask`."""
        return self.loss_mask

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The former name of `generator_logprobs`."""
        return self.generator_logprobs


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
    "episode_seconds", "step_seconds"); empty after a fault, and in old files."""
    success: bool | None = None
    """The environment's verdict on success; None if there is none, and without a reward."""
    info: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    # The short form; ignored if `turns` is given.
    prompt_ids: InitVar[Sequence[int] | None] = None
    response_ids: InitVar[Sequence[int] | None] = None
    logprobs: InitVar[Sequence[float] | None] = None

    def __post_init__(
        self,
        # With defaults, because a dataclass that inherits from this one does not pass the short form.
        prompt_ids: Sequence[int] | None = None,  # noqa: RUF033
        response_ids: Sequence[int] | None = None,  # noqa: RUF033
        logprobs: Sequence[float] | None = None,  # noqa: RUF033
    ) -> None:
        if response_ids is not None and not self.turns:
            self._set(turns=(_single_turn(prompt_ids or (), response_ids, logprobs),))
            if self.task is None:
                self._set(task=Task(prompt=(), id=digest(prompt_ids or ())))
            if not self.id:
                self._set(id=f"{self.task.id}/{uuid.uuid4().hex}")
        _require(self.task is not None, "an episode has a task, or a prompt and a response")
        if self.outcome.is_valid:
            is_finite = self.reward is not None and math.isfinite(self.reward)
            _require(is_finite, f"outcome {self.outcome} needs a finite reward, got {self.reward}")
        else:
            _require(self.reward is None, f"outcome {self.outcome} has no reward, got {self.reward}")
        with_tokens = [turn for turn in self.turns if turn.kind != "text"]
        _require(not with_tokens or with_tokens[0].starts_row, "the first turn with tokens starts a row")
        self.rows  # noqa: B018  checks the digests

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def with_logprobs(self, logprobs: Sequence[float], version: int = 0) -> Episode:
        """Return a single-turn episode with the logprobs of its sampled tokens, so that it can be trained on.

        Args:
            logprobs: one for each token, at the sampling temperature.
            version: of the weights that sampled them.

        Raises:
            InvariantError: for several turns, or another number of logprobs.
        """
        _require(len(self.turns) == 1, "logprobs are added to an episode of a single turn")
        turn = replace(self.turns[0], kind="sampled", logprobs=tuple(logprobs), versions=((version, len(logprobs)),))
        return replace(self, turns=(turn,))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The training rows. This checks every digest that an engine reported."""
        rows: list[list[Turn]] = []
        for turn in self.turns:
            if turn.kind == "text":
                continue
            if turn.starts_row:
                rows.append([])
            rows[-1].append(turn)
        return tuple(_join(turns) for turns in rows)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields only; the rows are derived again when they are needed."""
        return {key: value for key, value in self.__dict__.items() if key != "rows"}

    @property
    def messages(self) -> list[Message]:
        """The whole conversation."""
        joined = [m for turn in self.turns for m in (*turn.observation, turn.message)]
        return joined + list(self.tail)

    @property
    def num_sampled(self) -> int:
        return sum(turn.num_written for turn in self.turns if turn.kind == "sampled")

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
        return json.dumps(asdict(self))  # ASCII: a model may write lone surrogates, which UTF-8 cannot encode

    @classmethod
    def from_json(cls, line: str) -> Episode:
        """Read what `to_json` wrote.

        Raises:
            UserError: when the line is no Episode of a schema that this version reads.
        """
        try:
            data = json.loads(line)
            version = data.pop("schema_version")
            if version != SCHEMA_VERSION:
                raise UserError(f"this Episode has schema version {version}; this forge_env reads {SCHEMA_VERSION}")
            task = data.pop("task")
            return cls(
                task=Task(**{**task, "prompt": tuple(task["prompt"])}),
                turns=tuple(_turn_from(item) for item in data.pop("turns")),
                outcome=Outcome(data.pop("outcome")),
                tail=tuple(data.pop("tail")),
                **data,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"not an Episode: {line[:80]!r} ({reason}); expected one JSON object per line") from None


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
        _require(all(not e.outcome.is_valid for e in self.replaced), "only an episode without a reward is replaced")
        _require(bool(self.episodes), "a group holds at least one episode")
        _require(all(e.task.id == self.task.id for e in self.episodes), "all episodes of a group have its task")
        ids = [e.id for e in self.episodes]
        _require(len(set(ids)) == len(ids), "an episode counts once in its group")

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


def write_jsonl(path: Path, episodes: Iterable[Episode]) -> None:
    """Append episodes to a JSON-lines file."""
    with path.open("a", encoding="utf-8") as file:
        for episode in episodes:
            file.write(episode.to_json() + "\n")


def read_jsonl(path: Path) -> Iterator[Episode]:
    """Read episodes back, one at a time.

    Raises:
        UserError: with file and line, when a line is no Episode.
    """
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Episode.from_json(line)
            except UserError as error:
                raise UserError(f"{path}:{number}: {error}") from None


def _single_turn(prompt_ids: Sequence[int], response_ids: Sequence[int], logprobs: Sequence[float] | None) -> Turn:
    turn = Turn(
        kind="tokens",
        observation=(),
        message={"role": "assistant", "content": ""},
        prompt_ids=tuple(prompt_ids),
        token_ids=tuple(response_ids),
        starts_row=True,
    )
    if logprobs is None:
        return turn
    return replace(turn, kind="sampled", logprobs=tuple(logprobs), versions=((0, len(logprobs)),))


def _join(turns: Sequence[Turn]) -> Row:
    row_hash = hashlib.blake2b(digest_size=8)  # incremental: a new `digest` at every turn would be quadratic
    ids: list[int] = []
    loss_mask: list[bool] = []
    generator_logprobs: list[float] = []
    versions: list[int] = []
    for turn in turns:
        n, k = len(turn.prompt_ids), len(turn.token_ids)
        row_hash.update(array("i", turn.prompt_ids))
        at = 0
        for start, seen in _requests(turn):
            row_hash.update(array("i", turn.token_ids[at:start]))
            is_same = row_hash.hexdigest() == seen
            _require(is_same, "what the engine saw is the concatenation of the row")
            at = start
        row_hash.update(array("i", turn.token_ids[at:]))
        ids += turn.prompt_ids
        ids += turn.token_ids
        generator_logprobs += [0.0] * n + list(turn.generator_logprobs or [0.0] * k)
        spans = [version for version, count in turn.versions for _ in range(count)]
        loss_mask += [False] * n + ([version != NOT_SAMPLED for version in spans] or [True] * k)
        versions += [NOT_SAMPLED] * n + (spans or [NOT_SAMPLED] * k)
    return Row(
        token_ids=tuple(ids),
        loss_mask=tuple(loss_mask),
        generator_logprobs=tuple(generator_logprobs),
        versions=tuple(versions),
    )


def _requests(turn: Turn) -> list[tuple[int, str]]:
    """The requests that a turn was sampled by: where in its tokens each begins, and the digest of the prompt it saw."""
    digests = turn.context_digest.split()
    if len(turn.versions) < 2:
        starts = [0]
    else:
        ends = accumulate(count for _, count in turn.versions[:-1])
        starts = [0, *(end for end, (version, _) in zip(ends, turn.versions, strict=False) if version == NOT_SAMPLED)]
    _require(not digests or len(digests) == len(starts), "each request of a turn has a digest of what the engine saw")
    return list(zip(starts, digests, strict=False))


def _turn_from(item: dict[str, Any]) -> Turn:
    tuples = {key: tuple(item[key]) for key in ("observation", "prompt_ids", "token_ids", "logprobs")}
    calls = tuple(ToolCall(**call) for call in item["tool_calls"])
    spans = tuple((version, count) for version, count in item["versions"])
    uses = tuple(ToolUse(**use) for use in item.get("tool_uses", ()))
    return Turn(**{**item, **tuples, "tool_calls": calls, "versions": spans, "tool_uses": uses})


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise InvariantError(f"episode invariant broken: {rule}")
