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

from contrib.workspaces.bug_fix.env import HARBOR_TASK
from contrib.workspaces.bug_fix.tasks import tasks_of_level
from forge_env.core.errors import UserError
from forge_env.core.types import Task


def write_task(folder: Path, task: Task, *, base: str = "host:pytest") -> None:
    """Write one task as a new folder.

    Args:
        base: the image of its Dockerfile; it needs Python and pytest.
    """
    if folder.exists():
        raise UserError(f"{folder} exists; name a new folder")
    template = {path.name: path.read_text(encoding="utf-8") for path in HARBOR_TASK.iterdir() if path.is_file()}
    files = {
        "task.toml": template["task.toml"].format(
            artifacts=json.dumps([f"/repo/{path}" for path in task.target["sources"]]),
            name=f"bug-fix-{task.id}",
            kind=task.kind,
            level=task.metadata["level"],
        ),
        "instruction.md": f"{task.prompt[0]['content']}\n\nThe code is in /repo. Do not change the tests.\n",
        "environment/Dockerfile": template["Dockerfile"].format(base=base),
        **{f"environment/repo/{path}": text for path, text in task.metadata["files"].items()},
        **{f"tests/{name}": template[name] for name in ("test.sh", "grade.py", "runner.py")},
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
