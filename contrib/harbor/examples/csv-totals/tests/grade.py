"""Totals of a table by group."""

import judge
import programs

CASES = (
    ("group,amount\nb,2\na,1\nb,-5\n", "a 1\nb -3\n"),
    ("id,amount,note,group\n1,10,x,z\n2,5,,z\n", "z 15\n"),
    ('group,amount\n"x, y",3\n"x, y",4\n', "x, y 7\n"),
    ("group,amount\n", ""),
)
results = [programs.run("python3", "-I", "/app/totals.py", stdin=text) for text, _ in CASES]
judge.reward(results == [(0, expected) for _, expected in CASES])
