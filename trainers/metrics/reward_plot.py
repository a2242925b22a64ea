"""reward.png: the reward of every step, and the held-out reward before and after training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forge_env.evaluation.evaluate import Evaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEAN_STEPS = 10


def write_reward_plot(
    path: Path,
    curve: Sequence[Mapping[str, float]],
    title: str,
    before: Evaluation | None,
    after: Evaluation | None,
) -> None:
    """Draw the reward of every step, its running mean, and the mean reward of two evaluations with 95% intervals.

    The y axis is 0 to 1 if all values are within it, and otherwise fits the values. Values that are not finite are left
    out.

    Args:
        path: of the PNG.
        curve: "step" and "reward" of each optimizer step, and "training_reward", which is drawn if it differs.
        title: of the plot.
        before: drawn at step 0.
        after: drawn at the last step.
    """
    reward_figure(curve, title, before, after).savefig(path)


def reward_figure(
    curve: Sequence[Mapping[str, float]], title: str, before: Evaluation | None, after: Evaluation | None
) -> Figure:
    """The figure of `write_reward_plot`; it belongs to no window and needs no closing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120)
    axes = figure.subplots()
    steps, rewards = [point["step"] for point in curve], [point["reward"] for point in curve]
    windows = (rewards[max(0, i + 1 - MEAN_STEPS) : i + 1] for i in range(len(rewards)))
    means = [sum(window) / len(window) for window in windows]
    drawn = list(rewards)
    axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="mean reward of a step")
    axes.plot(steps, means, color="#08519c", linewidth=2, label=f"running mean of {MEAN_STEPS} steps")
    trained_on = [point.get("training_reward", point["reward"]) for point in curve]
    if trained_on != rewards:
        axes.plot(steps, trained_on, color="#31a354", linewidth=1, label="reward that is trained on, of a step")
        drawn += trained_on
    for evaluation, step, label in ((before, 0, "before"), (after, steps[-1] if steps else 0, "after")):
        if evaluation is not None and evaluation.valid:
            reward = evaluation.reward
            low, high = (bound if math.isfinite(bound) else reward.value for bound in reward.interval)
            error = [[max(0.0, reward.value - low)], [max(0.0, high - reward.value)]]
            text = f"held-out {label}: {reward.value:.3g}, success {evaluation.success_rate:.2f}"
            axes.errorbar(step, reward.value, yerr=error, fmt="o", capsize=4, label=text)
            drawn += [reward.value, low, high]
    axes.set(xlabel="optimizer step", ylabel="reward", ylim=_y_range(drawn), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.tight_layout()
    return figure


def _y_range(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if low >= 0 and high <= 1:
        return -0.02, 1.02
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin
