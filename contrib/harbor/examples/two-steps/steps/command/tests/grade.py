"""The command."""

import judge
import programs

CASES = ((["3m"], (0, "180\n")), (["1h"], (0, "3600\n")), (["x"], (2, "")), ([""], (2, "")), (["5d"], (2, "")))
results = [programs.run("python3", "-I", "/app/units.py", *arguments) for arguments, _ in CASES]
judge.reward(results == [expected for _, expected in CASES])
