"""Days of work between two dates."""

import calls
import judge

CASES = [
    [["2026-03-02", "2026-03-08", []], 5],
    [["2026-03-07", "2026-03-08", []], 0],
    [["2026-03-02", "2026-03-06", ["2026-03-04"]], 4],
    [["2026-03-02", "2026-03-06", ["2026-03-07"]], 5],
    [["2026-03-06", "2026-03-02", []], 0],
    [["2024-02-28", "2024-03-01", []], 3],
]
values = calls.call("/app/workdays.py", "workdays", [arguments for arguments, _ in CASES])
passed = sum(calls.same(value, [expected]) for value, (_, expected) in zip(values, CASES, strict=False))
judge.reward(passed == len(CASES), passed=passed / len(CASES))
