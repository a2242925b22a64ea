"""Which tests of a task are as they must be, by the rules of SWE-bench 5.0 (`swebench.harness.grading`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_PASSING = ("PASSED", "XFAIL")
_PATH_OPTION = re.compile(r"\[/(?!/)[^*]*/([^/*]*)\]")
_BUTTONS = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}


def satisfied(fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], statuses: Mapping[str, str]) -> frozenset[str]:
    """Return the tests that pass, and the skipped ones of PASS_TO_PASS; the task is resolved if these are all.

    A test that must fail and passes (XPASS) has no status in SWE-bench, as one that was not run.

    >>> sorted(satisfied(["a::x", "a::y"], ["a::z[1"], {"a::x": "XFAIL", "a::y": "SKIPPED", "a::z[1 2]": "SKIPPED"}))
    ['a::x', 'a::z[1']

    Args:
        fail_to_pass: ids of tests, which may have lost their end.
        pass_to_pass: the same.
        statuses: of the tests that were run, by their whole ids: PASSED, FAILED, ERROR, SKIPPED, XFAIL or XPASS.
    """
    known = {alias: status for test, status in statuses.items() for alias in _aliases(test)} | dict(statuses)
    known = {test: status for test, status in known.items() if status != "XPASS"}
    kept = (test for test in pass_to_pass if _status(test, known) in (*_PASSING, "SKIPPED"))
    passed = frozenset(test for test in fail_to_pass if _status(test, known) in _PASSING)
    return passed | (frozenset(kept) - frozenset(fail_to_pass))


def _status(test: str, known: Mapping[str, str]) -> str:
    """The status of a test. An id without its closing bracket stands for all ids that begin so, if they agree."""
    if test in known or test.count("[") <= test.count("]"):
        return known.get(test, "")
    statuses = [status for other, status in known.items() if other.startswith(test)]
    return statuses[0] if len({status in _PASSING for status in statuses}) == 1 else ""


def _aliases(test: str) -> Sequence[str]:
    """What the log parsers of some repositories call a test: without the folders of a path, with numbers of buttons."""
    buttons = test
    for name, number in _BUTTONS.items():
        buttons = buttons.replace(name, number)
    return _PATH_OPTION.sub(r"[/\1]", test), buttons
