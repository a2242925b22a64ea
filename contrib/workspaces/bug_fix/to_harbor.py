"""Writes tasks of bug_fix as Harbor task folders: `python -m contrib.workspaces.bug_fix.to_harbor FOLDER --count 20
--level 1`.

The verifier is separate, and the modules of the package are its artefacts. It calls their functions in a process of
another user, which can neither read the expected values nor write the reward.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from contrib.workspaces.bug_fix.env import RUNNER
from contrib.workspaces.bug_fix.tasks import tasks_of_level
from forge_env.core.errors import UserError
from forge_env.core.types import Task

_CONFIG = """schema_version = "1.4"
artifacts = {artifacts}

[task]
name = "forge-env/{name}"
description = "A small Python package with a fault."

[metadata]
category = "{kind}"
difficulty = "level {level}"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 60.0
environment_mode = "separate"

[environment]
cpus = 1
memory_mb = 512
storage_mb = 256
network_mode = "no-network"
"""
_DOCKERFILE = """FROM {base}
WORKDIR /repo
COPY repo/ /repo/
"""
_TEST = """#!/bin/sh
exec python3 -I /tests/grade.py
"""
_GRADE = '''"""Calls the functions in a process of another user, compares here, and writes the reward."""

import json
import subprocess
import sys

RUNNER = """RUNNER_TEXT"""

with open("/tests/calls.json") as file:
    calls = json.load(file)
passed = 0
try:
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", RUNNER, "/repo"],
        input=json.dumps([call[:3] for call in calls]).encode(),
        stdout=subprocess.PIPE,
        timeout=30,
        user=65534,
        group=65534,
        extra_groups=[],
    )
    values = json.loads(run.stdout)
    passed = sum(json.dumps(value) == json.dumps([call[3]]) for value, call in zip(values, calls))
except (ValueError, TypeError, subprocess.TimeoutExpired) as error:
    print(f"the functions could not be called: {error}")
print(f"{passed} of {len(calls)} calls return what they should")
with open("/logs/verifier/reward.json", "w") as file:
    json.dump({"reward": float(passed == len(calls))}, file)
'''.replace("RUNNER_TEXT", RUNNER)


def write_task(folder: Path, task: Task, *, base: str = "host:pytest") -> None:
    """Write one task as a new folder.

    Args:
        base: the image of its Dockerfile; it needs Python and pytest.
    """
    if folder.exists():
        raise UserError(f"{folder} exists; name a new folder")
    files = {
        "task.toml": _CONFIG.format(
            artifacts=json.dumps([f"/repo/{path}" for path in task.target["sources"]]),
            name=f"bug-fix-{task.id}",
            kind=task.kind,
            level=task.metadata["level"],
        ),
        "instruction.md": f"{task.prompt[0]['content']}\n\nThe code is in /repo. Do not change the tests.\n",
        "environment/Dockerfile": _DOCKERFILE.format(base=base),
        **{f"environment/repo/{path}": text for path, text in task.metadata["files"].items()},
        "tests/test.sh": _TEST,
        "tests/grade.py": _GRADE,
        "tests/calls.json": json.dumps(task.target["calls"]),
        "solution/solve.sh": _solution(task),
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "tests/calls.json").chmod(0o600)


def _solution(task: Task) -> str:
    parts = ["#!/bin/sh"]
    for path, text in task.metadata["solution"].items():
        parts.append(f"cat > /repo/{path} <<'END'\n{text}END")
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m contrib.workspaces.bug_fix.to_harbor", description=__doc__.partition(":")[0]
    )
    parser.add_argument("folder", type=Path, help="a new folder, with a folder for each task")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--split", default="train")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--base", default="host:pytest", help="image with Python and pytest")
    options = parser.parse_args(arguments)
    try:
        for task in tasks_of_level(options.level, options.split, count=options.count, seed=options.seed):
            write_task(options.folder / f"bug-fix-{task.id}", task, base=options.base)
    except UserError as error:
        parser.error(str(error))
    print(f"{options.count} tasks in {options.folder}: forge-env check harbor:{options.folder}")


if __name__ == "__main__":
    main()
