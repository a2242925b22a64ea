"""`forge-env eval`: the expert of the tools solves its tasks, and nobody does not."""

from __future__ import annotations

import pytest

from tests.forge_env.cli.test_eval_cli import Run, expert_solves_and_nobody_does_not, project, run  # noqa: F401 (fixtures)


@pytest.mark.parametrize("more", [["--option", "level=3"], ["--tools", "coin.py:double"]])
def test_the_expert_solves_and_nobody_does_not(run: Run, more: list[str]) -> None:  # noqa: F811
    expert_solves_and_nobody_does_not(run, "tool_api", *more)
