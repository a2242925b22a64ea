"""How a function earns trust, loses it, and earns it again."""

from __future__ import annotations

import gc
import math
import time

from forge_env.utils.trust import FAST_SECONDS, LONG_TRUST, SLOW_SECONDS, TRIAL_CALLS, Trust, trust_in
from forge_env.utils.trust import _trusts as trusts


def test_trust_belongs_to_a_function_and_ends_with_it() -> None:
    class Tool:
        def method(self) -> None: ...
        def __call__(self) -> None: ...

    one, two = Tool(), Tool()
    gc.collect()  # functions of other tests
    known = len(trusts)
    assert trust_in(one.method) is trust_in(two.method) is not trust_in(one) is trust_in(two)
    assert trust_in(time.sleep) is not trust_in(time.sleep), "a builtin is never trusted"
    assert len(trusts) == known + 2
    del one, two, Tool
    gc.collect()
    assert len(trusts) == known


def test_a_function_that_is_slow_whenever_it_is_trusted_is_trusted_ever_more_seldom() -> None:
    known, calls, slow = Trust(), 100_000, 0
    for _ in range(calls):
        slow += bool(known)
        known.note(math.inf if known else 0.0)
    assert 1 <= slow <= math.log2(calls / TRIAL_CALLS)


def test_a_rare_slow_call_costs_a_trusted_function_no_more_than_a_short_trial() -> None:
    known, untrusted = Trust(), 0
    for i in range(10 * LONG_TRUST * TRIAL_CALLS):
        untrusted += not known
        known.note(math.inf if i % (2 * LONG_TRUST * TRIAL_CALLS) == 0 and i else 0.0)
    assert untrusted == 5 * TRIAL_CALLS


def test_a_call_is_fast_by_other_limits_before_and_after_the_trial() -> None:
    known, between = Trust(), (FAST_SECONDS + SLOW_SECONDS) / 2
    for seconds in (*[0.0] * (TRIAL_CALLS - 1), between, *[0.0] * (TRIAL_CALLS - 1)):
        known.note(seconds)
        assert not known
    known.note(0.0)
    known.note(between)
    assert known
    known.note(2 * SLOW_SECONDS)
    assert not known
