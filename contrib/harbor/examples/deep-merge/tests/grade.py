"""A function that merges nested objects."""

import calls
import judge

CASES = [
    [[{"a": 1}, {"b": 2}], {"a": 1, "b": 2}],
    [[{"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}], {"a": {"x": 1, "y": 3}}],
    [[{"a": {"x": 1}}, {"a": 5}], {"a": 5}],
    [[{"a": 5}, {"a": {"x": 1}}], {"a": {"x": 1}}],
    [[{}, {}], {}],
    [[{"a": {"b": {"c": [1]}}}, {"a": {"b": {"c": [2], "d": 0}}}], {"a": {"b": {"c": [2], "d": 0}}}],
]
values = calls.call("/app/merge.py", "merge", [arguments for arguments, _ in CASES])
passed = sum(calls.same(value, [expected]) for value, (_, expected) in zip(values, CASES, strict=False))
judge.reward(passed == len(CASES), passed=passed / len(CASES))
