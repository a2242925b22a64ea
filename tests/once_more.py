"""Run pytest, and run a test that has failed once more, alone, at the end: `python -m tests.once_more OPTIONS`.

A test that passes then is flaky: the run is green, and its last lines name it. The exit status is that of pytest, or 0
when each failed test has passed the second time.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST = 50
"""With more failures than that none is run again: so many are not due to chance."""


class Failures:
    """A plugin that keeps the ids of all tests and files that have failed, in all workers."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.names[report.nodeid] = None


def main(options: list[str]) -> int:
    failures = Failures()
    status = pytest.main(options, plugins=[failures])
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failures.names) <= MOST:
        return int(status)
    print(f"{len(failures.names)} failed: once more, alone", flush=True)
    again = [sys.executable, "-m", "pytest", "-q", "-x", *failures.names]
    if subprocess.run(again, check=False).returncode:
        return int(status)
    for name in failures.names:
        print(f"flaky: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
