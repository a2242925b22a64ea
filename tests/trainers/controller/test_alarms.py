"""The on-policy check: what is judged, what is said, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.plans import plan_of
from trainers.controller.alarms import MismatchAlarm, make_alarm


def metrics(difference: float, kl: float = 0.0) -> dict[str, float]:
    return {"mean_abs_logprob_difference": difference, "kl": kl, "ratio_min": 0.999, "ratio_max": 1.25}


def alarm(dtype: str = "float32", **settings: Any) -> tuple[MismatchAlarm, list[str]]:
    messages: list[str] = []
    return MismatchAlarm(dtype=dtype, say=messages.append, **settings), messages


def test_what_was_expected_is_said_once() -> None:
    check, messages = alarm()
    assert check(metrics(3e-7), is_fresh=True) == 0.0
    assert messages == [
        "on-policy check: mean |logprob difference| 3e-07, k3 0, ratio within [0.999, 1.25]: as expected for float32"
    ]
    assert check(metrics(3e-7), is_fresh=True) == 0.0 and len(messages) == 1


@pytest.mark.parametrize(
    ("dtype", "settings", "measured", "expected"),
    [
        ("float32", {}, metrics(2e-4), 1.0),
        ("float32", {}, metrics(5e-5, kl=0.01), 1.0),  # a few tokens, far off
        ("bfloat16", {}, metrics(2e-2, kl=1e-3), 0.0),
        ("bfloat16", {}, metrics(0.2), 1.0),
        ("bfloat16", {}, metrics(2e-2, kl=0.06), 1.0),
        ("float32", {"bound": 0.5}, metrics(0.4, kl=1.0), 0.0),
        ("bfloat16", {"bound": 1e-3}, metrics(2e-3), 1.0),
        ("float32", {}, metrics(float("nan")), 1.0),
    ],
)
def test_bounds(dtype: str, settings: dict[str, float], measured: dict[str, float], expected: float) -> None:
    check, messages = alarm(dtype, **settings)
    assert check(measured, is_fresh=True) == expected
    assert [message.split(":")[0] for message in messages] == ([] if expected else ["on-policy check"])


def test_stale_tokens_and_steps_without_tokens_are_not_judged() -> None:
    check, messages = alarm()
    assert check(metrics(9.0), is_fresh=False) == check({"tokens": 0.0}, is_fresh=True) == 0.0
    assert messages == []
    assert check(metrics(0.0), is_fresh=True) == 0.0 and len(messages) == 1


def test_settings_of_the_engine_that_change_logprobs_are_named() -> None:
    settings = ("quantization=fp8_per_tensor", "kv_cache_dtype=fp8")
    check, messages = alarm("bfloat16", approximations=settings)
    assert check(metrics(0.087), is_fresh=True) == 0.0
    assert messages == [
        "on-policy check: mean |logprob difference| 0.087, k3 0, ratio within [0.999, 1.25]: "
        "with quantization=fp8_per_tensor, kv_cache_dtype=fp8"
    ]


def alarm_of(*arguments: str) -> MismatchAlarm:
    return make_alarm(plan_of(*arguments), print)


def test_the_bound_depends_on_the_coarser_dtype() -> None:
    assert alarm_of().dtype == "float32"
    assert alarm_of().bounds == "0.0001 and 0.0001, the bounds for float32"
    assert alarm_of("--generator.with_gpus").dtype == "bfloat16"
    found = alarm_of("--trainer.with_gpus", "--training.mismatch_alarm=0.25")
    assert (found.dtype, found.bounds) == ("bfloat16", "--training.mismatch_alarm 0.25")
    assert alarm_of("--trainer.with_gpus", "--training.dtype=float32").dtype == "float32"


def test_the_alarm_of_a_run_knows_the_engine_s_settings() -> None:
    assert alarm_of().approximations == []
    found = alarm_of("--generator.with_gpus", "--generator.engine.quantization=fp8_per_tensor")
    assert found.approximations == ["quantization=fp8_per_tensor"]
