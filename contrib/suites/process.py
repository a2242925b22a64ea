"""The helper process in which a suite runs, confined, with the interpreter that has it."""

from __future__ import annotations

import functools

from contrib.suites.catalogue import Installed
from envs.processes.helper import HelperProcess


class SuiteProcess(HelperProcess):
    """A suite's process. Episodes leave no state in it, so it may end and start again at any time."""

    def __init__(self, library_file: str, suite: Installed) -> None:
        self.label = suite.label
        variables = {"PYTHONHASHSEED": "0", "PYTHONPATH": ""}
        super().__init__(library_file, name=f"the process of {suite.label}", environment=variables, python=suite.python)


@functools.cache
def process_of(library_file: str, suite: Installed) -> SuiteProcess:
    """Return the process of a suite, one for each interpreter; it starts with its first request."""
    process = SuiteProcess(library_file, suite)
    process.end_with_owner()
    return process
