"""Hosts for the agent, none for the verifier."""

import calls
import judge

CASES = (
    (["1.2", "1.10", "1.9.9"], "1.10"),
    (["2", "2.0.0", "1.9"], "2"),
    (["0.0.1"], "0.0.1"),
    (["1.0.0.1", "1.0"], "1.0.0.1"),
)
values = calls.call("/app/version.py", "newest", [[versions] for versions, _ in CASES])
judge.reward(values == [[expected] for _, expected in CASES])
