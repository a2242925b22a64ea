"""Scripts that ask a suite's own checker, in the interpreter that has the suite: `python FILE ANSWERS VERDICTS`.

Each reads lines of JSON, {"key", "id", ...} with what an agent did, and writes an object of verdicts by key. They share
no code with `contrib.suites`.
"""
