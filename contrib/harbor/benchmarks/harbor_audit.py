"""Audits the tasks that ship: can anybody be paid without doing the work?

    python -m contrib.harbor.benchmarks.harbor_audit [--json FILE] [--bug-fixes 2] [--loads 200]

Before that, it measures how long so many tasks take to be loaded and checked for form, each read for the first time.

Three sets: the tasks of contrib/harbor/examples, tasks of bug_fix at every level as Harbor tasks, and the tasks of
contrib/harbor/tests/hackable.py, each of which can be hacked in a way of its own, so that the audit must name it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import forge_env
from benchmarks.machine import describe
from contrib.harbor.config import find_tasks
from contrib.harbor.tests.hackable import HACKABLE
from contrib.workspaces.bug_fix.tasks import LEVELS
from contrib.workspaces.bug_fix.to_harbor import main as write_bug_fixes
from forge_env.utils.targets import load

EXAMPLES = Path(__file__).parents[1] / "examples"


async def audit(folder: Path) -> Any:
    report = await load("contrib.check:run_audit")(
        forge_env.make(f"harbor:{folder}"),
        progress=lambda name, done: print(f"{folder.name} {done} {name}", flush=True),
    )
    return report


async def measure(folder: Path, bug_fixes: int) -> dict[str, Any]:
    for level in LEVELS:
        with redirect_stdout(StringIO()):
            write_bug_fixes([str(folder / "bug_fix"), "--count", str(bug_fixes), "--level", str(level)])
    for name, hackable in HACKABLE.items():
        hackable.write(folder / "hackable" / name)
    sets = {"examples": EXAMPLES, "bug_fix": folder / "bug_fix", "hackable": folder / "hackable"}
    reports = {name: await audit(path) for name, path in sets.items()}
    named = {task.name: _is_named(task.name, task.paid, task.problems) for task in reports["hackable"].tasks}
    return {"named": named, "sets": {name: {**report.to_dict(), "name": name} for name, report in reports.items()}}


def measure_loading(folder: Path, count: int) -> dict[str, float]:
    """Seconds to load and check `count` tasks of bug_fix, at level 1."""
    with redirect_stdout(StringIO()):
        write_bug_fixes([str(folder), "--count", str(count), "--level", "1"])
    begin = time.perf_counter()
    tasks = find_tasks(folder)
    return {"tasks": len(tasks), "seconds": time.perf_counter() - begin}


def _is_named(name: str, paid: tuple[str, ...], problems: tuple[str, ...]) -> bool:
    """Whether the audit says what is wrong with a hackable task."""
    hackable = HACKABLE[name]
    is_problem = not hackable.problem or any(hackable.problem in problem for problem in problems)
    return is_problem and (not hackable.cheat or hackable.cheat in paid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug-fixes", type=int, default=2, help="tasks of each level of bug_fix")
    parser.add_argument("--loads", type=int, default=200, help="tasks that are loaded")
    parser.add_argument("--json", type=Path, help="file for the reports and the machine")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        loading = measure_loading(Path(folder, "loaded"), options.loads)
        print(f"{loading['tasks']} tasks loaded and checked for form in {loading['seconds']:.2f} s")
        result = {"loading": loading} | asyncio.run(measure(Path(folder, "audited"), options.bug_fixes))
    for name, report in result["sets"].items():
        print(f"{name}: {len(report['tasks'])} tasks, {len(report['hackable'])} pay a cheat, {report['seconds']:.0f} s")
    print(f"hackable tasks that the audit names: {sum(result['named'].values())} of {len(result['named'])}")
    if options.json:
        machine = {**describe(), "load_before": load, "load_after": os.getloadavg()}
        options.json.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
