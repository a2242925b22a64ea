"""The checks of the score: full marks for what is right, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from forge_env.check.moves import by_expert, calls, endless, plays, says, tool_names
from forge_env.check.probes import answers, is_same
from forge_env.check.samples import same_for_all, sample_arguments
from forge_env.check.subject import LIMITS, Failed, Skipped, Subject, instance, reset
from forge_env.core.episode import Episode
from forge_env.core.types import Action, Outcome, Task, ToolSpec
from forge_env.evaluation.evaluate import is_success
from forge_env.tool_env.tool_env import ToolEnv

GARBAGE = "qwfp gjluy zxcv 7919 \\boxed{} <answer></answer> ```"
NASTY = "\ud800\x00\u202e\U0001f600\ufffe\x1b[2J"  # a lone surrogate, NUL, a text direction, an escape sequence
MALFORMED_TASKS = 2


async def some_reward(subject: Subject) -> str:
    """There is a reward at all: a method, a rubric, or what a step returns."""
    async with instance(subject) as env:
        if not isinstance(env, ToolEnv):
            return "step() returns the reward"
        if env._rewards or env._rubric:
            return f"the final answer is scored by {', '.join(part.name for part in (*env._rewards, *env._rubric))}"
    for task in subject.tasks[:2]:
        for move in (*subject.moves, plays(says("0"))):
            if (await subject.episode(task, move)).reward:
                return "a step returns rewards"
    raise Failed(
        "nothing is ever rewarded, so every episode scores 0: mark a method that scores the final answer with "
        "@forge_env.reward, or name reward functions in `rubric`"
    )


async def gold(subject: Subject) -> str:
    """The expert's episodes score full marks."""
    if subject.expert is None:
        raise Skipped("there is no expert: define the staticmethod expert(messages) to have the gold answers checked")
    for task in subject.tasks:
        episode = await subject.episode(task, by_expert(subject.expert))
        if not episode.outcome.is_valid:
            raise Failed(f"the expert's episode of the task {task.id!r} ended as {episode.outcome}: {episode.error}")
        if not is_success(episode):
            raise Failed(
                f"the expert scores {_reward(episode):g} on the task {task.id!r} with {_last(episode)!r}, which is no "
                "success: mend the expert or the reward, or say from which reward on it is one with success(reward)"
            )
        subject.gold[task.id] = _last(episode)
    return f"the expert scores full marks on {len(subject.tasks)} of {len(subject.tasks)} tasks"


async def wrong(subject: Subject) -> str:
    """Empty and wrong final answers, echoes of the question and other tasks' answers get no full marks."""
    tried = 0
    for task in subject.tasks:
        for what, answer in _wrong_answers(subject, task):
            episode = await subject.episode(task, plays(says(answer)))
            _require_valid(episode, task, what)
            _no_success(episode, task, what)
            tried += 1
    return f"none of {tried} wrong answers scores full marks"


async def malformed(subject: Subject) -> str:
    """Whatever a model may write neither breaks the environment nor earns full marks."""
    async with instance(subject) as env:
        await reset(env, subject.tasks[0], subject.seed)  # which may be what sets the tools
        actions = list(_malformed_actions(env.tools))
    for task in subject.tasks[:MALFORMED_TASKS]:
        for what, action in actions:
            episode = await subject.episode(task, plays(action))
            _require_valid(episode, task, what)
            if len(episode.turns) == 1 or episode.turns[0].reward > 0:  # else the empty answer after it earned it
                _no_success(episode, task, what)
    return f"{len(actions)} malformed actions are answered, and none scores full marks"


async def cheats(subject: Subject) -> str:
    """What the environment itself names as cheating scores nothing."""
    named = getattr(subject.factory.env_class, "cheats", None)
    if named is None:
        raise Skipped("there are no cheats: define the classmethod cheats(task) with the answers that must not score")
    tried = 0
    for task in subject.tasks:
        for i, answer in enumerate(named(task)):
            episode = await subject.episode(task, plays(says(answer)))
            _require_valid(episode, task, f"the cheat {i}")
            if _reward(episode) > 0:
                raise Failed(
                    f"the cheat {i} of the task {task.id!r} scores {_reward(episode):g}, not 0: {_cut(answer)!r}"
                )
            tried += 1
    if not tried:
        raise Skipped("cheats(task) names no answers")
    return f"none of {tried} cheats scores"


async def limits(subject: Subject) -> str:
    """An agent that never stops is stopped, without full marks."""
    bounds = replace(LIMITS, max_turns=5)
    episode = await subject.episode(subject.tasks[0], endless, limits=bounds)
    _require_valid(episode, subject.tasks[0], "an agent that never stops")
    if is_success(episode):
        raise Failed(
            f"an agent that never stops scores {_reward(episode):g}: lower the step rewards or truncation_reward"
        )
    how = "is truncated" if episode.outcome is Outcome.TRUNCATED else "is ended by the environment"
    return f"an agent that never stops {how} after {len(episode.turns)} turns"


def _wrong_answers(subject: Subject, task: Task) -> Iterator[tuple[str, str]]:
    yield "an empty answer", ""
    yield "white space", " \n\t "
    yield "garbage", GARBAGE
    right = answers(subject, task)
    echoes = {"the prompt itself": "\n".join(message["content"] for message in task.prompt)}
    question = next((m["content"] for m in reversed(task.prompt) if m["role"] == "user"), "")
    echoes |= {"the question": question, "the last line of the question": question.strip().rpartition("\n")[2]}
    for what, echo in echoes.items():
        if not any(is_same(echo, answer) for answer in right):
            yield what, echo
    yield from _answers_of_others(subject, task)


def _answers_of_others(subject: Subject, task: Task) -> Iterator[tuple[str, str]]:
    """The answers of one other task: the expert's, and the target where it is one text or number."""
    own, right = subject.gold.get(task.id), answers(subject, task)
    others = [other for other in subject.tasks if other.target is None or other.target != task.target]
    gold = (subject.gold[other.id] for other in others if other.id in subject.gold)
    if own is not None and (answer := next((text for text in gold if not is_same(text, own)), None)) is not None:
        yield "another task's gold answer", answer
    targets = [str(other.target) for other in others if isinstance(other.target, (str, int, float))]
    if right and (target := next((t for t in targets if not any(is_same(t, a) for a in right)), None)) is not None:
        yield "another task's target", target


def _malformed_actions(tools: Sequence[ToolSpec]) -> Iterator[tuple[str, Action]]:
    yield "a call of an unknown tool", calls(("no_such_tool", {}))
    yield "a call of an unknown tool whose arguments are not JSON", calls(("no_such_tool", None))
    yield "a call with an empty name", calls(("", {"a": 1}))
    yield "an answer of 100,000 characters", says("9" * 100_000)
    yield "an answer with a lone surrogate and NUL", says(NASTY)
    yield "an answer that was cut off", replace(says("The answer is"), finish_reason="length")
    for name in tool_names(tools):
        fitting = sample_arguments(tools, name)
        yield f"a call of {name} whose arguments are not JSON", calls((name, None))
        yield f"a call of {name} with arguments that fit its schema", calls((name, fitting))
        yield f"a call of {name} without arguments", calls((name, {}))
        yield f"a call of {name} with an unknown argument", calls((name, {**fitting, "no_such_argument": 1}))
        yield (
            f"a call of {name} with arguments of a wrong type",
            calls((name, same_for_all(tools, name, {"a": [None]}))),
        )
        yield f"a call of {name} with None for every argument", calls((name, same_for_all(tools, name, None)))
        yield f"a call of {name} with a lone surrogate and NUL", calls((name, same_for_all(tools, name, NASTY)))
        yield f"a call of {name} with 100,000 characters", calls((name, same_for_all(tools, name, "9" * 100_000)))


def _no_success(episode: Episode, task: Task, what: str) -> None:
    if is_success(episode):
        raise Failed(
            f"{what} scores {_reward(episode):g} on the task {task.id!r}: "
            "let the reward compare the answer with the target"
        )


def _require_valid(episode: Episode, task: Task, what: str) -> None:
    if not episode.outcome.is_valid:
        raise Failed(
            f"{what} ends the episode of the task {task.id!r} as {episode.outcome} ({_cut(episode.error)}): a model's "
            "mistake is answered with a message, or ends the episode with a reward"
        )


def _reward(episode: Episode) -> float:
    assert episode.reward is not None, "a valid episode has a reward"
    return episode.reward


def _last(episode: Episode) -> str:
    return episode.turns[-1].message["content"] if episode.turns else ""


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."
