"""Tool metrics: counted by tool, quantiles over the calls that ran, and no metric for a name that a model made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forge_env.core.episode import Episode, Turn
from forge_env.core.types import Outcome, Task, ToolUse
from forge_env.evaluation.metrics import (
    MAX_PARTS,
    model_call_metrics,
    reward_part_metrics,
    reward_parts,
    tool_figures,
    tool_metrics,
)

TASK = Task(prompt=({"role": "user", "content": "?"},))


def episode(*uses: ToolUse) -> Episode:
    turn = Turn(kind="text", observation=(), message={"role": "assistant", "content": ""}, tool_uses=uses)
    return Episode(task=TASK, turns=(turn,), outcome=Outcome.SCORED, reward=0.0, id="e")


def test_calls_and_errors_are_counted_by_tool() -> None:
    episodes = [
        episode(ToolUse(name="add", seconds=0.1), ToolUse(name="add", error="bad_arguments")),
        episode(ToolUse(name="add", seconds=9.0, error="timeout"), ToolUse(name="add", seconds=0.2, error="raised")),
        episode(ToolUse(name="ad", error="unknown_tool"), ToolUse(name="dda", error="unknown_tool")),
    ]
    figures = tool_figures(episodes)
    assert set(figures) == {"add", "unknown"}
    assert figures["add"].calls == 4 and figures["unknown"].calls == 2
    assert figures["add"].errors == {"bad_arguments": 1, "timeout": 1, "raised": 1}
    assert figures["add"].seconds == [0.1, 9.0, 0.2]


def test_the_parts_of_the_reward_are_averaged_over_the_episodes_that_have_them() -> None:
    both, one = {"utility": 1.0, "security": 0.0}, {"utility": 0.0}
    episodes = [replace(episode(), rewards=parts) for parts in (both, one, {"utility": 1.0, "security": 1.0}, {})]
    fault = replace(episode(), rewards=both, outcome=Outcome.ENV_FAULT, reward=None)
    assert reward_parts([*episodes, fault]) == {
        "security": {"mean": 0.5, "std": 0.5, "episodes": 2},
        "utility": {"mean": pytest.approx(2 / 3), "std": pytest.approx(2**0.5 / 3), "episodes": 3},
    }
    metrics = reward_part_metrics(reward_parts(episodes))
    assert metrics["reward/security/mean"] == metrics["reward/security/std"] == 0.5
    assert metrics["reward/security/episodes"] == 2.0 and len(metrics) == 6
    apart = [replace(e, task=replace(TASK, id=name)) for e, name in zip(episodes, "aabb", strict=True)]
    assert reward_parts(apart, by_task=True)["utility"]["mean"] == 0.75, "a task's attempts count as one"
    by_task = [replace(episode(), rewards={"all": 1.0, f"task {i}": 1.0}) for i in range(100)]
    assert len(reward_parts(by_task)) == MAX_PARTS and "all" in reward_parts(by_task)


def test_quantiles() -> None:
    metrics = tool_metrics([episode(*(ToolUse(name="t", seconds=float(s)) for s in range(101)))])
    assert metrics["tool/t/p50_s"] == pytest.approx(50.0) and metrics["tool/t/p95_s"] == pytest.approx(95.0)
    alone = tool_metrics([episode(ToolUse(name="t", seconds=2.0))])
    assert (alone["tool/t/p50_s"], alone["tool/t/p95_s"]) == (2.0, 2.0)
    never = tool_metrics([episode(ToolUse(name="t", error="bad_arguments"))])
    assert never == {"tool/t/calls": 1, "tool/t/errors": 1, "tool/t/p50_s": 0.0, "tool/t/p95_s": 0.0}


def test_what_models_beside_the_policy_use_is_summed_by_role() -> None:
    infos: list[dict[str, Any]] = [
        {"model_calls": {"user": {"calls": 2, "cost": 0.25}, "judge": {"calls": 1}}},
        {"model_calls": {"user": {"calls": 3, "cost": 0.5, "odd": "x"}, "other": {"calls": 9}}},
        {"model_calls": {"user": 3}},
        {"model_calls": ["user"]},
        {},
    ]
    episodes = [replace(episode(), info=info) for info in infos]
    assert model_call_metrics(episodes) == {"user/calls": 5.0, "user/cost": 0.75, "judge/calls": 1.0}
    assert model_call_metrics([]) == {}
