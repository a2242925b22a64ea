"""The check of partial credit: what an answer earns that does not depend on the question.

Such a part of the reward is what a policy learns first, and it may learn nothing else.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from contrib.check.constant_answers import is_same, right_answers
from contrib.check.context import CheckContext, CheckWarning, shorten
from contrib.check.direct_calls import fresh_instance, reset
from contrib.check.strategies import (
    MAX_TRIED_TOOLS,
    actions_in_order,
    final_answer,
    sample_arguments,
    tool_calls,
    tool_names,
)
from forge_env.core.episode import Episode
from forge_env.core.reward_value import are_same, reaches
from forge_env.core.types import Action
from forge_env.evaluation.evaluate import is_success
from forge_env.tool_env.tool_env import ToolEnv

MAX_TASKS = 3
LEAST = 0.01
"""A mean below it is not part of the marks (a success has 1 or more): partial credit may tend to 0."""
FORMS = (
    "\\boxed{0}",
    "<answer>0</answer>",
    "<think>\nLet me think step by step.\n</think>\n<answer>\n0\n</answer>",
    '{"answer": 0}',
    "```python\n0\n```",
    "#### 0",
    "The answer is 0.",
    " ".join(["Let me think about this step by step."] * 50) + " Therefore the final answer is 0.",
)
"""Forms of an answer that a part of a reward may pay for, whatever is in them."""

_Best = tuple[str, list[float]]
"""An answer, and what it earned in each episode."""


async def partial_credit(context: CheckContext) -> str:
    """No constant answer, nor one call and any answer, earns a part of the reward."""
    async with fresh_instance(context) as env:
        weights = {part.name: part.weight for part in (*env._rewards, *env._rubric)} if isinstance(env, ToolEnv) else {}
        await reset(env, context.tasks[0], context.seed)  # the tools may be set in reset
        tools = env.tools
    for answer in FORMS:
        await _play(context, f"the constant {shorten(answer, 60)!r}", answer, [final_answer(answer)])
    if context.gold:
        task_id, answer = next(iter(context.gold.items()))
        what = f"the expert's answer to the task {task_id!r}, {shorten(answer, 60)!r},"
        await _play(context, what, answer, [final_answer(answer)])
    for name in tool_names(tools)[:MAX_TRIED_TOOLS]:
        call = tool_calls((name, sample_arguments(tools, name)))
        await _play(context, f"one call of {name} and the answer '0'", "0", [call, final_answer("0")])
    best = _best(context.episodes_of, weights)
    if sentences := [
        _sentence(part, *best_answer) for part, best_answer in best.items() if reaches(fmean(best_answer[1]), LEAST)
    ]:
        raise CheckWarning(
            f"{'; '.join(sentences)}: a policy may learn this in the place of the task; pay a part only together with "
            "what has to be worked out, or keep it small"
        )
    return f"none of {len(context.episodes_of)} answers that do not depend on the question earns a part of the reward"


async def _play(context: CheckContext, what: str, answer: str, actions: Sequence[Action]) -> None:
    for task in context.tasks[:MAX_TASKS]:
        if not any(is_same(answer, right) for right in right_answers(context, task)):
            context.episodes_of[what].append(await context.episode(task, actions_in_order(*actions)))


def _best(episodes_of: Mapping[str, Sequence[Episode]], weights: Mapping[str, float]) -> dict[str, _Best]:
    """The answer that earns the most of each part of the reward; none for a part that none earns."""
    best: dict[str, _Best] = {}
    for what, episodes in episodes_of.items():
        values_of_part: dict[str, list[float]] = defaultdict(list)
        failures = [episode for episode in episodes if episode.outcome.is_valid and not is_success(episode)]
        for episode in failures:
            for part, value in _credit(episode, weights).items():
                values_of_part[part].append(value)
        for part, values in values_of_part.items():
            values += [0.0] * (len(failures) - len(values))
            if not reaches(fmean(best[part][1]) if part in best else 0.0, fmean(values)):
                best[part] = what, values
    return best


def _credit(episode: Episode, weights: Mapping[str, float]) -> dict[str, float]:
    """What an episode earned by each part; parts of an environment's own that do not add up are not told apart."""
    reward = episode.reward or 0.0
    parts = {f"the part {name!r}": weights.get(name, 1.0) * value for name, value in episode.rewards.items()}
    steps = math.fsum((reward, *(-value for value in parts.values())))
    if parts and are_same([steps, 0.0]):
        return parts
    is_weighted = bool(parts) and episode.rewards.keys() <= weights.keys()
    return {**parts, "the rewards of steps": steps} if is_weighted else {"the reward": reward}


def _sentence(part: str, what: str, values: Sequence[float]) -> str:
    count = sum(not reaches(0.0, value) for value in values)
    tasks = f"on {count} of {len(values)} tasks whose answer it is not"
    return f"{what} earns {fmean(values):.3g} of {part} on average, {tasks}"
