"""Whether brackets are balanced."""

import calls
import judge

TEXTS = {"(a[b]{c})": -1, "(]": 1, "())": 2, "((": 1, "([)]": 2, "": -1, "x{y": 1, "[(])": 2}
values = calls.call("/app/brackets.py", "first_problem", [[text] for text in TEXTS])
passed = sum(calls.same(value, [expected]) for value, expected in zip(values, TEXTS.values(), strict=False))
judge.reward(passed == len(TEXTS), passed=passed / len(TEXTS))
