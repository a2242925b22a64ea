"""A whole run with tools on one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.gpu.conftest import ends_on_sigterm  # noqa: F401 (a fixture)
from tests.gpu.test_runs_gpu import pytestmark, run_the_tiny_model  # noqa: F401 (marks)


@pytest.mark.timeout(420)
def test_a_run_of_the_tiny_model(tmp_path: Path) -> None:
    run_the_tiny_model("tool_api", tmp_path)
