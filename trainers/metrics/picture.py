"""reward.png: the reward of every step, and the held-out success before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from forge_env.evaluate import Evaluation


def draw_curve(
    path: Path,
    curve: Sequence[Mapping[str, float]],
    title: str,
    before: Evaluation | None,
    after: Evaluation | None,
) -> None:
    """Draw the reward of every step, its running mean, and the two evaluations.

    Args:
        path: of the PNG.
        curve: "step" and "reward" of each optimizer step.
        title: over it.
        before: drawn at step 0.
        after: drawn at the last step.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    steps = [point["step"] for point in curve]
    rewards = [point["reward"] for point in curve]
    axes.plot(steps, rewards, color="#9ecae1", linewidth=1, label="mean reward of a step")
    axes.plot(steps, _running_mean(rewards, 10), color="#08519c", linewidth=2, label="running mean of 10 steps")
    for evaluation, step, label in ((before, 0, "before"), (after, steps[-1] if steps else 0, "after")):
        if evaluation is not None:
            low, high = evaluation.interval
            rate = evaluation.success_rate
            error = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
            axes.errorbar(step, rate, yerr=error, fmt="o", capsize=4, label=f"held-out success {label}: {rate:.2f}")
    axes.set(xlabel="optimizer step", ylabel="reward", ylim=(-0.02, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]
