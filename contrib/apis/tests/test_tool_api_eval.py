"""`forge-env eval`: the expert of the tools solves its tasks, and nobody does not."""

from __future__ import annotations

from tests.forge_env.cli.test_eval_cli import Run, expert_solves_and_nobody_does_not, project, run  # noqa: F401 (fixtures)


def test_the_expert_solves_and_nobody_does_not(run: Run) -> None:  # noqa: F811
    expert_solves_and_nobody_does_not(run, "tool_api", "--tools", "coin.py:double")
