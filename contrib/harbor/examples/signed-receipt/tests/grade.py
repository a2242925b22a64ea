"""A solution that is given a key."""

import hmac

import judge
import programs

CASES = (("key", "a text"), ("another key", ""), ("k", "line\nline\n"))
expected = [(0, hmac.new(key.encode(), text.encode(), "sha256").hexdigest() + "\n") for key, text in CASES]
judge.reward([programs.run("python3", "-I", "/app/sign.py", key, stdin=text) for key, text in CASES] == expected)
