"""Counts of status codes in a log."""

import collections
import json

import judge

with open("/tests/access.log") as file:
    expected = collections.Counter(line.split()[3] for line in file)
try:
    answer = json.loads(judge.read("/app/counts.json"))
except ValueError:
    answer = None
judge.reward(json.dumps(answer, sort_keys=True) == json.dumps(expected, sort_keys=True))
