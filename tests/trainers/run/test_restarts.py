"""When a run starts again by itself after a death. tests/system/test_faults.py kills real trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import ForgeError, ProcessDied, ServiceError, UserError
from forge_env.utils.settings import with_values
from tests.helpers.plans import plan_of
from trainers.grpo import Config
from trainers.run import restarts
from trainers.run.restarts import with_restarts
from trainers.run.training_run import TrainingRun
from trainers.setup.run_plan import RunPlan

END = "the trainer process died of SIGKILL (signal 9)"


def dies(times: int, seen: list[RunPlan], error: Exception | None = None) -> Any:
    async def execute(plan: RunPlan, run: TrainingRun) -> None:
        seen.append(plan)
        if len(seen) <= times:
            try:
                raise error or ProcessDied(END, "; the end of its log is in trainer.log")
            except ForgeError as cause:  # as `open_run` adds a remedy
                raise ServiceError(f"{cause}; go on") from cause

    return execute


def begun(folder: Path, *options: str, console: str = "console.jsonl") -> tuple[RunPlan, TrainingRun]:
    """A plan, and a run that has made its folder."""
    plan, run = plan_of("--env=math", *options), TrainingRun()
    run.folder = folder
    (folder / console).touch()
    return plan, run


async def test_a_death_before_the_first_step_begins_anew_once(tmp_path: Path) -> None:
    seen: list[RunPlan] = []
    plan, run = begun(tmp_path)
    await with_restarts(dies(1, seen), plan, run)
    assert [plan.config.output for plan in seen] == ["", str(tmp_path)] and not seen[1].config.resume
    assert [str(restart) for restart in run.restarts] == [
        f"{END}, likely out of memory: started again from the beginning"
    ]
    seen.clear()
    with pytest.raises(ServiceError, match="died of SIGKILL .* go on"):
        await with_restarts(dies(9, seen), *begun(tmp_path))
    assert len(seen) == 2


async def test_it_goes_on_from_the_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunPlan] = []
    plan, run = begun(tmp_path, "--launcher.restarts=2", "--training.learning_rate=1e-5")
    monkeypatch.setattr(restarts, "steps_of", lambda folder: {2: folder, 4: folder})
    made = []

    def make(config: Config, algorithm: Any) -> RunPlan:
        made.append((config.output, config.resume, config.checkpoint.step, config.training.learning_rate))
        return plan

    monkeypatch.setattr(restarts, "make_plan", make)
    await with_restarts(dies(2, seen), plan, run)
    assert made == [(str(tmp_path), True, 0, 1e-5)] * 2 and [restart.step for restart in run.restarts] == [4, 4]

    def refuse(config: Config, algorithm: Any) -> RunPlan:
        raise UserError("the data has changed")

    monkeypatch.setattr(restarts, "make_plan", refuse)
    run.restarts.clear()
    with pytest.raises(ServiceError, match="trainer.log, and the run cannot start again: the data has changed"):
        await with_restarts(dies(1, []), plan, run)


@pytest.mark.parametrize("case", ["off", "hosts", "stopping", "steps", "another error"])
async def test_it_ends(tmp_path: Path, case: str) -> None:
    options = {"off": ["--launcher.restarts=0"], "hosts": ["--launcher.kind=processes", "--launcher.hosts=2"]}
    seen: list[RunPlan] = []
    plan, run = begun(tmp_path, *options.get(case, []))
    run.is_stopping = case == "stopping"
    if case == "steps":
        (tmp_path / "metrics.jsonl").write_text('{"phase": "train", "step": 1}\n')
    error = ServiceError("the trainer did not answer") if case == "another error" else None
    with pytest.raises(ServiceError, match="go on"):
        await with_restarts(dies(1, seen, error), plan, run)
    assert len(seen) == 1 and not run.restarts


async def test_it_keeps_what_was_asked_while_it_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, run = begun(tmp_path, "--steps=3")
    monkeypatch.setattr(restarts, "steps_of", lambda folder: {2: folder, 4: folder})
    made: list[Config] = []

    def make(config: Config, algorithm: Any) -> RunPlan:
        made.append(config)
        return plan

    monkeypatch.setattr(restarts, "make_plan", make)
    run.changed, run.controls.is_paused, run.controls.steps_begun = (
        with_values(plan.config, {"training.steps": 9}),
        True,
        5,
    )
    run.from_step = 2  # it has not loaded that checkpoint yet
    await with_restarts(dies(1, []), plan, run)
    assert [(config.training.steps, config.checkpoint.step) for config in made] == [(9, 2)]
    assert run.restarts[0].step == 2 and run.controls.is_paused and run.controls.steps_begun == 0
