"""Turn and Row: the tokens of an episode, as the agent records them and as a trainer reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from forge_env.core.errors import InvariantError
from forge_env.core.packed import ROW_KINDS, PackedRow, PackedTurn, join_turns, pack, unpack
from forge_env.core.types import NOT_SAMPLED, Message, ToolCall, ToolUse

if TYPE_CHECKING:
    import numpy as np

    from forge_env.core.routes import Routes

TurnKind = Literal["text", "tokens", "sampled"]
TOKEN_FIELDS = ("prompt_ids", "token_ids", "logprobs")


def digest(token_ids: Sequence[int]) -> str:
    """Hash of a token sequence, as kept with each turn: 64 bits of blake2b over little-endian 32-bit ids."""
    return hashlib.blake2b(pack(token_ids, "i"), digest_size=8).hexdigest()


class _Packable:
    """Has a place for numbers that arrived packed, see `forge_env.core.packed`."""

    __slots__ = ("_packed",)
    _packed_fields: ClassVar[tuple[str, ...]] = ()
    """Fields whose numbers are packed."""

    def forget_unpacked(self) -> None:
        """Free the Python objects of numbers that arrived packed; reading a field makes them again.

        A number is an object of its own: whoever has millions made also frees them, in the same thread.
        """
        if _arrived(self) is None:
            return
        for name in self._packed_fields:
            with suppress(AttributeError):  # it has not been read
                object.__delattr__(self, name)


@dataclass(slots=True, kw_only=True)
class Turn(_Packable):
    """One answer of the model, and the messages that the environment added before it.

    The agent creates it, and the rollout loop sets the result of the step once (`reward`, `tool_uses`, the seconds);
    nothing else changes a turn. It is not frozen, because freezing costs as much time as a step of a simple
    environment. In a message its tokens are packed, and stay so where it arrives until they are read.

    kind "text" has messages only (an external endpoint), "tokens" has ids without logprobs (an expert's demonstration),
    "sampled" has ids, logprobs and weight versions. Only sampled turns enter reinforcement learning.

    Example: ``Turn(kind="sampled", observation=({"role": "user", "content": "2+2?"},),
    message={"role": "assistant", "content": "4"}, prompt_ids=(1, 8, 3), token_ids=(9, 2), logprobs=(-0.2, -0.1),
    versions=((0, 2),), starts_row=True, context_digest=digest((1, 8, 3)))``
    """

    _packed_fields: ClassVar[tuple[str, ...]] = TOKEN_FIELDS

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
    routes: tuple[Routes, ...] = ()
    """Experts that the engine chose for the tokens of the row; those of earlier turns are there already."""
    constraint: str = ""
    """`Constraint.label` of the form that the answer had to have; "" where it was free."""
    auxiliary: str = ""
    """Why the turn is no part of the work, such as a title that a program asked for; "" for a part of it. An auxiliary
    turn stays in the record. No loss is over its tokens, and statistics count it apart."""
    constrained: int = 0
    """Number of `token_ids`, the last ones, that were sampled under a grammar. Their logprobs are those of the tokens
    that the grammar allowed; a trainer does not know the grammar, so no loss is over them."""

    def __post_init__(self) -> None:
        # A slot without a value would raise at every look. mypy does not see the slot of the parent.
        self._packed = None  # type: ignore[misc]
        if self.kind == "text":
            require(
                not (self.prompt_ids or self.token_ids or self.logprobs or self.versions), "a text turn has no tokens"
            )
            return
        require(bool(self.token_ids), "a turn holds at least one token that the model wrote")
        if self.constrained:
            require(0 < self.constrained <= len(self.token_ids), "constrained tokens are tokens of the turn")
        if self.kind == "tokens":
            require(not self.logprobs and not self.versions, "a demonstration has no logprobs and no versions")
            return
        require(len(self.logprobs) == len(self.token_ids), "one logprob per sampled token")
        if len(self.versions) == 1 and self.versions[0][1] == len(self.token_ids):
            return  # the usual case: one version sampled all tokens
        counts = [n for _, n in self.versions]
        require(sum(counts) == len(self.token_ids), "version spans cover the sampled tokens")
        require(min(counts, default=1) > 0, "a version span is never empty")

    @property
    def generator_logprobs(self) -> tuple[float, ...]:
        """The logprobs of `token_ids` under the policy that sampled them; empty where there are none."""
        return self.logprobs

    @property
    def packed(self) -> PackedTurn:
        """The tokens as bytes."""
        if (arrived := _arrived(self)) is not None:
            return arrived
        ids = pack(self.prompt_ids, "i") + pack(self.token_ids, "i")
        return PackedTurn(ids, len(self.prompt_ids), pack(self.logprobs, "d"))

    @property
    def num_prompt(self) -> int:
        """Number of `prompt_ids`; counting them unpacks nothing."""
        arrived = _arrived(self)
        return len(self.prompt_ids) if arrived is None else arrived.num_prompt

    @property
    def num_tokens(self) -> int:
        """Number of `token_ids`; counting them unpacks nothing."""
        arrived = _arrived(self)
        return len(self.token_ids) if arrived is None else len(arrived.ids) // 4 - arrived.num_prompt

    @property
    def num_written(self) -> int:
        """Number of `token_ids` that the model sampled, or the expert wrote: all but those that were inserted."""
        return self.num_tokens - sum(n for version, n in self.versions if version == NOT_SAMPLED)

    @property
    def num_trained(self) -> int:
        """Number of `token_ids` that a loss is over: those written, and not under a grammar; 0 in an auxiliary turn."""
        return 0 if self.auxiliary else self.num_written - self.constrained

    def __getstate__(self) -> tuple[tuple[Any, ...], PackedTurn]:
        return tuple(getattr(self, name) for name in _OTHER_FIELDS), self.packed

    def __setstate__(self, state: tuple[tuple[Any, ...], PackedTurn]) -> None:
        values, packed = state
        object.__setattr__(self, "_packed", packed)
        for name, value in zip(_OTHER_FIELDS, values, strict=True):
            setattr(self, name, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[Any, ...]:
            """Unpack a field that has not been read since the turn arrived."""
            arrived = _arrived(self) if name in TOKEN_FIELDS else None
            if arrived is None:
                raise AttributeError(name)
            end = 4 * arrived.num_prompt
            packed, kind = {
                "prompt_ids": (arrived.ids[:end], "i"),
                "token_ids": (arrived.ids[end:], "i"),
                "logprobs": (arrived.logprobs, "d"),
            }[name]
            value = unpack(packed, kind)
            setattr(self, name, value)
            return value


_OTHER_FIELDS = tuple(f.name for f in fields(Turn) if f.name not in TOKEN_FIELDS)


class RowArrays(NamedTuple):
    """The fields of a `Row` as NumPy arrays, which cannot be written to."""

    token_ids: np.ndarray
    """int32"""
    loss_mask: np.ndarray
    """bool"""
    generator_logprobs: np.ndarray
    """float64"""
    versions: np.ndarray
    """int32"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(_Packable):
    """One contiguous training sequence of an Episode; its first four fields have one entry per token.

    They are tuples. A row of an Episode makes them when they are read; `arrays` makes no Python objects at all.

    Example: ``Row(token_ids=(1, 8, 3, 9, 2), loss_mask=(False, False, False, True, True),
    generator_logprobs=(0.0, 0.0, 0.0, -0.2, -0.1), versions=(-1, -1, -1, 0, 0))``
    """

    _packed_fields: ClassVar[tuple[str, ...]] = tuple(ROW_KINDS)

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True exactly on the tokens that the model sampled freely (or the expert wrote): not on those that an agent
    inserted, not on those that were sampled under a grammar, and not on those of auxiliary turns."""
    generator_logprobs: tuple[float, ...]
    """The logprob of the policy that sampled, where the mask is true and there is one, else 0."""
    versions: tuple[int, ...]
    """Weight version of each token where the mask is true, -1 elsewhere."""
    routes: tuple[Routes, ...] = ()
    """Experts that the engine chose for the row's tokens; where two of them have a token, the first one counts."""

    @property
    def num_tokens(self) -> int:
        """Number of `token_ids`; counting them unpacks nothing."""
        arrived = _arrived(self)
        return len(self.token_ids) if arrived is None else len(arrived.token_ids) // 4

    @property
    def packed(self) -> PackedRow:
        """The four fields as bytes."""
        arrived: PackedRow | None = _arrived(self)
        return arrived or PackedRow(*(pack(getattr(self, name), kind) for name, kind in ROW_KINDS.items()))

    @property
    def arrays(self) -> RowArrays:
        """The four fields as NumPy arrays."""
        import numpy as np

        found = zip(self.packed, (np.int32, np.bool_, np.float64, np.int32), strict=True)
        return RowArrays(*(np.frombuffer(data, dtype=dtype) for data, dtype in found))

    def __getstate__(self) -> tuple[PackedRow, tuple[Routes, ...]]:
        return self.packed, self.routes

    def __setstate__(self, state: tuple[PackedRow, tuple[Routes, ...]]) -> None:
        packed, routes = state
        object.__setattr__(self, "_packed", packed)
        object.__setattr__(self, "routes", routes)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[Any, ...]:
            """Unpack a field that has not been read yet."""
            arrived = _arrived(self) if name in ROW_KINDS else None
            if arrived is None:
                raise AttributeError(name)
            value = unpack(getattr(arrived, name), ROW_KINDS[name])
            object.__setattr__(self, name, value)
            return value


def _arrived(holder: Any) -> Any:
    """The numbers of a turn or a row that are packed; None for one that was made of Python objects."""
    try:
        return object.__getattribute__(holder, "_packed")
    except AttributeError:
        return None


def join(turns: Sequence[Turn]) -> Row:
    row_hash = hashlib.blake2b(digest_size=8)  # incremental: a new `digest` at every turn would be quadratic
    packed = [turn.packed for turn in turns]
    for turn, (ids, num_prompt, _) in zip(turns, packed, strict=True):
        row_hash.update(ids[: 4 * num_prompt])
        at = num_prompt
        for start, seen in _requests(turn):
            row_hash.update(ids[4 * at : 4 * (num_prompt + start)])
            is_same = row_hash.hexdigest() == seen
            require(is_same, "what the engine saw is the concatenation of the row")
            at = num_prompt + start
        row_hash.update(ids[4 * at :])
    row = object.__new__(Row)
    joined = join_turns([_free(tokens, turn) for tokens, turn in zip(packed, turns, strict=True)])
    row.__setstate__((joined, tuple(routes for turn in turns for routes in turn.routes)))
    return row


def _free(packed: PackedTurn, turn: Turn) -> tuple[PackedTurn, Sequence[tuple[int, int]]]:
    """The tokens and versions of a turn as its row has them: tokens without a loss as if nobody had sampled them."""
    count = turn.num_tokens if turn.auxiliary else turn.constrained
    if not count:
        return packed, turn.versions
    logprobs = packed.logprobs and packed.logprobs[: -8 * count] + bytes(8 * count)
    spans = first_versions(turn.versions, turn.num_tokens - count)
    return packed._replace(logprobs=logprobs), (*spans, (NOT_SAMPLED, count))


def first_versions(versions: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """The spans (version, number of tokens) of the first `count` tokens."""
    kept: list[tuple[int, int]] = []
    for version, length in versions:
        if count > 0:
            kept.append((version, min(length, count)))
        count -= length
    return tuple(kept)


def _requests(turn: Turn) -> list[tuple[int, str]]:
    """The requests that a turn was sampled by: where in its tokens each begins, and the digest of the prompt it saw."""
    digests = turn.context_digest.split()
    if len(turn.versions) < 2:
        starts = [0]
    else:
        ends = accumulate(count for _, count in turn.versions[:-1])
        starts = [0, *(end for end, (version, _) in zip(ends, turn.versions, strict=False) if version == NOT_SAMPLED)]
    require(not digests or len(digests) == len(starts), "each request of a turn has a digest of what the engine saw")
    return list(zip(starts, digests, strict=False))


def require(condition: bool, rule: str) -> None:
    """
    Raises:
        InvariantError: when the condition does not hold.
    """
    if not condition:
        raise broken(rule)


def broken(rule: str) -> InvariantError:
    """The exception for a broken rule."""
    return InvariantError(f"episode invariant broken: {rule}")
