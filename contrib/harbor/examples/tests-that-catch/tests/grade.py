"""Tests that tell right from wrong."""

import os
import tempfile

import judge
import programs

RIGHT = ("max(low, min(value, high))", "sorted((low, value, high))[1]")
WRONG = (
    "min(value, high)",
    "max(low, value)",
    "value",
    "low",
    "max(low, min(abs(value), high))",
    "max(low, min(value, high - 1))",
    "high if value >= low else low",
)


def passes(expression):
    """Whether the submitted tests pass for a function; the exit code of pytest is 1 when they fail."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        with open(f"{folder}/clamp.py", "w") as file:
            file.write(f"def clamp(value, low, high):\n    return {expression}\n")
        with open(f"{folder}/test_clamp.py", "w") as file:
            file.write(tests)
        code, _ = programs.run("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_clamp.py", cwd=folder)
    return {0: True, 1: False}.get(code)


tests = judge.read("/app/test_clamp.py")
caught = sum(passes(expression) is False for expression in WRONG) / len(WRONG) if tests else 0.0
is_right = all(passes(expression) for expression in RIGHT) if caught == 1 else False
judge.reward(is_right, caught=caught)
