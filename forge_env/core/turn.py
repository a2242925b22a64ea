"""Completion, Turn and Row: the tokens of an episode, as a policy gives, an agent records and a trainer reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from forge_env.core.errors import InvariantError
from forge_env.core.tokens import (
    FLOATS,
    IDS,
    MASK,
    NO_FLOATS,
    NO_IDS,
    Ids,
    TokenRecord,
    array_of,
    bytes_of,
    join_arrays,
)
from forge_env.core.types import NOT_SAMPLED, Message, ToolCall, ToolUse

if TYPE_CHECKING:
    from forge_env.core.routes import Routes

TurnKind = Literal["text", "tokens", "sampled"]
SAMPLED: Mapping[str, np.dtype] = {"token_ids": IDS, "logprobs": FLOATS}
"""What an engine reports of each token that it samples: fields of a Completion and of the Turn that it becomes."""
_NO_VERSION = NOT_SAMPLED.to_bytes(4, "little", signed=True)
_NO_TOKENS = "a text turn has no tokens"
_NEEDS_TOKENS = "a turn holds at least one token that the model wrote"


def digest(token_ids: Ids) -> str:
    """Hash of a token sequence, as kept with each turn: 64 bits of blake2b over little-endian 32-bit ids."""
    return hashlib.blake2b(array_of(token_ids, IDS, "token_ids").data, digest_size=8).hexdigest()


@dataclass(slots=True, kw_only=True, eq=False)
class Completion(TokenRecord):
    """What a policy sampled for one prompt, token-exact. Nothing changes it once it is made.

    Example: ``Completion(prompt_ids=(5, 9), token_ids=(7, 2), logprobs=(-0.1, -0.7), versions=((3, 2),))``
    """

    ARRAYS: ClassVar[Mapping[str, np.dtype]] = {"prompt_ids": IDS, **SAMPLED}

    prompt_ids: np.ndarray
    """int32: the ids that the engine says it saw."""
    token_ids: np.ndarray
    """int32: the ids that were sampled."""
    logprobs: np.ndarray
    """float64, of each sampled token at the sampling temperature; `generator_logprobs` from here to the loss."""
    versions: tuple[tuple[int, int], ...]
    """Spans (weight version, number of tokens) that cover `token_ids` in order; the version of tokens that were
    inserted is NOT_SAMPLED, and their logprob 0."""
    text: str = ""
    finish_reason: str = "stop"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    routes: tuple[Routes, ...] = ()
    """Experts of a mixture-of-experts model that the engine chose for the tokens of `prompt_ids` and `token_ids`, all
    but the last one, which was not an input; empty where the engine does not return them."""
    constrained: int = 0
    """Number of tokens, the last of `token_ids`, that were sampled under `Sampling.grammar`. Their logprobs are those
    of the tokens that the grammar allowed."""

    @property
    def sampled(self) -> dict[str, Any]:
        """The fields that a Turn has, too: those of SAMPLED."""
        return {name: getattr(self, name) for name in SAMPLED}

    def first(self, count: int) -> Completion:
        """Return the completion that ends after `count` of its tokens."""
        cut: dict[str, Any] = {name: values[:count] for name, values in self.sampled.items()}
        left_out = len(self.token_ids) - count
        versions = first_versions(self.versions, count)
        return replace(self, **cut, versions=versions, constrained=max(0, self.constrained - left_out))

    def with_inserted(self, inserted: Sequence[int]) -> np.ndarray:
        """The tokens so far, followed by inserted ones: the prompt of a turn's second request."""
        return join_arrays(IDS, self.prompt_ids, self.token_ids, array_of(inserted, IDS, "inserted"))

    def then(self, inserted: Sequence[int], rest: Completion) -> Completion:
        """Return the completion of a turn that had two requests.

        Args:
            inserted: tokens that nobody sampled, between the two completions.

        Raises:
            InvariantError: when the engine has seen another prompt there than the tokens so far.
        """
        insertion: dict[str, Any] = {"token_ids": array_of(inserted, IDS, "inserted")}
        if not np.array_equal(self.with_inserted(inserted), rest.prompt_ids):
            raise InvariantError("what the engine saw of a turn's second request is not the turn so far")
        zeros = bytes(len(inserted) * FLOATS.itemsize)
        joined_arrays: dict[str, Any] = {
            name: join_arrays(kind, getattr(self, name), insertion.get(name, zeros), getattr(rest, name))
            for name, kind in SAMPLED.items()
        }
        spans = ((NOT_SAMPLED, len(inserted)),) if len(inserted) else ()
        num_known = len(self.prompt_ids) + len(self.token_ids) - 1
        return replace(
            rest,
            prompt_ids=self.prompt_ids,
            **joined_arrays,
            versions=(*self.versions, *spans, *rest.versions),
            routes=(*self.routes, *(routes.within(num_known, routes.end) for routes in rest.routes)),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Turn(TokenRecord):
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

    ARRAYS: ClassVar[Mapping[str, np.dtype]] = {"prompt_ids": IDS, **SAMPLED}

    kind: TurnKind
    observation: tuple[Message, ...]
    """Messages that the environment added before this turn."""
    message: Message
    tool_calls: tuple[ToolCall, ...] = ()
    prompt_ids: np.ndarray = field(default_factory=lambda: NO_IDS)
    """int32: ids of the tokens since the end of the last turn; the whole prompt at the start of a row."""
    token_ids: np.ndarray = field(default_factory=lambda: NO_IDS)
    """int32: ids that the model wrote."""
    logprobs: np.ndarray = field(default_factory=lambda: NO_FLOATS)
    """float64, of each sampled token, as the engine reported it; `generator_logprobs` from here to the loss."""
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
    """Why the turn is not part of the work, such as a title that a program asked for; "" for a part of it. An auxiliary
    turn stays in the record. No loss is over its tokens, and statistics count it apart."""
    is_summary: bool = False
    """Whether it is a summary in the place of the turns before, see `EpisodeLimits.compact_at`. It is trained on like
    any turn of the work; the environment does not see it."""
    constrained: int = 0
    """Number of `token_ids`, the last ones, that were sampled under a grammar. Their logprobs are those of the tokens
    that the grammar allowed; a trainer does not know the grammar, so no loss is over them."""

    def __post_init__(self) -> None:
        if self.token_ids is NO_IDS and self.prompt_ids is NO_IDS and self.logprobs is NO_FLOATS:
            require(self.kind == "text", _NEEDS_TOKENS)
            require(not self.versions, _NO_TOKENS)
            return
        TokenRecord.__post_init__(self)
        sampled = len(self.token_ids)
        if self.kind == "text":
            require(not (sampled or len(self.prompt_ids) or len(self.logprobs) or self.versions), _NO_TOKENS)
            return
        require(sampled > 0, _NEEDS_TOKENS)
        if self.constrained:
            require(0 < self.constrained <= sampled, "constrained tokens are tokens of the turn")
        if self.kind == "tokens":
            require(not len(self.logprobs) and not self.versions, "a demonstration has no logprobs and no versions")
            return
        require(len(self.logprobs) == sampled, "one logprob per sampled token")
        if len(self.versions) == 1 and self.versions[0][1] == sampled:
            return  # the usual case: one version sampled all tokens
        counts = [n for _, n in self.versions]
        require(sum(counts) == sampled, "version spans cover the sampled tokens")
        require(min(counts, default=1) > 0, "a version span is never empty")

    @property
    def num_written(self) -> int:
        """Number of `token_ids` that the model sampled, or the expert wrote: all but those that were inserted."""
        return len(self.token_ids) - sum(n for version, n in self.versions if version == NOT_SAMPLED)

    @property
    def num_trained(self) -> int:
        """Number of `token_ids` that a loss is over: those written, and not under a grammar; 0 in an auxiliary turn."""
        return 0 if self.auxiliary else self.num_written - self.constrained


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row(TokenRecord):
    """One contiguous training sequence of an Episode; its first four fields are arrays with one entry per token.

    Example: ``Row(token_ids=(1, 8, 3, 9, 2), loss_mask=(False, False, False, True, True),
    generator_logprobs=(0.0, 0.0, 0.0, -0.2, -0.1), versions=(-1, -1, -1, 0, 0))``
    """

    ARRAYS: ClassVar[Mapping[str, np.dtype]] = {
        "token_ids": IDS,
        "loss_mask": MASK,
        "generator_logprobs": FLOATS,
        "versions": IDS,
    }

    token_ids: np.ndarray
    """int32."""
    loss_mask: np.ndarray
    """bool, True exactly on the tokens that the model sampled freely (or the expert wrote): not on those that an agent
    inserted, not on those that were sampled under a grammar, and not on those of auxiliary turns."""
    generator_logprobs: np.ndarray
    """float64: the logprob of the policy that sampled, where the mask is true and there is one, else 0."""
    versions: np.ndarray
    """int32: weight version of each token where the mask is true, -1 elsewhere."""
    routes: tuple[Routes, ...] = ()
    """Experts that the engine chose for the row's tokens; where two of them have a token, the first one counts."""


def join(turns: Sequence[Turn]) -> Row:
    row_hash = hashlib.blake2b(digest_size=8)  # incremental: a new `digest` at every turn would be quadratic
    ids: list[bytes] = []
    masks: list[bytes] = []
    logprobs: list[bytes] = []
    versions: list[bytes] = []
    for turn in turns:
        # Bytes are joined and hashed several times as fast as short arrays.
        prompt, sampled, scores = bytes_of(turn.prompt_ids), bytes_of(turn.token_ids), bytes_of(turn.logprobs)
        tokens, spans = len(turn.token_ids), turn.versions
        row_hash.update(prompt)
        end = 0
        for start, hash_of_request in _requests(turn):
            if start:
                row_hash.update(sampled[4 * end : 4 * start])
            require(row_hash.hexdigest() == hash_of_request, "what the engine saw is the concatenation of the row")
            end = start
        row_hash.update(sampled[4 * end :])
        if turn.auxiliary or turn.constrained:  # tokens without a loss are in a row as if nobody had sampled them
            num_learned = 0 if turn.auxiliary else tokens - turn.constrained
            spans = (*first_versions(spans, num_learned), (NOT_SAMPLED, tokens - num_learned))
            scores = scores[: 8 * num_learned]
        ids += (prompt, sampled)
        masks.append(bytes(len(prompt) // 4))
        logprobs += (bytes(2 * len(prompt)), scores, bytes(8 * tokens - len(scores)))
        versions.append(_NO_VERSION * (len(prompt) // 4))
        for version, count in spans or ((NOT_SAMPLED, tokens),):
            versions.append(version.to_bytes(4, "little", signed=True) * count)
            is_inserted = version == NOT_SAMPLED and bool(spans)  # a demonstration has no spans
            masks.append((b"\0" if is_inserted else b"\1") * count)
    return Row(
        token_ids=join_arrays(IDS, *ids),
        loss_mask=join_arrays(MASK, *masks),
        generator_logprobs=join_arrays(FLOATS, *logprobs),
        versions=join_arrays(IDS, *versions),
        routes=tuple([routes for turn in turns for routes in turn.routes]),
    )


def first_versions(versions: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """The spans (version, number of tokens) of the first `count` tokens."""
    spans: list[tuple[int, int]] = []
    for version, length in versions:
        if count > 0:
            spans.append((version, min(length, count)))
        count -= length
    return tuple(spans)


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
    if not condition:
        raise violation(rule)


def violation(rule: str) -> InvariantError:
    return InvariantError(f"episode invariant broken: {rule}")
