"""Runs a recorded episode again: the same environment, task and seed, and the turns that the model took then.

What the environment answers is compared with what it answered then. Times and random names in a text are expected to
differ; anything else is a difference, and from there on the recorded turns are no answers to what is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from forge_env.core.episode import Episode, Turn
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import ContextFull, Conversation
from forge_env.core.types import Action, Message, Outcome, ToolSpec, ToolUse
from forge_env.records.replay_text import alike, shown
from forge_env.records.run_files import RunSettings
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import run_episode

_NOT_THE_ENVIRONMENTS = {
    Outcome.INFRA_FAULT: "the machinery failed then",
    Outcome.TIMEOUT: "services were too slow then",
}
Verdict = Literal["same", "expected", "different", "not reached"]
"""Of one thing that both episodes have; "expected" is the same but for times and random names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something that is not as it was. Example: ``Difference(turn=1, what="reward", recorded="1", replayed="0")``"""

    turn: int | None
    """From 0 on; None for the episode as a whole."""
    what: str
    """ "observation", "tools", "reward", "end", "outcome" or "rewards"."""
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCheck:
    """What became of one turn: of what the model was shown before it, of its tool calls, and of its reward."""

    observation: Verdict
    tools: Verdict = "not reached"
    reward: Verdict = "not reached"


@dataclass(kw_only=True)
class Replay:
    """A recorded episode and the one that its turns made now."""

    recorded: Episode
    replayed: Episode
    turns: list[TurnCheck] = field(default_factory=list)
    """Of the recorded turns."""
    tail: Verdict = "not reached"
    """Of what the environment said after the last turn."""
    outcome: Verdict = "not reached"
    reward: Verdict = "not reached"
    differences: list[Difference] = field(default_factory=list)
    """In the order in which they came about."""
    stopped: str = ""
    """Why turns were not given any more."""
    notes: list[str] = field(default_factory=list)
    """What else a reader should know."""

    @property
    def same(self) -> bool:
        return not self.differences


async def replay(recorded: Episode, settings: RunSettings, *, keep_going: bool = False) -> Replay:
    """Run an episode again with the turns that were recorded.

    Args:
        recorded: the episode.
        settings: of its run; the environment is the episode's own where they name none.
        keep_going: give all turns, also after the model would have been shown something else.

    Raises:
        UserError: when there is no such environment.
    """
    name = settings.env or recorded.env
    if not name:
        raise UserError(f"the episode {recorded.id} names no environment: name it with --env")
    factory = make(name, **settings.options)
    agent = Replayer(recorded, keep_going=keep_going)
    async with factory:
        replayed = await run_episode(
            factory,
            agent,
            recorded.task,
            seed=recorded.seed,
            episode_id=recorded.id,
            group_id=recorded.group_id,
            limits=settings.limits,
            env_options=recorded.info.get("env_options"),
        )
    return compare(recorded, replayed, agent.taken, agent.stop)


@dataclass(frozen=True, slots=True)
class Stop:
    """Why no turns were given any more, and what the model would have been shown."""

    reason: str
    number: int
    """Of the recorded turn that was next; as many as there are, where there was none."""
    observation: tuple[Message, ...]


class Replayer:
    """The agent that takes the turns of a recorded episode again.

    Tokens, logprobs and digests stay those of the record. An environment may have several conversations with the model;
    their turns lie one conversation after the other in the record, in whatever order they were taken. Each one goes on
    where it was, and a new one begins with the first turn that answers what it shows. Without `keep_going` it stops
    where that is something else than it was then.
    """

    completes = True

    def __init__(self, recorded: Episode, *, keep_going: bool = False) -> None:
        self._recorded = recorded
        self._keep_going = keep_going
        self._full = Counter(recorded.info.get("full_contexts", ()))  # prompts without room, by the turns before them
        self.taken: dict[int, Turn] = {}
        """The turns that were taken, by the number of the recorded one."""
        self.stop: Stop | None = None

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Take the next recorded turn.

        Raises:
            ContextFull: where a prompt left no room then, and after the last turn of an episode that was truncated.
            PolicyError: where there is no turn to take.
        """
        if self._full[len(self.taken)]:
            self._full[len(self.taken)] -= 1
            raise ContextFull("the prompt left no room to answer when this was recorded")
        shown, number = conversation.observation, self._next(conversation)
        if number == len(self._recorded.turns):
            raise self._end(shown)
        turn = self._recorded.turns[number]
        shown = _shown(conversation, turn)
        if not self._keep_going and alike(turn.observation, shown) == "different":
            reason = f"the model was shown something else before turn {number}, which is no answer to it"
            raise self._stopped(reason, number, shown)
        again = replace(turn, observation=shown, reward=0.0, tool_uses=(), policy_seconds=0.0, env_seconds=0.0)
        self.taken[number] = again
        return again, Action(message=turn.message, tool_calls=turn.tool_calls, finish_reason=turn.finish_reason)

    def _next(self, conversation: Conversation) -> int:
        """The number of the recorded turn that comes next in a conversation."""
        if conversation.turns:
            last = conversation.turns[-1]
            number = next(number for number, turn in self.taken.items() if turn is last) + 1
            return len(self._recorded.turns) if number in self.taken else number  # those of another conversation
        left = [number for number in range(len(self._recorded.turns)) if number not in self.taken]
        left.sort(key=lambda number: number - 1 in self.taken)  # those last that go on with another conversation
        turns = self._recorded.turns
        fits = (n for n in left if alike(turns[n].observation, _shown(conversation, turns[n])) != "different")
        return next(fits, left[0] if left else len(turns))

    def _end(self, shown: tuple[Message, ...]) -> Exception:
        if self._recorded.outcome is Outcome.TRUNCATED:
            return ContextFull()  # whatever ended it then: tokens, turns or time
        if self._recorded.outcome in _NOT_THE_ENVIRONMENTS:
            return PolicyError(self._recorded.error)
        reason = "the record has no more turns, and the environment went on"
        return self._stopped(reason, len(self._recorded.turns), shown)

    def _stopped(self, reason: str, number: int, shown: tuple[Message, ...]) -> PolicyError:
        self.stop = Stop(reason, number, shown)
        return PolicyError(reason)


def _shown(conversation: Conversation, turn: Turn) -> tuple[Message, ...]:
    """What the model is shown where a turn was taken; of a plain prompt, what is new as the record has it."""
    asked = conversation.asked
    if asked is None or asked.prompt is None:
        return conversation.observation
    old = turn.observation[0]["content"] if turn.observation else ""
    if isinstance(asked.prompt, str):
        same, text = asked.prompt.endswith(old), asked.prompt
    else:
        same, text = asked.prompt[-len(turn.prompt_ids) :] == turn.prompt_ids, str(asked.prompt)
    return turn.observation if same else ({"role": "user", "content": text},)


def compare(recorded: Episode, replayed: Episode, taken: Mapping[int, Turn], stop: Stop | None = None) -> Replay:
    """Compare two episodes of the same turns, step by step.

    Args:
        recorded: as it was.
        replayed: as it is now.
        taken: the turns of the latter, by the number of the recorded one.
        stop: where no more turns were given.
    """
    found = Replay(recorded=recorded, replayed=replayed, stopped=stop.reason if stop else "")
    for number, turn in enumerate(recorded.turns):
        if number in taken:
            found.turns.append(_compare_turn(found, number, turn, taken[number]))
        elif stop is not None and number == stop.number:
            verdict = _check(found, number, "observation", turn.observation, stop.observation)
            found.turns.append(TurnCheck(observation=verdict))
        else:
            found.turns.append(TurnCheck(observation="not reached"))
    count, missing = len(recorded.turns), next((n for n in range(len(recorded.turns)) if n not in taken), None)
    if stop is not None and stop.number == count:
        end = Difference(turn=count, what="end", recorded=_ended(recorded), replayed=stop.reason)
        found.differences.append(end)
    elif stop is None and missing is not None:
        was = f"turn {missing} of {count} came next"
        found.differences.append(Difference(turn=missing, what="end", recorded=was, replayed=_ended(replayed)))
    elif stop is None:
        if not (recorded.turns and _broke_off(recorded, recorded.turns[-1])):
            found.tail = _check(found, count, "observation", recorded.tail, replayed.tail)
        _compare_ends(found)
    return found


def _compare_turn(found: Replay, number: int, was: Turn, now: Turn) -> TurnCheck:
    observation = _check(found, number, "observation", was.observation, now.observation)
    if _broke_off(found.recorded, was) or _broke_off(found.replayed, now):
        return TurnCheck(observation=observation)
    return TurnCheck(
        observation=observation,
        tools=_check(found, number, "tools", _uses(was.tool_uses), _uses(now.tool_uses)),
        reward=_check(found, number, "reward", was.reward, now.reward),
    )


def _broke_off(episode: Episode, turn: Turn) -> bool:
    """Whether the environment never answered a turn: it failed, or the time of the episode was over."""
    ends_otherwise = episode.outcome in (Outcome.SCORED, Outcome.MODEL_FAULT)
    return turn is episode.turns[-1] and not turn.env_seconds and not ends_otherwise


def _compare_ends(found: Replay) -> None:
    was, now = found.recorded, found.replayed
    if was.outcome in _NOT_THE_ENVIRONMENTS:
        found.notes.append(
            f"{_NOT_THE_ENVIRONMENTS[was.outcome]}, which says nothing about the environment: {was.error}"
        )
        return
    found.outcome = _check(found, None, "outcome", _outcome(was), _outcome(now))
    found.reward = _check(found, None, "reward", was.reward, now.reward)
    _check(found, None, "rewards", dict(sorted(was.rewards.items())), dict(sorted(now.rewards.items())))


def _check(found: Replay, turn: int | None, what: str, was: Any, now: Any) -> Verdict:
    """Compare one thing, and write a difference down."""
    verdict = alike(was, now)
    if verdict == "different":
        difference = Difference(turn=turn, what=what, recorded=shown(was), replayed=shown(now))
        found.differences.append(difference)
    return verdict


def _uses(uses: Sequence[ToolUse]) -> list[str]:
    """What became of the calls, without the seconds."""
    return [f"{use.name}: {use.error or 'ok'}" for use in uses]


def _outcome(episode: Episode) -> str:
    return f"{episode.outcome}: {episode.error}" if episode.error else str(episode.outcome)


def _ended(episode: Episode) -> str:
    """How an episode ended, in words."""
    return _outcome(episode) + ("" if episode.reward is None else f", reward {episode.reward:g}")
