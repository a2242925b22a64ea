"""A run that goes on names the code that has changed since it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.plans import plan_of
from trainers.run.open_run import _write_facts
from trainers.run.run_record import RunRecord


def test_a_changed_loss_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loss = tmp_path / "mine.py"
    source = "def mine(logprobs, advantages, loss_mask):\n    return -(advantages * logprobs).sum()\n"
    loss.write_text(source)
    plan = plan_of("--env=math", f"--loss={loss}:mine")
    for changed in (source, source, source.replace("-(", "-2 * (")):
        loss.write_text(changed)
        assert "mine.py" not in capsys.readouterr().out
        with RunRecord(tmp_path / "run") as record:
            _write_facts(plan, record, {})
    assert "the code of the training (mine.py) has changed since this run began" in capsys.readouterr().out
