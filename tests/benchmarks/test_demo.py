"""The README shows the results that are kept."""

from __future__ import annotations

import json

from benchmarks import real_model
from benchmarks.demo import RESULTS, table


def test_the_readme_has_the_table_of_the_results() -> None:
    results = json.loads((RESULTS / "demo_code_exec.json").read_text())["seeds"]
    assert table(results) in (RESULTS.parents[1] / "README.md").read_text()


def test_the_readme_has_the_table_of_the_real_model() -> None:
    results = json.loads((RESULTS / "real_model_gpu.json").read_text())["tasks"]
    assert real_model.table(results) in (RESULTS.parents[1] / "README.md").read_text()
