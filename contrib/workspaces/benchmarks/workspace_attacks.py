"""The table of attacks on workspaces: what comes of each inside, on both backends and as two users.

    .ci/docker-engine python -m contrib.workspaces.benchmarks.workspace_attacks [--out FILE]      # with a Docker
    engine, both backends

It runs contrib/workspaces/tests/machines/test_workspace_attacks.py. No attack is run here without the ring.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.machine import describe
from tests.sandboxes.test_attacks import ATTACKS

NOTE = """- nothing: nothing got through; ended: by the limit that is named, or by a signal;
- its own: the attack changes or sees only what belongs to its workspace: BOTH and ROOT of `test_workspace_attacks.py`;
- control: whether the attack was shown to work where nothing stops it. "A test": its control harms nothing, and is a
  test of `tests/sandboxes/test_attacks.py`. "Not run": without the ring it would act on the machine that it is run on,
  so the control needs a machine that can be thrown away, and there was none.
"""
TEST = "contrib/workspaces/tests/machines/test_workspace_attacks.py::test_no_attack_gets_through"


def run_test(report: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Return what came of each attack by backend and user, and what was skipped."""
    options = ["-q", "-n", "0", "-m", "slow or not slow", f"--junitxml={report}", "-o", "junit_family=xunit1"]
    code = subprocess.run([sys.executable, "-m", "pytest", *options, TEST], check=False).returncode
    if code:
        raise SystemExit(f"the test failed with exit code {code}: there is no table of attacks that got through")
    came: dict[str, dict[str, str]] = {}
    skipped: list[str] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if (reason := case.find("skipped")) is not None:
            skipped.append(f"{case.get('name')}: {reason.get('message')}")
        for one in case.iter("property"):
            came[str(one.get("name"))] = json.loads(str(one.get("value")))
    return came, skipped


def table(came: dict[str, dict[str, str]]) -> str:
    columns = sorted(came, key=lambda name: (not name.startswith("namespace"), not name.endswith("root")))
    lines = ["| attack | control | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for attack in ATTACKS:
        control = "a test" if attack.control else "not run"
        cells = [came[column].get(attack.name, "not run: no control group") for column in columns]
        lines.append(" | ".join([f"| {attack.name}", control, *cells]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the table, in Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        came, skipped = run_test(Path(folder, "report.xml"))
    text = "\n\n".join([describe()["system"], table(came), NOTE, *(f"Skipped: {reason}" for reason in skipped)])
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
