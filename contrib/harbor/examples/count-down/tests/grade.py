"""A shell script with an argument."""

import judge
import programs

CASES = ((["3"], (0, "3\n2\n1\ngo\n")), (["1"], (0, "1\ngo\n")), ([], (2, "")), (["x"], (2, "")), (["0"], (2, "")))
passed = sum(programs.run("sh", "/app/count_down.sh", *arguments) == expected for arguments, expected in CASES)
judge.reward(passed == len(CASES), passed=passed / len(CASES))
