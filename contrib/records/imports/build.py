"""Makes Episodes of conversations that other programs have logged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forge_env.core.episode import Episode, Lineage
from forge_env.core.errors import UserError
from forge_env.core.plain_value import messages_problem
from forge_env.core.reward_value import MAX_REWARD
from forge_env.core.routes import Routes
from forge_env.core.turn import Turn, digest
from forge_env.core.types import NOT_SAMPLED, Message, Outcome, Task, ToolCall, ToolUse
from forge_env.records.run_files import IMPORTED


class BadRecord(ValueError):
    """A record that is not what its format asks for: the whole import ends with its place."""


class NotCarried(ValueError):
    """A record that no Episode can hold, such as one with images: it is left out, and counted by this reason."""


@dataclass(slots=True, kw_only=True)
class Log:
    """What a log says of one conversation; `build` makes an Episode of it."""

    messages: list[tuple[Message, bool]] = field(default_factory=list)
    """Each message, and whether the model wrote it in this conversation; the environment showed the others."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """Of each message that the model wrote: `reward`, `finish_reason`, seconds, `tool_uses`, `usage`, where known; and
    under `tokens` the fields of a Turn with tokens, sampled unless they say another kind, where the log holds them."""
    tools: list[Any] = field(default_factory=list)
    model: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What `outcome_of` writes into an export, as far as it is known: the reward, the id, the task."""
    source: str = ""
    """The format, with its version."""
    missing: set[str] = field(default_factory=set)
    """What the log holds and its Episode does not."""
    unversioned: bool = False
    """Whether it holds tokens, and does not say which weights sampled them: 0 stands for them."""


def build(log: Log, default_reward: float | None, default_id: str) -> Episode:
    """Make an Episode, of kind text if the log holds no tokens; the defaults are for what it does not say."""
    if problem := messages_problem([message for message, _ in log.messages]):
        raise BadRecord(problem)
    turns, pending, facts = list[Turn](), list[Message](), iter(log.turns)
    for message, is_written in log.messages:
        if not is_written:
            pending.append(message)
            continue
        turns.append(_turn(tuple(pending), message, next(facts, {})))
        pending = []
    if not turns:
        raise NotCarried("without an answer of the model")
    about = log.about
    outcome, reward = _outcome(about, default_reward)
    if reward is not None and not any("reward" in fact for fact in log.turns):
        turns[-1].reward = reward
    return Episode(
        task=_task(about.get("task"), turns[0].observation),
        turns=tuple(turns),
        tail=tuple(pending),
        outcome=outcome,
        reward=reward,
        rewards={name: _number(part) for name, part in mapping(about.get("rewards")).items()},
        success=about.get("success") if isinstance(about.get("success"), bool) and reward is not None else None,
        id=_text(about.get("id")) or default_id,
        group_id=_text(about.get("group_id")),
        env=_text(about.get("env")),
        seed=about["seed"] if isinstance(about.get("seed"), int) else 0,
        error=_text(about.get("error")),
        ended_by=_text(about.get("ended_by")),
        lineage=_lineage(about.get("lineage")),
        info={
            **mapping(about.get("info")),
            IMPORTED: {
                "from": log.source,
                **({"tools": log.tools} if log.tools else {}),
                **({"model": log.model} if log.model else {}),
            },
        },
    )


def _outcome(about: Mapping[str, Any], default_reward: float | None) -> tuple[Outcome, float | None]:
    try:
        outcome = Outcome(about.get("outcome", Outcome.SCORED))
    except ValueError:
        raise BadRecord(f"its outcome is {about['outcome']!r}, one of {', '.join(Outcome)}") from None
    if not outcome.is_valid:
        return outcome, None
    reward = about.get("reward")
    if reward is None:
        reward = default_reward
    if reward is None:
        raise UserError(
            "it holds no reward, and an Episode has one: say with --reward what such records count as, "
            "--reward 1 for demonstrations for example"
        )
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not abs(reward) <= MAX_REWARD:
        raise BadRecord(f"its reward is {reward!r:.80}, not a number of a size of {MAX_REWARD:g} at most")
    return outcome, float(reward)


def _turn(observation: tuple[Message, ...], message: Message, facts: Mapping[str, Any]) -> Turn:
    uses = facts.get("tool_uses")
    turn = Turn(
        kind="text",
        observation=observation,
        message=message,
        tool_calls=tuple(_parsed_call(call) for call in message.get("tool_calls", ())),
        finish_reason=_text(facts.get("finish_reason")) or "stop",
        reward=_number(facts.get("reward")),
        policy_seconds=_number(facts.get("policy_seconds")),
        env_seconds=_number(facts.get("env_seconds")),
        tool_uses=tuple(
            ToolUse(name=_text(use.get("name")), seconds=_number(use.get("seconds")), error=_text(use.get("error")))
            for use in (uses if isinstance(uses, list) else ())
            if isinstance(use, Mapping)
        ),
        usage=facts.get("usage") or None,
        auxiliary=_text(facts.get("auxiliary")),
        is_summary=facts.get("is_summary") is True,
    )
    return replace(turn, **{"kind": "sampled", **facts["tokens"]}) if "tokens" in facts else turn


def _parsed_call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    text = function["arguments"]
    try:
        arguments = json.loads(text)
        reason = "The arguments are no JSON object."
    except (ValueError, RecursionError) as error:
        arguments, reason = None, f"The arguments are no JSON: {error}."
    if not isinstance(arguments, dict):
        return ToolCall(id=call["id"], name=function["name"], arguments=None, raw=text, error=reason)
    return ToolCall(id=call["id"], name=function["name"], arguments=arguments)


def _task(about: Any, messages: Sequence[Message]) -> Task:
    if not isinstance(about, Mapping):
        return Task(prompt=tuple(messages))
    prompt = about.get("prompt")
    if prompt is not None and (problem := messages_problem(prompt)):
        raise BadRecord(f"in the prompt of its task, {problem}")
    return Task(
        prompt=tuple(messages if prompt is None else prompt),
        target=about.get("target"),
        metadata=mapping(about.get("metadata")),
        id=_text(about.get("id")),
        kind=_text(about.get("kind")),
    )


def _lineage(rows: Any) -> tuple[Lineage, ...]:
    try:
        return tuple(Lineage(**row) for row in rows or ())
    except TypeError as error:
        raise BadRecord(f"its lineage is none: {error}") from None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object of a log, {} in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_REWARD
    return float(value) if is_number else 0.0


_MOST_ID = 2**31 - 1  # ids are packed as 32 bits


class Rows:
    """The tokens of one conversation after another: a prompt that begins with the row so far goes on with it."""

    def __init__(self) -> None:
        self._row: list[int] = []

    def place(self, prompt: Sequence[int], tokens: Sequence[int], starts_row: Any = None) -> dict[str, Any]:
        """Return the fields of a Turn that say where its tokens are; the prompt is the whole one of the call."""
        length = len(self._row)
        is_same = bool(length) and list(prompt[:length]) == self._row
        starts = not is_same if starts_row is None else bool(starts_row)
        if not (starts or is_same):
            raise BadRecord("its prompt does not go on from the tokens before it, as what forge_env has kept says")
        self._row = [*prompt, *tokens]
        return {"starts_row": starts, "prompt_ids": prompt[0 if starts else length :], "token_ids": tokens}


def check_ids(*lists: Sequence[Any]) -> None:
    if not all(type(token) is int and 0 <= token <= _MOST_ID for tokens in lists for token in tokens):
        raise BadRecord(f"a token id is no whole number from 0 to {_MOST_ID}")


def check_logprobs(logprobs: Sequence[Any], tokens: Sequence[int], most: float = math.inf) -> None:
    if len(logprobs) != len(tokens):
        raise BadRecord(f"it has {len(logprobs)} logprobs for {len(tokens)} tokens")
    if not all(type(p) in (int, float) and -math.inf < p < math.inf and p <= most for p in logprobs):
        raise BadRecord("a logprob is no finite number" + " up to 0" * (most == 0))


def kept_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Read what `exports.conversation.token_facts` has written, as fields of a Turn."""
    try:
        return {
            "versions": tuple((NOT_SAMPLED if v is None else int(v), int(n)) for v, n in facts["weight_versions"]),
            "context_digest": str(facts["context_digest"]),
            "tool_calls": tuple(ToolCall(**item) for item in facts["tool_calls"]),
            "routes": tuple(map(Routes.of_text, facts.get("routes", ()))),
            "constraint": str(facts.get("constraint", "")),
            "constrained": int(facts.get("constrained", 0)),
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadRecord(f"what forge_env has kept of it is broken ({type(error).__name__}: {error})") from None


def bare_fields(prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """The fields of a Turn with tokens that were all sampled by weights without a name."""
    return {"versions": ((0, len(tokens)),), "context_digest": digest(prompt)}
