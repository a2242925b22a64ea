"""The weights of a training run by name: RUN, RUN@best, RUN@last, RUN@40, or the folder of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from forge_env.core.errors import UserError
from forge_env.core.reward_value import reaches
from forge_env.records.run_files import CONFIG, MANIFEST, SUMMARY, metrics_of, read_object, step_of, steps_of

BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWeights:
    """Weights of a training run that are on the disk."""

    name: str
    """RUN@STEP, which names the same weights when the run goes on; as it was given if no step is recorded."""
    run: Path
    step: int | None
    """Optimizer steps; None if no step is recorded."""
    folder: Path
    """A checkpoint, or the Hugging Face folder of a run's final model."""

    @property
    def is_checkpoint(self) -> bool:
        return (self.folder / MANIFEST).is_file()


def run_of(name: str) -> Path | None:
    """The folder of the training run that a name of weights belongs to; None for the name of a model."""
    folder, _ = _split(name)
    if (folder / MANIFEST).is_file():
        return folder.absolute().parent.parent
    is_run = any((folder / part).exists() for part in (CONFIG, "checkpoints", "model"))
    return folder if is_run and not (folder / "config.json").is_file() else None


def run_weights(name: str) -> RunWeights:
    """Find the weights of a training run, which may be running, complete, stopped or killed.

    A name without an @ means the last weights: the final model, or else the newest checkpoint. `best_step` says which
    are the best.

    Args:
        name: the folder of a run, also with "@best", "@last" or "@STEP", or of a checkpoint.
    """
    folder, choice = _split(name)
    if (folder / MANIFEST).is_file():
        return RunWeights(name=name, run=folder.absolute().parent.parent, step=step_of(folder), folder=folder)
    # Each step with weights, and their folder: the final model, or a checkpoint.
    folders, model = steps_of(folder), folder / "model"
    has_model = (model / "config.json").is_file()
    if (folder / SUMMARY).is_file() and has_model:
        steps = read_object(folder / SUMMARY).get("steps")
        folders |= {steps: model} if isinstance(steps, int) else {}
    if folders:
        step = _step(folder, choice, folders)
        return RunWeights(name=f"{folder}@{step}", run=folder, step=step, folder=folders[step])
    if not has_model:
        neither = "neither a model/ folder, which a training run writes when it ends, nor a checkpoint"
        raise UserError(f"{folder} holds {neither}: name another run")
    if choice != LAST:
        raise UserError(f"{name}: {folder} holds one model, and no record of its step: leave @{choice} out")
    return RunWeights(name=name, run=folder, step=None, folder=model)


def success_by_step(run: Path) -> dict[int, float]:
    return {int(record["step"]): record["success"] for record in metrics_of(run, "evaluation") if "success" in record}


def best_step(success: Mapping[int, float], steps: Iterable[int]) -> int | None:
    """The step with the best success of those that are in `steps` too, the earliest of equals; None without any."""
    there = success.keys() & set(steps)
    most = max((success[step] for step in there), default=0.0)
    return min((step for step in there if reaches(success[step], most)), default=None)


def _split(name: str) -> tuple[Path, str]:
    """The folder and what follows its @; a folder that exists with an @ in its name is one without."""
    folder = Path(name).expanduser()
    run, at, choice = name.rpartition("@")
    return (folder, LAST) if not at or folder.exists() else (Path(run).expanduser(), choice)


def _step(run: Path, choice: str, folders: Mapping[int, Path]) -> int:
    if choice == LAST:
        return max(folders)
    there = f"it has the weights of {_steps(folders)}"
    if choice == BEST:
        success = success_by_step(run)
        if (best := best_step(success, folders)) is None:
            reason = f"it has evaluated {_steps(success)}" if success else "it has no evaluation"
            raise UserError(f"there is no best step of {run}: {reason}, and {there}; name one, as {run}@{max(folders)}")
        return best
    step = int(choice) if choice.isdecimal() else -1
    if step not in folders:
        raise UserError(f"{run} has no weights @{choice}: {there}; name one of them, {BEST} or {LAST}")
    return step


def _steps(steps: Iterable[int]) -> str:
    """Steps in words: "step 40", "the steps 20, 40"."""
    texts = [str(step) for step in sorted(steps)]
    return f"the step{'s' * (len(texts) > 1)} {', '.join(texts)}"
