"""Run by the interpreter that has the package harbor: what its own reader and its own trial make of tasks, as JSON.

The environment writes the files that a verifier would write; everything else is Harbor's own code.
"""

import asyncio
import json
import logging
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harbor.models.task.config import TaskConfig, TaskOS
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import (
    resolve_effective_verifier_env_config,
    resolve_step_verifier_mode,
    resolve_task_verifier_mode,
)
from harbor.models.trial.config import TaskConfig as TrialTask
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import ExceptionInfo, StepResult
from harbor.trial.multi_step import MultiStepTrial
from harbor.verifier.verifier import Verifier


class Written:
    """An environment in which test.sh writes given files."""

    os = TaskOS.LINUX
    capabilities = SimpleNamespace(mounted=True)

    def __init__(self, paths: TrialPaths, written: dict[str, str]) -> None:
        self.paths, self.written, self.env = paths, written, {}

    async def exec(self, command: str, user: Any = None, env: Any = None) -> Any:
        if "test.sh)" in command:
            self.env = env or {}
            for name, text in self.written.items():
                (self.paths.verifier_dir / f"reward.{name}").write_bytes(text.encode("latin-1"))
        return SimpleNamespace(return_code=0, stdout="", stderr="")

    async def upload_dir(self, source_dir: Path, target_dir: str) -> None:
        pass

    def is_path_mounted(self, *_: Any) -> bool:
        return True


async def verified(trial: MultiStepTrial, step: Any, written: dict[str, str], folder: Path) -> dict[str, Any]:
    """What is made of one step; of the whole task for None."""
    task, paths = trial.task, TrialPaths(trial_dir=folder)
    paths.verifier_dir.mkdir(parents=True)
    environment = Written(paths, written)
    own = step.verifier if step else None
    verifier = Verifier(
        task=task,
        trial_paths=paths,
        environment=environment,
        verifier_env=own.env or None if own else None,
        step_name=step.name if step else None,
    )
    result = StepResult(step_name=step.name if step else "")
    try:
        result.verifier_result = await verifier.verify()
    except Exception as error:
        result.exception_info = ExceptionInfo.from_exception(error)
    trial.result.step_results.append(result)
    mode = resolve_step_verifier_mode(task.config, step) if step else resolve_task_verifier_mode(task.config)
    section = resolve_effective_verifier_env_config(task.config, step)
    return {
        "rewards": result.verifier_result.rewards if result.verifier_result else None,
        "stops": trial._should_stop_after_step(step, result) if step else True,
        "env": environment.env,
        "seconds": trial._step_verifier_timeout_sec(step) if step else trial._compute_verifier_timeout_sec(),
        "user": trial._step_verifier_user(step) if step else task.config.verifier.user,
        "mode": mode.value,
        "sizes": [section.memory_mb, section.storage_mb, section.cpus] if section else None,
        "instruction": (task.step_instruction(step.name) if step else task.instruction).strip(),
        "collect": [hook.command for hook in trial._collect_hooks_for(step)],
    }


async def played(folder: Path, written: list[dict[str, str]]) -> dict[str, Any]:
    """A task whose verifiers write given files, one after the other."""
    task = Task(folder)
    trial = object.__new__(MultiStepTrial)
    trial.config, trial.task = TrialConfig(task=TrialTask(path=folder)), task
    trial.logger = logging.getLogger("trial")
    trial._result = SimpleNamespace(step_results=[])
    steps: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        for number, step in enumerate(task.config.steps or [None]):
            steps.append(await verified(trial, step, written[number], Path(place, str(number))))
            if steps[-1]["stops"]:
                break
    environment = task.config.environment
    sizes = environment.memory_mb, environment.storage_mb
    total = trial._select_multi_step_reward() if task.config.steps else None
    return {
        "steps": steps,
        "total": total.rewards if total else steps[-1]["rewards"] if not task.config.steps else None,
        "environment": [*sizes, environment.cpus, environment.network_mode.value],
    }


def refuses(text: str) -> bool:
    try:
        TaskConfig.model_validate_toml(text)
    except ValueError:
        return True
    return False


if __name__ == "__main__":
    request = json.load(sys.stdin)
    tasks = {name: asyncio.run(played(Path(folder), written)) for name, (folder, written) in request["tasks"].items()}
    refused = [name for name, text in request["texts"].items() if refuses(text)]
    json.dump({"version": version("harbor"), "tasks": tasks, "refused": refused}, sys.stdout)
