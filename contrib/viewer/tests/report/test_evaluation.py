"""`forge-env report` of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.cli.main import main
from tests.forge_env.cli.test_eval_cli import Run, dungeon, project, run  # noqa: F401 (fixtures)


def test_an_evaluation_is_shown_again(run: Run, capfd: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run(*dungeon("out", "--max-turns", "29"))
    assert main(["report", "out", "--text"]) == 0
    shown = capfd.readouterr().out
    assert "avg@1" in shown and "0 episodes were run now, 3 read" in shown and "everything is in out" in shown
    for content, words in (("{}", "out/eval.json is not of an evaluation: KeyError 'episodes'"), (None, "not ended")):
        Path("out/eval.json").write_text(content) if content else Path("out/eval.json").unlink()
        assert main(["report", "out", "--text"]) == 2
        assert words in capfd.readouterr().err
