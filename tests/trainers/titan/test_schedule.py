"""Learning rates over the steps, worked by hand, and where they end."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchtitan")
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from trainers.titan.optimizer import build_schedule
from trainers.titan.trainer import TitanSettings

CASES = {
    "constant": ("constant", 2, 0, [0.5, 1, 1, 1, 1, 1, 1]),
    "constant from the start": ("constant", 0, 0, [1, 1, 1]),
    # The warm-up's last step has all of it, and so has the step after; a step behind the last would have none.
    "linear": ("linear", 2, 6, [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0, 0]),
    "linear from the start": ("linear", 0, 4, [1, 0.75, 0.5, 0.25, 0, 0]),
    "cosine": ("cosine", 1, 5, [1, 1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0, 0, 0]),
    "one step": ("linear", 0, 1, [1, 0, 0]),
}


def rates(kind: str, warmup: int, total: int, count: int, start: int = 0) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = build_schedule([optimizer], kind, warmup_steps=warmup, total_steps=total)
    if start:
        schedule.load_state_dict({"last_epoch": start})
    rates_of_steps = []
    for _ in range(count):
        rates_of_steps.append(schedule.schedulers[0].get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return rates_of_steps


@pytest.mark.parametrize("case", CASES)
def test_rates_are_those_worked_by_hand(case):
    kind, warmup, total, expected = CASES[case]
    assert rates(kind, warmup, total, len(expected)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.filterwarnings("ignore:To get the last learning rate")  # TorchTitan's way of loading a schedule
@given(
    kind=st.sampled_from(["linear", "cosine"]),
    warmup=st.integers(0, 5),
    decay=st.integers(1, 9),
    start=st.integers(0, 30),
)
def test_a_rate_never_falls_below_0_or_rises_again_after_a_resume(kind, warmup, decay, start):
    total = warmup + decay
    rates_of_steps = rates(kind, warmup, total, 12, start)
    assert all(0 <= rate <= 1 for rate in rates_of_steps)
    behind = rates_of_steps[max(warmup - start, 0) :]
    assert behind == sorted(behind, reverse=True)
    assert rates_of_steps == pytest.approx(rates(kind, warmup, total, start + 12)[start:], abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "warmup", "total", "match"),
    [
        ("step", 0, 10, "lr_schedule is 'step'; it must be one of: constant, linear, cosine"),
        ("linear", 0, 0, "total_steps=0"),
        ("cosine", 10, 10, "total_steps=10 and warmup_steps=10"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(kind, warmup, total, match):
    with pytest.raises(UserError, match=match):
        TitanSettings(lr_schedule=kind, warmup_steps=warmup, total_steps=total)
