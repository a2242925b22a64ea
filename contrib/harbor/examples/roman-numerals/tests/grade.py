"""Numbers as Roman numerals."""

import calls
import judge

NUMERALS = {1: "I", 4: "IV", 9: "IX", 14: "XIV", 40: "XL", 90: "XC", 400: "CD", 1994: "MCMXCIV", 2026: "MMXXVI"}
NUMERALS[3999] = "MMMCMXCIX"
values = calls.call("/app/roman.py", "roman", [[number] for number in NUMERALS])
passed = sum(calls.same(value, [expected]) for value, expected in zip(values, NUMERALS.values(), strict=False))
judge.reward(passed == len(NUMERALS), passed=passed / len(NUMERALS))
