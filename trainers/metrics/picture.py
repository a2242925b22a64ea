"""reward.png: the reward of every step, and the held-out reward before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge_env.evaluation.evaluate import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curve(
    path: Path,
    curve: Sequence[Mapping[str, float]],
    title: str,
    before: Evaluation | None,
    after: Evaluation | None,
) -> None:
    """Draw the reward of every step, its running mean, and the mean reward of the two evaluations with 95% intervals.

    The axis is that of shares, 0 to 1, where all values are; else it fits them. What is not finite is left out.

    Args:
        path: of the PNG.
        curve: "step" and "reward" of each optimizer step.
        title: over it.
        before: drawn at step 0.
        after: drawn at the last step.
    """
    figure_of(curve, title, before, after).savefig(path)


def figure_of(
    curve: Sequence[Mapping[str, float]], title: str, before: Evaluation | None, after: Evaluation | None
) -> Figure:
    """The drawing of `draw_curve`; it belongs to no window, and needs no closing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120)
    axes = figure.subplots()
    steps = [point["step"] for point in curve]
    rewards = [point["reward"] for point in curve]
    shown = list(rewards)
    axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="mean reward of a step")
    axes.plot(steps, _running_mean(rewards, 10), color="#08519c", linewidth=2, label="running mean of 10 steps")
    for evaluation, step, label in ((before, 0, "before"), (after, steps[-1] if steps else 0, "after")):
        if evaluation is not None and evaluation.valid:
            reward = evaluation.reward
            bounds = [bound if math.isfinite(bound) else reward.value for bound in reward.interval]
            error = [[max(0.0, reward.value - bounds[0])], [max(0.0, bounds[1] - reward.value)]]
            text = f"held-out {label}: {reward.value:.3g}, success {evaluation.success_rate:.2f}"
            axes.errorbar(step, reward.value, yerr=error, fmt="o", capsize=4, label=text)
            shown += [reward.value, *bounds]
    axes.set(xlabel="optimizer step", ylabel="reward", ylim=_limits(shown), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.tight_layout()
    return figure


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis, a little outside the values."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if low >= 0 and high <= 1:
        return -0.02, 1.02
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]
