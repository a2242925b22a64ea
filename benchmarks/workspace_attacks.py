"""The table of attacks on workspaces: whether each works without the ring, and what comes of it inside.

    .ci/docker-engine python -m benchmarks.workspace_attacks [--out FILE]      # with a Docker engine, both backends

It runs tests/sandboxes/workspaces/test_workspace_attacks.py and the controls of tests/sandboxes/test_attacks.py.
"Nothing": nothing got through. "Its own": the attack changes or sees only what belongs to its workspace, see the tables
BOTH and ROOT of the test. "Ended": it was ended by a limit. "No control" says that nobody has shown it to work outside.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from tests.sandboxes.test_attacks import ATTACKS

TESTS = (
    "tests/sandboxes/workspaces/test_workspace_attacks.py::test_no_attack_gets_through",
    "tests/sandboxes/test_attacks.py::test_the_attack_works_where_nothing_stops_it",
)


def run_tests(report: Path) -> tuple[dict[str, dict[str, str]], set[str], list[str]]:
    """Return what came of each attack by backend and user, the attacks whose controls work, and what was skipped."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "slow or not slow",
        f"--junitxml={report}",
        *TESTS,
    ]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise SystemExit(f"the tests failed with exit code {code}: there is no table of attacks that got through")
    came: dict[str, dict[str, str]] = {}
    controls: set[str] = set()
    skipped: list[str] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if (reason := case.find("skipped")) is not None:
            skipped.append(f"{case.get('name')}: {reason.get('message')}")
        elif "works_where" in str(case.get("name")):
            controls.add(str(case.get("name")).partition("[")[2].rstrip("]"))
        for one in case.iter("property"):
            came[str(one.get("name"))] = json.loads(str(one.get("value")))
    return came, controls, skipped


def table(came: dict[str, dict[str, str]], controls: set[str]) -> str:
    columns = sorted(came, key=lambda name: (not name.startswith("namespace"), not name.endswith("root")))
    lines = ["| attack | without the ring | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for attack in ATTACKS:
        control = "works" if attack.name in controls else "no control"
        cells = [came[column].get(attack.name, "not run: no control group") for column in columns]
        lines.append(" | ".join([f"| {attack.name}", control, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the table, in Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        came, controls, skipped = run_tests(Path(folder, "report.xml"))
    text = table(came, controls) + "".join(f"\n\nSkipped: {reason}" for reason in skipped) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
