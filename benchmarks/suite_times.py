"""Where test time goes: seconds by area and by file, as text.

    make test ARGS=--junitxml=times.xml
    python -m benchmarks.suite_times times.xml > benchmarks/results/test_times.txt

With two reports, `python -m benchmarks.suite_times before.xml after.xml` puts their seconds side by side. A test's
seconds are those of set-up, call and tear-down in its worker; a fixture of a file counts for the file's first test.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

LEAST_SECONDS = 2.0
"""A file with less in every report has no row of its own."""


def seconds_by_file(report: Path) -> tuple[Counter[str], Counter[str]]:
    """Seconds and tests of each file of a JUnit report, by its path, without "tests/"."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        names = case.attrib["classname"].split(".")
        last = next((place for place, name in enumerate(names) if name.startswith("test_")), len(names) - 1)
        path = "/".join(names[names[0] == "tests" : last + 1])
        seconds[path] += float(case.attrib["time"])  # type: ignore[assignment]
        tests[path] += 1
    return seconds, tests


def _area(path: str) -> str:
    parts = path.split("/")[:-1]
    return "/".join(parts[:2]) if parts else path


def _summed(values: Mapping[str, float], key: Callable[[str], str]) -> Counter[str]:
    result: Counter[str] = Counter()
    for path, value in values.items():
        result[key(path)] += value  # type: ignore[assignment]
    return result


def table(reports: Sequence[Path]) -> str:
    """Rows of seconds and tests for each report: the whole, the areas, and the files that take long."""
    found = [seconds_by_file(report) for report in reports]
    cores = len(os.sched_getaffinity(0))
    lines = [f"cores: {cores}", f"{'':60}" + "".join(f"{report.stem:>10} s  tests" for report in reports)]
    groups: list[tuple[str, Callable[[str], str], float]] = [
        ("all", lambda path: "all", 0.0),
        ("by area", _area, 0.0),
        (f"by file, {LEAST_SECONDS:g} s and more", lambda path: path, LEAST_SECONDS),
    ]
    for title, key, least in groups:
        columns = [(_summed(seconds, key), _summed(tests, key)) for seconds, tests in found]
        names = sorted({name for seconds, _ in columns for name in seconds}, key=lambda name: -columns[0][0][name])
        lines += ["", title]
        for name in names:
            if max(seconds[name] for seconds, _ in columns) >= least:
                row = "".join(f"{seconds[name]:12.1f} {tests[name]:6.0f}" for seconds, tests in columns)
                lines.append(f"{name:60}{row}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, help="JUnit reports, such as before.xml after.xml")
    sys.stdout.write(table(parser.parse_args().reports))


if __name__ == "__main__":
    main()
