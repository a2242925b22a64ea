"""The pages of figures show the results that are kept."""

from __future__ import annotations

import json

from benchmarks import real_model
from benchmarks.demo import RESULTS, table


def test_the_page_of_the_demo_has_the_table_of_its_results() -> None:
    results = json.loads((RESULTS / "demo_code_exec.json").read_text())["seeds"]
    assert table(results) in (RESULTS / "demo.md").read_text()


def test_the_page_of_the_real_model_has_the_table_of_its_results() -> None:
    results = json.loads((RESULTS / "real_model_gpu.json").read_text())["tasks"]
    assert real_model.table(results) in (RESULTS / "real_model.md").read_text()
