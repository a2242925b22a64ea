"""Addresses found in a text."""

import judge

EXPECTED = ["ann@example.org", "bob.b@mail.example.com", "dee+x@example.net"]
judge.reward(judge.read("/app/addresses.txt").split("\n") == [*EXPECTED, ""])
