"""Calls the functions in a process of another user, compares here, and writes the reward."""

import json
import subprocess
import sys

if __name__ == "__main__":
    with open("/tests/calls.json") as file:
        calls = json.load(file)
    with open("/tests/runner.py") as file:
        runner = file.read()
    successes = 0
    try:
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", runner, "/repo"],
            input=json.dumps([call[:3] for call in calls]).encode(),
            stdout=subprocess.PIPE,
            timeout=30,
            user=65534,
            group=65534,
            extra_groups=[],
        )
        values = json.loads(run.stdout)
        successes = sum(json.dumps(value) == json.dumps([call[3]]) for value, call in zip(values, calls))  # noqa: B905  (Python 3.9)
    except (ValueError, TypeError, subprocess.TimeoutExpired) as error:
        print(f"the functions could not be called: {error}")
    print(f"{successes} of {len(calls)} calls return what they should")
    with open("/logs/verifier/reward.json", "w") as file:
        json.dump({"reward": float(successes == len(calls))}, file)
