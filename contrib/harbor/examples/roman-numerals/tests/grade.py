"""Numbers as Roman numerals."""

import sys

sys.path.insert(0, "/tests")
import calls
import judge

CASES = [
    [[1], "I"],
    [[4], "IV"],
    [[9], "IX"],
    [[14], "XIV"],
    [[40], "XL"],
    [[90], "XC"],
    [[400], "CD"],
    [[1994], "MCMXCIV"],
    [[2026], "MMXXVI"],
    [[3999], "MMMCMXCIX"],
]
values = calls.call("/app/roman.py", "roman", [arguments for arguments, _ in CASES])
passed = sum(calls.same(value, [expected]) for value, (_, expected) in zip(values, CASES, strict=False))
judge.reward(passed == len(CASES), passed=passed / len(CASES))
