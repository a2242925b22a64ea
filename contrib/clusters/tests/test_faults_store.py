"""The process of a weight store that has one is killed under a run; see test_faults.py."""

from __future__ import annotations

import signal
import time

import pytest

from tests.helpers.runs import start  # noqa: F401
from tests.system.test_faults import ASYNC, Faults, ends_with_one_sentence, goes_on


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_store_is_killed(start) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    run = start("trainers.grpo", "--weights.store", "torchstore", "--launcher.restarts", "0", *ASYNC)
    faults = Faults(run)
    faults.send("store", signal.SIGKILL)
    at = time.monotonic()
    noticed = faults.console.when("error: the store process died", 1) - at
    step = ends_with_one_sentence(run, faults.console.end())
    run.assert_nothing_left()
    print(f"store SIGKILL: noticed and ended after {noticed:.2f} s")
    goes_on(start, run.output, step, "--weights.store", "torchstore")
