"""The checks of the reward: full marks for right answers, and for nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from contrib.check.constant_answers import is_same, right_answers
from contrib.check.context import LIMITS, CheckContext, CheckFailed, CheckSkipped, shorten
from contrib.check.direct_calls import fresh_instance, reset
from contrib.check.strategies import (
    actions_in_order,
    as_action,
    final_answer,
    follow_expert,
    never_finish,
    sample_arguments,
    tool_calls,
    tool_names,
    uniform_arguments,
)
from forge_env.core.episode import Episode
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import Conversation
from forge_env.core.reward_value import TOLERANCE, are_same, reaches
from forge_env.core.types import Action, Message, Outcome, Task, ToolSpec
from forge_env.evaluation.evaluate import is_success
from forge_env.tool_env.tool_env import ToolEnv

GARBAGE_ANSWER = "qwfp gjluy zxcv 7919 \\boxed{} <answer></answer> ```"
UNUSUAL_CHARACTERS = "\ud800\x00\u202e\U0001f600\ufffe\x1b[2J"  # a lone surrogate, NUL, an emoji, ...
UNUSUAL_ARGUMENTS = {
    "arguments of a wrong type": {"a": [None]},
    "None for every argument": None,
    "a lone surrogate and NUL": UNUSUAL_CHARACTERS,
    "100,000 characters": "9" * 100_000,
}
MALFORMED_TASKS = 2


async def some_reward(context: CheckContext) -> str:
    """Something is rewarded: by a reward method, a rubric, or `step`."""
    async with fresh_instance(context) as env:
        if not isinstance(env, ToolEnv):
            return "step() returns the reward"
        if env._rewards or env._rubric:
            return f"the final answer is scored by {', '.join(part.name for part in (*env._rewards, *env._rubric))}"
    if parts := context.factory.group_rewards:
        return f"the siblings of a task are compared by {', '.join(part.name for part in parts)}"
    for task in context.tasks[:2]:
        for strategy in (*context.strategies, actions_in_order(final_answer("0"))):
            if (await context.episode(task, strategy)).reward:
                return "a step returns rewards"
    raise CheckFailed(
        "nothing is ever rewarded, so every episode scores 0: mark a method that scores the final answer with "
        "@forge_env.reward, or name reward functions in `rubric`"
    )


async def breakdown(context: CheckContext) -> str:
    """The parts of a reward add up to it, times their weights in a `ToolEnv`."""
    async with fresh_instance(context) as env:
        parts = (*env._rewards, *env._rubric) if isinstance(env, ToolEnv) else ()
    weights = {part.name: part.weight for part in parts}
    count = 0
    for task in context.tasks[:2]:
        for strategy in (*context.strategies, actions_in_order(final_answer("0"))):
            episode = await context.episode(task, strategy)
            is_own = not episode.rewards.keys() <= weights.keys()
            if episode.outcome is not Outcome.SCORED or len(episode.rewards) <= is_own:
                continue  # one part of its own may be on another scale
            terms = [weights.get(name, 1.0) * value for name, value in episode.rewards.items()]
            count += 1
            scores = [_reward(episode), episode.turns[-1].reward]  # earlier steps may have rewards without parts
            if not any(_is_sum(terms, score) or (is_own and _is_otherwise(terms, score)) for score in scores):
                raise CheckFailed(
                    f"the parts of the reward add up to {math.fsum(terms):g}, and the reward is {_reward(episode):g}, "
                    f"in an episode of the task {task.id!r} ({shorten(str(dict(episode.rewards)))}): give each part "
                    "once, under a name of its own, so that they add up"
                )
    return f"the parts of {count} rewards add up" if count else "no reward has several parts"


def _is_sum(terms: Sequence[float], reward: float) -> bool:
    size = math.fsum(map(abs, terms))
    return abs(math.fsum(terms) - reward) <= TOLERANCE * max(1.0, size)


def _is_otherwise(terms: Sequence[float], reward: float) -> bool:
    """Whether an environment's own parts explain a reward: as its factors, or as the rewards of several players."""
    return any(are_same([reward, value]) for value in (math.prod(terms), *terms))


async def gold(context: CheckContext) -> str:
    """The expert succeeds on every task."""
    if context.expert is None:
        raise CheckSkipped(
            "there is no expert: define the staticmethod expert(messages) to have the gold answers checked"
        )
    if refusal := await _refusal(context, context.tasks[0]):
        raise CheckSkipped(refusal)
    for task in context.tasks:
        episode = await context.episode(task, follow_expert(context.expert))
        if not episode.outcome.is_valid:
            ending = f"ended as {episode.outcome}: {episode.error}"
            raise CheckFailed(f"the expert's episode of the task {task.id!r} {ending}")
        if not is_success(episode):
            raise CheckFailed(
                f"the expert scores {_reward(episode):g} on the task {task.id!r} with {_final_answer(episode)!r}, "
                "which is no success: correct the expert or the reward, or define success(reward)"
            )
        context.gold[task.id] = _final_answer(episode)
    return f"the expert scores full marks on {len(context.tasks)} of {len(context.tasks)} tasks"


async def _refusal(context: CheckContext, task: Task) -> str:
    """Why the expert solves no such tasks: it raises a UserError for those of a user's file, for example."""
    assert context.expert is not None
    conversation = Conversation(request_id="check", seed=context.seed, observation=task.prompt)
    try:
        await follow_expert(context.expert)(conversation, ())
    except PolicyError as error:
        return str(error.__cause__) if isinstance(error.__cause__, UserError) else ""
    return ""


async def wrong(context: CheckContext) -> str:
    """Empty and wrong answers, copies of the question and the answers of other tasks are not a success."""
    count = 0
    for task in context.tasks:
        for kind, answer in _wrong_answers(context, task):
            episode = await context.episode(task, actions_in_order(final_answer(answer)))
            _require_valid(episode, task, kind)
            _require_no_success(episode, task, kind)
            count += 1
    return f"none of {count} wrong answers scores full marks"


async def malformed_actions(context: CheckContext) -> str:
    """Malformed actions neither break the environment nor succeed."""
    async with fresh_instance(context) as env:
        await reset(env, context.tasks[0], context.seed)  # the tools may be set in reset
        actions = list(_malformed_actions(env.tools))
    for task in context.tasks[:MALFORMED_TASKS]:
        for kind, action in actions:
            episode = await context.episode(task, actions_in_order(action))
            _require_valid(episode, task, kind)
            if len(episode.turns) == 1 or episode.turns[0].reward > 0:  # else the reward is the empty answer's
                _require_no_success(episode, task, kind)
    return f"{len(actions)} malformed actions are answered, and none scores full marks"


async def cheats(context: CheckContext) -> str:
    """The answers that the environment lists as cheats score nothing."""
    list_cheats = getattr(context.factory.env_class, "cheats", None)
    if list_cheats is None:
        raise CheckSkipped(
            "there are no cheats: define the classmethod cheats(task) with the answers that must not score"
        )
    count = 0
    for task in context.tasks:
        for i, cheat in enumerate(list_cheats(task)):
            messages = [final_answer(cheat)] if isinstance(cheat, str) else map(as_action, cheat)
            episode = await context.episode(task, actions_in_order(*messages))
            _require_valid(episode, task, f"the cheat {i}")
            if not reaches(0.0, _reward(episode)):
                text = cheat if isinstance(cheat, str) else repr([m["content"] or _functions(m) for m in cheat])
                raise CheckFailed(
                    f"the cheat {i} of the task {task.id!r} scores {_reward(episode):g}, not 0: {shorten(text)!r}"
                )
            count += 1
    if not count:
        raise CheckSkipped("cheats(task) names no answers")
    return f"none of {count} cheats scores"


async def limits(context: CheckContext) -> str:
    """An agent that never stops is ended by a limit or by the environment, and does not succeed."""
    five_turns = replace(LIMITS, max_turns=5)
    episode = await context.episode(context.tasks[0], never_finish, limits=five_turns)
    _require_valid(episode, context.tasks[0], "an agent that never stops")
    if is_success(episode):
        raise CheckFailed(
            f"an agent that never stops scores {_reward(episode):g}: lower the step rewards or truncation_reward"
        )
    how = "is truncated" if episode.outcome is Outcome.TRUNCATED else "is ended by the environment"
    return f"an agent that never stops {how} after {len(episode.turns)} turns"


def _wrong_answers(context: CheckContext, task: Task) -> Iterator[tuple[str, str]]:
    yield "an empty answer", ""
    yield "white space", " \n\t "
    yield "garbage", GARBAGE_ANSWER
    right = right_answers(context, task)
    echoes = {"the prompt itself": "\n".join(message["content"] for message in task.prompt)}
    question = next((m["content"] for m in reversed(task.prompt) if m["role"] == "user"), "")
    echoes |= {"the question": question, "the last line of the question": question.strip().rpartition("\n")[2]}
    for kind, echo in echoes.items():
        # Where no answer is known, as in a game, a text with a number may be a move that wins.
        if right and not any(is_same(echo, answer) for answer in right):
            yield kind, echo
    yield from _answers_of_others(context, task)


def _answers_of_others(context: CheckContext, task: Task) -> Iterator[tuple[str, str]]:
    """Answers to other tasks: one of the expert's, and one target that is a text or a number."""
    own_gold, right = context.gold.get(task.id), right_answers(context, task)
    others = [other for other in context.tasks if other.target is None or other.target != task.target]
    gold = (context.gold[other.id] for other in others if other.id in context.gold)
    others_gold = next((text for text in gold if own_gold is not None and not is_same(text, own_gold)), None)
    if others_gold is not None:
        yield "another task's gold answer", others_gold
    targets = [str(other.target) for other in others if isinstance(other.target, (str, int, float))]
    if right and (target := next((t for t in targets if not any(is_same(t, a) for a in right)), None)) is not None:
        yield "another task's target", target


def _malformed_actions(tools: Sequence[ToolSpec]) -> Iterator[tuple[str, Action]]:
    yield "a call of an unknown tool", tool_calls(("no_such_tool", {}))
    yield "a call of an unknown tool whose arguments are not JSON", tool_calls(("no_such_tool", None))
    yield "a call with an empty name", tool_calls(("", {"a": 1}))
    yield "an answer of 100,000 characters", final_answer("9" * 100_000)
    yield "an answer with a lone surrogate and NUL", final_answer(UNUSUAL_CHARACTERS)
    yield "an answer that was cut off", replace(final_answer("The answer is"), finish_reason="length")
    for name in tool_names(tools):
        valid = sample_arguments(tools, name)
        yield f"a call of {name} whose arguments are not JSON", tool_calls((name, None))
        yield f"a call of {name} with arguments that fit its schema", tool_calls((name, valid))
        yield f"a call of {name} without arguments", tool_calls((name, {}))
        yield f"a call of {name} with an unknown argument", tool_calls((name, {**valid, "no_such_argument": 1}))
        for what, value in UNUSUAL_ARGUMENTS.items():
            yield f"a call of {name} with {what}", tool_calls((name, uniform_arguments(tools, name, value)))


def _require_no_success(episode: Episode, task: Task, kind: str) -> None:
    if is_success(episode):
        raise CheckFailed(
            f"{kind} scores {_reward(episode):g} on the task {task.id!r}: "
            "let the reward compare the answer with the target"
        )


def _require_valid(episode: Episode, task: Task, kind: str) -> None:
    if not episode.outcome.is_valid:
        raise CheckFailed(
            f"{kind} ends the episode of the task {task.id!r} as {episode.outcome} ({shorten(episode.error)}): answer "
            "a model's mistake with a message, or end the episode with a reward"
        )


def _functions(message: Message) -> list[Any]:
    return [call["function"] for call in message.get("tool_calls", ())]


def _reward(episode: Episode) -> float:
    assert episode.reward is not None, "a valid episode has a reward"
    return episode.reward


def _final_answer(episode: Episode) -> str:
    return episode.turns[-1].message["content"] if episode.turns else ""
