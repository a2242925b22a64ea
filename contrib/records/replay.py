"""Runs a recorded episode again: the same environment, task and seed, and the recorded turns of the model.

The results of the environment are compared with the recorded ones. Times and random names in a text are expected to
differ. Anything else is a difference, after which the recorded turns no longer answer the observations.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from contrib.records.run_settings import RunSettings
from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import PolicyError, TurnRefused, UserError
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import Action, Message, Outcome, ToolSpec, ToolUse
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.group_reward import without_group_rewards
from forge_env.rollout.rollout import run_episode

_EXTERNAL_OUTCOMES = {Outcome.INFRA_FAULT: "the machinery failed then", Outcome.TIMEOUT: "services were too slow then"}
Verdict = Literal["same", "expected", "different", "not reached"]
"""Comparison of one value; "expected": equal except for times and random names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. Example: ``Difference(turn=1, what="reward", recorded="1", replayed="0")``"""

    turn: int | None
    """Number of the turn, from 0 on; None for the episode as a whole."""
    what: str
    """ "observation", "tools", "reward", "end", "outcome" or "rewards"."""
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCheck:
    observation: Verdict
    tools: Verdict = "not reached"
    reward: Verdict = "not reached"


@dataclass(kw_only=True)
class Replay:
    recorded: Episode
    replayed: Episode
    turn_of: Mapping[int, Turn] = field(default_factory=dict)
    """Number of the recorded turn -> the turn of the replay."""
    turns: list[TurnCheck] = field(default_factory=list)
    """One for each recorded turn."""
    tail: Verdict = "not reached"
    """Comparison of the messages after the last turn."""
    outcome: Verdict = "not reached"
    reward: Verdict = "not reached"
    differences: list[Difference] = field(default_factory=list)
    """In the order in which they arose."""
    stop_reason: str = ""
    """Why the replay stopped before the end; "" if it did not."""
    notes: list[str] = field(default_factory=list)
    """Further remarks for the reader."""

    @property
    def same(self) -> bool:
        return not self.differences


async def replay(record: Episode, settings: RunSettings, *, keep_going: bool = False) -> Replay:
    """Run an episode again with the turns that were recorded.

    If the settings name no environment, the episode's is used. `keep_going` takes all turns, even after an observation
    differs.
    """
    name = settings.env or record.env
    if not name:
        raise UserError(f"the episode {record.id} names no environment: name it with --env")
    factory = make(name, **settings.options)
    factory.add_group_reward(settings.group_reward)
    async with factory:
        return await replay_in(factory, record, settings, keep_going=keep_going)


async def replay_in(factory: EnvFactory, record: Episode, settings: RunSettings, *, keep_going: bool = False) -> Replay:
    """As `replay`, in an environment that is open. What siblings are compared by is not part of it."""
    agent, limits = Replayer(record, keep_going=keep_going), settings.limits
    if any(turn.is_summary for turn in record.turns):  # the record says when, and the limits may not be recorded
        limits = replace(limits or factory.episode_limits(), compact_at=0.5)
    episode = await run_episode(
        factory,
        agent,
        record.task,
        seed=record.seed,
        episode_id=record.id,
        group_id=record.group_id,
        limits=limits,
        env_options=record.info.get("env_options"),
    )
    alone = without_group_rewards(record, factory.group_rewards)
    return compare_episodes(alone, episode, agent.turn_of, agent.stop)


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a replay stopped, and the observation that had no recorded turn."""

    reason: str
    number: int
    """Number of the next recorded turn; the number of turns, if there is none."""
    observation: tuple[Message, ...]


class Replayer:
    """An agent that takes the turns of a recorded episode.

    Tokens, logprobs and digests stay as recorded. An environment may have several conversations with the model; the
    record holds the turns of one conversation after another's, whatever their order in time. Each conversation
    continues after its last turn, and a new one begins with the first turn whose observation fits. Without
    `keep_going` it stops at the first observation that differs.
    """

    completes = True
    constrains = True

    def __init__(self, record: Episode, *, keep_going: bool = False) -> None:
        self._record = record
        self._keep_going = keep_going
        self._full = Counter(record.info.get("full_contexts", ()))  # number of turns before a full prompt -> count
        self.turn_of: dict[int, Turn] = {}
        """Number of the recorded turn -> the turn taken in the replay."""
        self.stop: Stop | None = None

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        number = self._next(conversation)
        if self._was_full(conversation, number):
            raise ContextFull("the prompt left no room to answer when this was recorded")
        if number == len(self._record.turns):
            raise self._end(conversation.observation)
        turn = self._record.turns[number]
        if conversation.is_summarised != turn.is_summary or (
            conversation.shorter and len(turn.observation) == len(conversation.shorter)
        ):
            raise ContextFull("the prompt waited for a summary, or for a shorter one, when this was recorded")
        observation = _observation(conversation, turn)
        if not self._keep_going and compare_values(turn.observation, observation) == "different":
            reason = f"the observation before turn {number} differs, so that the turn is no answer to it"
            raise self._end_at(reason, number, observation)
        request = conversation.next_turn
        if request is not None and request.constraint is not None and request.constraint.label != turn.constraint:
            raise TurnRefused("the answer had not this form when it was recorded")
        answer = replace(turn, observation=observation, reward=0.0, tool_uses=(), policy_seconds=0.0, env_seconds=0.0)
        self.turn_of[number] = answer
        return answer, Action(message=turn.message, tool_calls=turn.tool_calls, finish_reason=turn.finish_reason)

    def _was_full(self, conversation: Conversation, number: int) -> bool:
        """Whether the next prompt left no room to answer. Where turns ran at once, it fits no recorded turn."""
        turns, count = self._record.turns, len(self.turn_of)
        if "turns_at_once" in self._record.info:
            count = min(+self._full, default=count)
            if number < len(turns):
                was = turns[number]
                if compare_values(was.observation, _observation(conversation, was)) != "different":
                    return False
        if not self._full[count]:
            return False
        self._full[count] -= 1
        return True

    def _next(self, conversation: Conversation) -> int:
        if conversation.turns:
            last = conversation.turns[-1]
            number = next(number for number, turn in self.turn_of.items() if turn is last) + 1
            return len(self._record.turns) if number in self.turn_of else number  # taken by another conversation
        turns, latest = self._record.turns, next(reversed(self.turn_of), -1)
        for row in self._record.lineage:
            if row.kind == "summary" and row.parent == latest:
                return row.turn
        rest = [number for number in range(len(turns)) if number not in self.turn_of]
        rest.sort(key=lambda number: number - 1 in self.turn_of)  # last, those that may continue another conversation
        fits = (
            n for n in rest if compare_values(turns[n].observation, _observation(conversation, turns[n])) != "different"
        )
        return next(fits, rest[0] if rest else len(turns))

    def _end(self, observation: tuple[Message, ...]) -> Exception:
        if self._record.outcome is Outcome.TRUNCATED:
            return ContextFull()  # whichever limit ended it: tokens, turns or time
        if self._record.outcome in _EXTERNAL_OUTCOMES:
            return PolicyError(self._record.error)
        reason = "the record has no more turns, and the environment continues"
        return self._end_at(reason, len(self._record.turns), observation)

    def _end_at(self, reason: str, number: int, observation: tuple[Message, ...]) -> PolicyError:
        self.stop = Stop(reason, number, observation)
        return PolicyError(reason)


def _observation(conversation: Conversation, turn: Turn) -> tuple[Message, ...]:
    """Return the observation at a recorded turn; for a plain prompt, the recorded part if the prompt ends with it."""
    number = conversation.next_turn
    if number is None or number.prompt is None:
        return conversation.observation
    old = turn.observation[0]["content"] if turn.observation else ""
    if isinstance(number.prompt, str):
        same, text = number.prompt.endswith(old), number.prompt
    else:
        same, text = list(number.prompt[-len(turn.prompt_ids) :]) == turn.prompt_ids.tolist(), str(number.prompt)
    return turn.observation if same else ({"role": "user", "content": text},)


def compare_episodes(
    recorded: Episode, replayed: Episode, turn_of: Mapping[int, Turn], stop: Stop | None = None
) -> Replay:
    """Compare two episodes of the same turns; `turn_of` has the turn of the replay by the recorded turn's number."""
    result = Replay(recorded=recorded, replayed=replayed, turn_of=turn_of, stop_reason=stop.reason if stop else "")
    for number, turn in enumerate(recorded.turns):
        if number in turn_of:
            result.turns.append(_compare_turn(result, number, turn, turn_of[number]))
        elif stop is not None and number == stop.number:
            verdict = _check(result, number, "observation", turn.observation, stop.observation)
            result.turns.append(TurnCheck(observation=verdict))
        else:
            result.turns.append(TurnCheck(observation="not reached"))
    count, missing = len(recorded.turns), next((n for n in range(len(recorded.turns)) if n not in turn_of), None)
    if stop is not None and stop.number == count:
        end = Difference(turn=count, what="end", recorded=_ending_of(recorded), replayed=stop.reason)
        result.differences.append(end)
    elif stop is None and missing is not None:
        was = f"turn {missing} of {count} came next"
        result.differences.append(Difference(turn=missing, what="end", recorded=was, replayed=_ending_of(replayed)))
    elif stop is None:
        if not (recorded.turns and _broke_off(recorded, recorded.turns[-1])):
            result.tail = _check(result, count, "observation", recorded.tail, replayed.tail)
        _compare_ends(result)
    return result


def _compare_turn(result: Replay, number: int, was: Turn, now: Turn) -> TurnCheck:
    observation = _check(result, number, "observation", was.observation, now.observation)
    if _broke_off(result.recorded, was) or _broke_off(result.replayed, now):
        return TurnCheck(observation=observation)
    return TurnCheck(
        observation=observation,
        tools=_check(result, number, "tools", _uses(was.tool_uses), _uses(now.tool_uses)),
        reward=_check(result, number, "reward", was.reward, now.reward),
    )


def _broke_off(episode: Episode, turn: Turn) -> bool:
    """Whether the environment never answered a turn: it failed, or the episode ran out of time."""
    ends_otherwise = episode.outcome in (Outcome.SCORED, Outcome.MODEL_FAULT)
    return turn is episode.turns[-1] and not turn.env_seconds and not ends_otherwise


def _compare_ends(result: Replay) -> None:
    was, now = result.recorded, result.replayed
    if was.outcome in _EXTERNAL_OUTCOMES:
        result.notes.append(f"{_EXTERNAL_OUTCOMES[was.outcome]}, which says nothing about the environment: {was.error}")
        return
    result.outcome = _check(result, None, "outcome", _outcome_text(was), _outcome_text(now))
    result.reward = _check(result, None, "reward", was.reward, now.reward)
    _check(result, None, "rewards", dict(sorted(was.rewards.items())), dict(sorted(now.rewards.items())))


def _check(result: Replay, turn: int | None, what: str, was: Any, now: Any) -> Verdict:
    verdict = compare_values(was, now)
    if verdict == "different":
        difference = Difference(turn=turn, what=what, recorded=readable(was), replayed=readable(now))
        result.differences.append(difference)
    return verdict


def _uses(uses: Sequence[ToolUse]) -> list[str]:
    return [f"{use.name}: {use.error or 'ok'}" for use in uses]


def _outcome_text(episode: Episode) -> str:
    return f"{episode.outcome}: {episode.error}" if episode.error else str(episode.outcome)


def _ending_of(episode: Episode) -> str:
    return _outcome_text(episode) + ("" if episode.reward is None else f", reward {episode.reward:g}")


MAX_LINES, MAX_WIDTH = 12, 160
"""Size of a printed difference."""
_VOLATILE = re.compile(
    r"""
      \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b             # a UUID
    | \b0x[0-9a-f]{6,}\b                                          # a memory address
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?   # a time stamp
    | \b\d+\.\d+(?:e-?\d+)?(?=\s?(?:s|ms|us|µs|ns|sec|seconds)\b)  # a duration
    | (?<=/tmp/)[^/\s"'\\]+                                       # a temporary file
    """,
    re.VERBOSE | re.IGNORECASE,
)


def compare_values(was: Any, now: Any) -> Literal["same", "expected", "different"]:
    """Compare two JSON values; texts that differ only in times and random names are "expected"."""
    if isinstance(was, (int, float)) and isinstance(now, (int, float)):
        return "same" if math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-9) else "different"
    if isinstance(was, Mapping) and isinstance(now, Mapping) and was.keys() == now.keys():
        return _worst([compare_values(was[key], now[key]) for key in was])
    if _is_list(was) and _is_list(now) and len(was) == len(now):
        return _worst([compare_values(a, b) for a, b in zip(was, now, strict=True)])
    if was == now:
        return "same"
    if isinstance(was, str) and isinstance(now, str) and _VOLATILE.sub("~", was) == _VOLATILE.sub("~", now):
        return "expected"
    return "different"


def readable(value: Any) -> str:
    """Return a value as text for people; messages as "role: text"."""
    if isinstance(value, str):
        return value
    if _is_list(value) and all(isinstance(item, Mapping) and "role" in item for item in value):
        return "\n".join(map(_message_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {readable(item)}" for key, item in value.items()) or "nothing"
    if _is_list(value):
        return ", ".join(map(readable, value)) or "nothing"
    return f"{value:g}" if isinstance(value, float) else str(value)


def diff_lines(was: str, now: str) -> list[str]:
    """Return the lines in which two texts differ, with "- " before the old and "+ " before the new ones.

    There are at most `MAX_LINES`, each cut to `MAX_WIDTH`.
    """
    lines = list(difflib.unified_diff(was.splitlines(), now.splitlines(), n=1, lineterm=""))[2:]
    if not lines:
        lines = [f"-{was!r}", f"+{now!r}"]  # only line endings differ
    lines_with_marks = [f"{line[0]} {line[1:]}" for line in lines if not line.startswith("@@")]
    cut = [line if len(line) <= MAX_WIDTH else f"{line[: MAX_WIDTH - 1]}…" for line in lines_with_marks]
    return cut if len(cut) <= MAX_LINES else [*cut[: MAX_LINES - 1], f"  and {len(cut) - MAX_LINES + 1} more lines"]


def _worst(verdicts: Sequence[Literal["same", "expected", "different"]]) -> Literal["same", "expected", "different"]:
    return "different" if "different" in verdicts else "expected" if "expected" in verdicts else "same"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _message_text(message: Message) -> str:
    calls = "".join(f" {json.dumps(call)}" for call in message.get("tool_calls", ()))
    name = f" ({message['name']})" if message.get("name") else ""
    return f"{message['role']}{name}: {message['content']}{calls}"
