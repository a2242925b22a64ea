"""The function."""

import calls
import judge

CASES = (("90s", 90), ("2m", 120), ("1h", 3600), ("0s", 0))
values = calls.call("/app/units.py", "to_seconds", [[text] for text, _ in CASES])
judge.reward(values == [[expected] for _, expected in CASES])
