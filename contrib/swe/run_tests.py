"""Runs tests by pytest and reports their outcomes. Put into the workspace of a verdict and run there; imported nowhere.

The code under test runs in this process, so it is the reader who judges the report: it must come whole, with its nonce,
and the canary, a test that fails, must have failed. Standard library and pytest only.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest  # before anything of the repository can take its place


class Canary(pytest.Item):
    """A test that fails, among the others: whoever makes all tests pass makes this one pass."""

    def runtest(self) -> None:
        raise AssertionError("the canary fails")

    def reportinfo(self) -> tuple:
        return self.path, None, self.name


class Outcomes:
    def __init__(self, canary: str) -> None:
        self.canary = canary
        self.by_id: dict = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Iterator[None]:
        """Take back settings of the repository that keep the canary from running: xdist's workers and `-x`."""
        config.option.numprocesses, config.option.dist, config.option.maxfail = 0, "no", 0
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list) -> None:
        items.append(Canary.from_parent(session, name=self.canary))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self.canary if report.nodeid.endswith(self.canary) else report.nodeid
        if hasattr(report, "wasxfail"):
            status = "XFAIL" if report.outcome == "skipped" else "XPASS"
        elif report.outcome == "failed":
            status = "FAILED" if report.when == "call" else "ERROR"
        else:
            status = report.outcome.upper()
        if (report.when == "call" or status != "PASSED") and self.by_id.get(name) not in ("FAILED", "ERROR"):
            self.by_id[name] = status


def main() -> None:
    request = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    outcomes = Outcomes(request["canary"])
    files = [path for path in request["files"] if os.path.isfile(path)]
    if files:
        # With an empty cache: without the plugin, options of the repository such as --ff are mistakes.
        options = ["-q", "-o", f"cache_dir={tempfile.mkdtemp()}", f"--rootdir={os.getcwd()}"]
        pytest.main([*options, *files], plugins=[outcomes])
        sys.stdout.flush()
    ids = {*request["ids"], request["canary"]}
    cut = {name.partition("[")[0] for name in ids - outcomes.by_id.keys()}  # some ids have lost their end
    statuses = {name: s for name, s in outcomes.by_id.items() if name in ids or name.partition("[")[0] in cut}
    data = json.dumps({"nonce": request["nonce"], "outcomes": statuses}).encode()
    while data:
        data = data[os.write(out, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()
