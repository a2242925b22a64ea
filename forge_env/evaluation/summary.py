"""The figures of an offline evaluation, computed from the content of its folder alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forge_env.core.episode import Episode
from forge_env.core.faults import broken_tasks
from forge_env.core.types import CONTEXT
from forge_env.core.usage import Prices
from forge_env.evaluation.compare import finite
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.folder import fault_class
from forge_env.evaluation.kinds import Kinds
from forge_env.evaluation.metrics import (
    ToolFigures,
    faulted_tool,
    model_calls,
    row_metrics,
    rows_began,
    tool_figures,
    unstopped_warnings,
)
from forge_env.evaluation.plan import Attempt, EvalPlan
from forge_env.utils.secret_values import masked, masked_text
from forge_env.utils.statistics import Estimate


def summarise(
    plan: EvalPlan,
    attempts: Collection[Attempt],
    episodes: Iterable[Episode],
    faults: Iterable[Episode],
    prices: Prices | None = None,
    why_no_score: Callable[[Sequence[Episode]], str] = lambda episodes: "",
) -> dict[str, Any]:
    """Return the result of `forge-env eval --json`; figures that were not measured are None.

    Args:
        faults: the episodes that ended by a fault. The last fault of an attempt without an episode is counted by its
            class, all other faults as retried.
        why_no_score: why the rewards of the episodes say nothing; "" if they do.
    """
    by_attempt = {Attempt.of(episode): episode for episode in episodes}
    fault_episodes = list(faults)
    last_fault = {Attempt.of(episode): episode for episode in fault_episodes}
    open_faults = [last_fault[attempt] for attempt in last_fault if attempt not in by_attempt]
    # In the order of the attempts, not of time: the sums of floats do not depend on the course of the run.
    attempt_episodes = tuple(by_attempt[attempt] for attempt in attempts if attempt in by_attempt)
    evaluation = Evaluation(episodes=(*attempt_episodes, *open_faults))
    why = why_no_score(attempt_episodes)
    with_score = Evaluation(episodes=()) if why else evaluation
    kinds = Kinds.of({"": {episode.task.id: episode.task for episode in evaluation.episodes}.values()})
    all_episodes = (*attempt_episodes, *fault_episodes)
    prompt, completion = (sum(n) for n in zip((0, 0), *map(tokens_of, all_episodes), strict=True))
    of_context = [e for e in attempt_episodes if e.ended_by == CONTEXT and "context_tokens" in e.info]
    contexts = [episode.info["context_tokens"] for episode in of_context]
    of_rows, first_errors = row_metrics(attempt_episodes), dict[str, str]()
    for fault in open_faults:
        first_errors.setdefault(fault_class(fault), fault.error)
    return {
        "env": plan.env,
        "agent": masked_text(plan.agent),
        "adapter": plan.adapter,
        "options": masked(plan.options, ("options",)),
        "split": plan.split,
        "seed": plan.seed,
        "n": plan.n,
        "tasks": len({attempt.task_id for attempt in attempts}),
        "episodes": len(attempt_episodes),
        "successes": evaluation.successes,
        **_figures(with_score, plan.n),
        **({"unscored": why} if why else {}),
        **({"rewards": with_score.parts} if with_score.parts else {}),
        "timeouts": evaluation.timeouts,
        "without_timeouts": {
            f"avg@{plan.n}": finite(with_score.without_timeouts.value),
            "ci95": _interval(with_score.without_timeouts),
        },
        "outcomes": dict(sorted(Counter(str(e.outcome) for e in attempt_episodes).items())),
        "ended_by": _ended_by(evaluation, plan.limits.max_turns),
        **({"context_tokens": min(contexts)} if contexts else {}),
        "limits": asdict(plan.limits),
        "faults": dict(sorted(Counter(map(fault_class, open_faults)).items())),
        "first_errors": first_errors,
        **({"broken_tasks": without_verdict} if (without_verdict := broken_tasks(evaluation.episodes)) else {}),
        "refused_requests": evaluation.refused_requests,
        "ignored_fields": evaluation.ignored_fields,
        **{name.removeprefix("rollout/"): figure for name, figure in of_rows.items() if "began" not in name},
        "row_began": {kind: asdict(rows) for kind, rows in rows_began(attempt_episodes).items()},
        "faults_retried": len(fault_episodes) - len(open_faults),
        "tools": (tools := _tools(attempt_episodes, open_faults)),
        "warnings": [
            *_warnings(tools),
            *unstopped_warnings((*attempt_episodes, *open_faults)),
            *filter(None, [kinds.note]),
        ],
        **({"kinds": _by_kind(with_score, kinds, plan.n)} if kinds.names else {}),
        "turns": sum(len(e.steps) for e in attempt_episodes),
        "tokens": prompt + completion,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        **({} if prices is None else {"cost": prices.cost(prompt, completion)}),
        **({"model_calls": calls} if (calls := model_calls(all_episodes)) else {}),
        "seconds": busy_seconds(all_episodes),
    }


def _by_kind(evaluation: Evaluation, kinds: Kinds, n: int) -> dict[str, Any]:
    return {
        name: {
            "tasks": len(of_kind.by_task),
            "episodes": len(of_kind.attempts),
            "successes": of_kind.successes,
            f"avg@{n}": finite(of_kind.success_rate),
            "ci95": _interval(of_kind.success),
            "reward": finite(of_kind.reward.value),
            **({"rewards": of_kind.parts} if of_kind.parts else {}),
        }
        for name, of_kind in kinds.split(evaluation.episodes).items()
    }


def _ended_by(evaluation: Evaluation, max_turns: int) -> dict[str, int]:
    """Return the limits that ended episodes; an environment's own, lower number of turns is none of the settings."""
    counts = evaluation.ended_by
    own = sum(e.ended_by == "max_turns" and len(e.steps) < max_turns for e in evaluation.valid)
    others = counts.pop("max_turns", 0) - own
    return counts | ({"max_turns": others} if others else {}) | ({"own_max_turns": own} if own else {})


def tokens_of(episode: Episode) -> tuple[int, int]:
    """Return the numbers of prompt and sampled tokens. As at an endpoint, each turn counts its whole prompt."""
    prompt = completion = context = 0
    for turn in episode.turns:
        if turn.kind == "sampled":
            context = (0 if turn.starts_row else context) + len(turn.prompt_ids)
            prompt += context
            completion += len(turn.token_ids)
            context += len(turn.token_ids)
        elif turn.usage:
            prompt += int(turn.usage.get("prompt_tokens", 0))
            completion += int(turn.usage.get("completion_tokens", 0))
    return prompt, completion


def busy_seconds(episodes: Iterable[Episode]) -> float:
    """Return the seconds in which at least one of the episodes ran, over all processes."""
    total, until = 0.0, -math.inf
    for start, seconds in sorted((e.info.get("started", 0.0), e.info.get("seconds", 0.0)) for e in episodes):
        total += max(0.0, start + seconds - max(start, until))
        until = max(until, start + seconds)
    return round(total, 3)


def _figures(evaluation: Evaluation, n: int) -> dict[str, Any]:
    estimates = {f"avg@{n}": evaluation.success}
    estimates |= {f"pass@{k}": evaluation.pass_at(k) for k in range(1, n + 1)}
    estimates |= {f"pass^{k}": evaluation.pass_hat(k) for k in range(1, n + 1)}
    estimates["reward"] = evaluation.reward
    return {
        **{name: finite(estimate.value) for name, estimate in estimates.items()},
        "ci95": _interval(evaluation.success),
        "intervals": {name: _interval(estimate) for name, estimate in estimates.items()},
    }


def _tools(episodes: Sequence[Episode], fault_episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return the figures of each tool: its calls in counted episodes, and the attempts that have no score due to it."""
    figures = tool_figures(episodes)
    for name, count in Counter(filter(None, map(faulted_tool, fault_episodes))).items():
        figures.setdefault(name, ToolFigures()).faults = count
    return {
        name: {
            "calls": tool.calls,
            "errors": dict(sorted(tool.errors.items())),
            "p50_s": tool.quantile(0.50),
            "p95_s": tool.quantile(0.95),
            "faults": tool.faults,
            "has_only_failed": tool.has_only_failed,
        }
        for name, tool in sorted(figures.items())
    }


def _warnings(tools: Mapping[str, Any]) -> list[str]:
    """Warnings about tools that never worked, and about tools with faults that have removed episodes from the score."""
    warnings: list[str] = []
    for name, tool in tools.items():
        calls = tool["calls"] + tool["faults"]
        loss = f"{tool['faults']} episodes ended by a fault of it and are not in the score" if tool["faults"] else ""
        if tool["has_only_failed"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in tool["errors"].items())
            reasons = "; ".join(filter(None, [kinds, loss]))
            warnings.append(f"the tool {name} never worked in {calls} calls: {reasons}")
        elif loss:
            warnings.append(f"the tool {name}: {loss}")
    return warnings


def _interval(estimate: Estimate) -> list[float | None] | None:
    return None if math.isnan(estimate.value) else [finite(estimate.low), finite(estimate.high)]
