"""Which functions have shown to be fast, so that their calls can share a thread: see `forge_env.utils.lanes`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

TRIAL_CALLS = 20
"""Fast calls in a row after which a function is trusted for the first time."""
FAST_SECONDS = 0.0001
"""The longest call that counts as fast in a trial, in seconds of the clock: to wait is slow, too."""
SLOW_SECONDS = 0.001
"""A longer call ends the trust."""
LONG_TRUST = 100
"""If a trust of this many times the trial's length was no mistake, one slow call makes the trial no longer."""


class Trust:
    """What is known about the speed of a function. It is false until the function has shown to be fast.

    Only threads of event loops change it.
    """

    __slots__ = ("_fast_calls", "_trial_calls")

    def __init__(self) -> None:
        self._fast_calls = 0
        self._trial_calls = TRIAL_CALLS

    def __bool__(self) -> bool:
        return self._fast_calls >= self._trial_calls

    def note(self, seconds: float) -> None:
        """Take note of a call and its seconds."""
        if seconds <= (SLOW_SECONDS if self else FAST_SECONDS):
            self._fast_calls += 1
        else:
            self.end()

    def end(self) -> None:
        """Begin a new trial; one of twice the length, unless the trust lasted for LONG_TRUST trials."""
        if self and self._fast_calls < LONG_TRUST * self._trial_calls:
            self._trial_calls *= 2
        self._fast_calls = 0


_trusts: WeakKeyDictionary[FunctionType, Trust] = WeakKeyDictionary()


def trust_in(function: Callable[..., Any]) -> Trust:
    """Return the trust in a function, which all instances of its class share.

    What has no code in Python, a builtin for example, gets a new one each time: it is never trusted.
    """
    plain: Any = function
    while not isinstance(plain, FunctionType):
        if isinstance(plain, MethodType):
            plain = plain.__func__
        elif isinstance(plain, functools.partial):
            plain = plain.func
        else:
            plain = type(plain).__call__
            if not isinstance(plain, FunctionType):
                return Trust()
    try:
        return _trusts[plain]
    except KeyError:
        return _trusts.setdefault(plain, Trust())
