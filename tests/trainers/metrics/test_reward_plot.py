"""reward.png: all that is drawn can be seen, on the axis that it belongs to."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.core.episode import Episode
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.evaluate import Evaluation
from trainers.metrics.reward_plot import reward_figure, write_reward_plot


def evaluation(*rewards: float) -> Evaluation:
    """One episode for each task."""
    return Evaluation(
        episodes=tuple(
            Episode(task=Task(prompt=(), id=str(i)), outcome=Outcome.SCORED, reward=reward)
            for i, reward in enumerate(rewards)
        )
    )


def curve_of(*rewards: float) -> list[dict[str, float]]:
    return [{"step": float(step), "reward": reward} for step, reward in enumerate(rewards, 1)]


@pytest.mark.parametrize("rewards", [(-3.0, -1.0, 0.5), (0.0, 40.0, 200.0), (500.0, 500.0), (1e-9, -1e-9), (-7.0,)])
def test_rewards_of_any_size_are_inside_the_picture(rewards: tuple[float, ...]) -> None:
    (axes,) = reward_figure(curve_of(*rewards), "t", evaluation(*rewards), evaluation(max(rewards))).axes
    low, high = axes.get_ylim()
    drawn = [y for line in axes.lines for y in line.get_ydata()]
    assert len(drawn) > 2 * len(rewards) and all(low < y < high for y in drawn)
    assert max(drawn) - min(drawn) > 0.3 * (high - low) or max(drawn) - min(drawn) < 1e-6


def test_rewards_between_0_and_1_are_on_the_axis_of_shares() -> None:
    (axes,) = reward_figure(curve_of(0.2, 0.4), "t", evaluation(0.0, 1.0), None).axes
    assert axes.get_ylim() == (-0.02, 1.02)


def test_what_was_held_out_is_drawn_as_its_mean_reward() -> None:
    (axes,) = reward_figure(curve_of(30.0, 40.0), "t", evaluation(10.0, 30.0), evaluation(50.0, 70.0, 0.5)).axes
    points = [container[0].get_ydata()[0] for container in axes.containers]
    assert points == pytest.approx([20.0, 120.5 / 3])
    labels = [container.get_label() for container in axes.containers]
    assert labels == ["held-out before: 20, success 1.00", "held-out after: 40.2, success 0.67"]


def test_a_run_without_a_step_or_a_valid_episode_has_a_picture(tmp_path: Path) -> None:
    write_reward_plot(tmp_path / "reward.png", [], "t", Evaluation(episodes=()), None)
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
