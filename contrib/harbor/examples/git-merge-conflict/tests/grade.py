"""A merge with a conflict."""

import calls
import judge

CASES = (([1, 2.499], 2.5), ([10, 1.0], 9.0), ([9, 1.0], 9.0), ([11, 0.333], 3.3), ([3, 0.3333], 1.0))
values = calls.call("/app/shop.py", "price", [arguments for arguments, _ in CASES])
judge.reward(values == [[expected] for _, expected in CASES])
