"""Whether brackets are balanced."""

import sys

sys.path.insert(0, "/tests")
import calls
import judge

CASES = [
    [["(a[b]{c})"], -1],
    [["(]"], 1],
    [["())"], 2],
    [["(("], 1],
    [["([)]"], 2],
    [[""], -1],
    [["x{y"], 1],
    [["[(])"], 2],
]
values = calls.call("/app/brackets.py", "first_problem", [arguments for arguments, _ in CASES])
passed = sum(calls.same(value, [expected]) for value, (_, expected) in zip(values, CASES, strict=False))
judge.reward(passed == len(CASES), passed=passed / len(CASES))
