"""Checkpoints to go on from. export.py writes the weights for other programs.

A checkpoint is a folder with TorchTitan's files, which any number of ranks can read, and a manifest with the size of
every file. It appears complete or not at all. Every rank writes and reads its own shards. A checkpoint with moments of
8 bits is read with the same degree of tensor parallelism: torchao cuts them by rows.

An asynchronous save returns as soon as the state is copied, and a thread writes the copy. There is one at a time: the
next save, `load` and `close` wait for it.
"""

from __future__ import annotations

import gc
import io
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.model import TitanModel  # isort: skip
from torchtitan.components.checkpoint import MODEL, CheckpointManager, ModelWrapper
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer

from agents.model_weights import is_finite
from forge_env.core.errors import ServiceError, UserError
from forge_env.utils.folders import full_disk
from trainers import checkpoints
from trainers.families.table import family_of
from trainers.titan.lora import is_adapter
from trainers.titan.shards import shard_of
from trainers.titan.whole_folder import barrier, begin_folder, is_first, partial_of, take_place

# TorchTitan's manager names a checkpoint by its step, and of a step 0 it restores only the weights. So the step is in
# the manifest, and the manager is always given this one.
MANAGER_STEP = 1
STATE = "state"  # the folder of TorchTitan's files within a checkpoint


@dataclass(slots=True)
class TrainingState:
    """All that a step reads and changes, torch's random state included. Every rank calls its methods."""

    model: TitanModel
    optimizer_state: str
    """The precision of the optimizer's moments, see `trainers.titan.optimizer`."""
    optimizer: OptimizersContainer = field(init=False)
    scheduler: LRSchedulersContainer = field(init=False)
    _background: CheckpointManager | None = field(default=None, init=False)
    """The manager of asynchronous saves, made for the first one: it has a process group of its own."""
    _writing: Future[None] | None = field(default=None, init=False)
    """The asynchronous save, until its result is read."""

    def save(
        self,
        folder: Path,
        *,
        step: int,
        optimizer_steps: int,
        extra: Mapping[str, Any],
        texts: Mapping[str, Sequence[bytes]] | None = None,
        asynchronous: bool = False,
        keep_last: int = 0,
        spare: int | None = None,
    ) -> None:
        """Write a checkpoint that replaces `folder`; `extra` must be JSON. See `TitanTrainer.save`."""
        text = json.dumps(dict(extra))  # fail before anything is written
        self.wait()
        shape = _shape(self.model.hf_config)
        manifest = {"step": step, "optimizer_steps": optimizer_steps, "model": shape, "extra": json.loads(text)}
        manifest["optimizer_state"] = self.optimizer_state
        manifest["tensor_ranks"] = self.model.parallel.tp
        manifest["lora"] = _lora(self.model)

        def complete() -> None:
            checkpoints.write_texts(partial, texts or {})
            checkpoints.write_manifest(partial, manifest)
            take_place(partial, folder)
            if keep_last:
                checkpoints.prune(folder.parent.parent, keep_last, spare)

        with _explain(folder):
            partial = begin_folder(folder)
            manager = self._manager(partial, asynchronous=asynchronous)
            manager.save(MANAGER_STEP)
        if asynchronous:
            # The manager would keep a second copy of fused projections, split for the file, on the GPU.
            manager.states[MODEL].cached_state_dict.clear()
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            self._writing = thread.submit(_finish, manager, folder, complete)
            thread.shutdown(wait=False)
        else:
            barrier()  # the manifest lists the files of all ranks
            _finish(manager, folder, complete)
            barrier()

    def check(self) -> None:
        """Raise the error that stopped an asynchronous save since the last call, if there is one."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait for an asynchronous save."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def close(self) -> None:
        """Wait for an asynchronous save, and free what it needed. May be called again."""
        try:
            self.wait()
        finally:
            if self._background is not None:
                self._background.close()
                with suppress(ValueError):  # the process group may be destroyed already, with all its subgroups
                    dist.destroy_process_group(self._background.pg)
                self._background = None

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore everything from a checkpoint and return its manifest."""
        self.wait()
        barrier()  # the first rank renames the folder
        manifest = checkpoints.read_manifest(folder)
        if manifest["model"] != _shape(self.model.hf_config):
            raise UserError(f"{folder} was saved from a model of another shape: {manifest['model']}.")
        if manifest["lora"] != _lora(self.model):
            raise UserError(
                f"{folder} was saved with the adapters {manifest['lora']}, and they are {_lora(self.model)} now: "
                "give the lora settings that it had."
            )
        former = manifest["optimizer_state"]
        if former != self.optimizer_state and "8bit" in (former, self.optimizer_state):  # the others differ by rounding
            raise UserError(
                f"{folder} was saved with optimizer_state={former!r}, and it is {self.optimizer_state!r} now: "
                f"set it to {former!r}."
            )
        ranks, saved_ranks = self.model.parallel.tp, manifest["tensor_ranks"]
        if self.optimizer_state == "8bit" and ranks != saved_ranks:
            raise UserError(
                f"{folder} was saved with optimizer_state='8bit' and tp={saved_ranks}, and tp={ranks} now: moments of "
                f"8 bits cannot be cut in another way, so set tp to {saved_ranks}."
            )
        try:
            with warnings.catch_warnings():  # torch warns when the schedule recomputes its learning rate
                warnings.simplefilter("ignore", UserWarning)
                self._manager(folder).load(MANAGER_STEP)
        except (Exception, CheckpointException) as error:  # the errors of a damaged file have no common base
            raise UserError(f"{folder} is damaged: its contents cannot be restored.") from error
        _check_finite(self.model, folder)
        return manifest

    def _manager(self, folder: Path, *, asynchronous: bool = False) -> CheckpointManager:
        if asynchronous and self._background is not None:
            self._background.folder = str(folder / STATE)
            return self._background
        config = CheckpointManager.Config(
            enable=True,
            folder=STATE,
            interval=1,
            keep_latest_k=0,
            initial_load_model_only=False,
            exclude_from_loading=["dataloader"],
            async_mode="async" if asynchronous else "disabled",
        )
        manager = CheckpointManager(
            config,
            dataloader=None,
            model_parts=[self.model.module],
            optimizers=self.optimizer,
            lr_schedulers=self.scheduler,
            states={"rng": _RandomState()},
            sd_adapter=None,
            base_folder=str(folder),
        )
        if self.model.adapters is not None:
            manager.states[MODEL] = _OnlyAdapters(self.model.module)
        if asynchronous:
            self._background = manager
        return manager


def load_weights(model: TitanModel, folder: Path) -> None:
    """Restore the weights of a checkpoint, or its adapters, and nothing else."""
    wrapper = ModelWrapper if model.adapters is None else _OnlyAdapters
    state = wrapper(model.module)
    values = state.state_dict()
    try:
        dcp.load(values, checkpoint_id=str(folder / STATE / f"step-{MANAGER_STEP}"))
    except (Exception, CheckpointException) as error:
        raise UserError(f"{folder} is damaged: its weights cannot be restored") from error
    state.load_state_dict(values)
    _check_finite(model, folder)


def _check_finite(model: TitanModel, folder: Path) -> None:
    for name, parameter in model.module.named_parameters():
        if not is_finite(shard_of(name, parameter.detach())[0]):
            raise UserError(f"{folder} cannot be used: its weight {name} has values that are not finite")


class _OnlyAdapters(ModelWrapper):
    """The trained weights of a model with adapters. The frozen weights are in the folder that it was made from."""

    def _get_state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super()._get_state_dict().items() if is_adapter(name)}


class _RandomState:
    """torch's generators, in the form that checkpoints want."""

    def state_dict(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that must be equal if one model's checkpoint is to fit another."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape = family_of(config).shape(config)
    sizes = [size for size in (shape.num_experts, shape.moe_intermediate_size, shape.shared_size) if size]
    return {name: config.get(name) for name in (*names, "num_key_value_heads", "head_dim", "tie_word_embeddings")} | (
        {"experts": sizes} if sizes else {}
    )


def _lora(model: TitanModel) -> dict[str, Any] | None:
    """The sizes of a model's adapters, as JSON; None without adapters."""
    if model.adapters is None:
        return None
    lora = model.adapters.lora
    return {"rank": lora.rank, "alpha": lora.alpha, "targets": list(lora.targets)}


def _finish(manager: CheckpointManager, folder: Path, complete: Callable[[], None]) -> None:
    """Wait for the files of all ranks, and let the first rank complete the checkpoint."""
    with _explain(folder):
        # The save ends with a gather over all ranks, so the first one needs no barrier here. A barrier in this thread
        # would mix with the collectives of training.
        try:
            manager.maybe_wait_for_saving()
        finally:
            manager.save_future = None  # otherwise every later save would raise this failure again
        if is_first():
            complete()


@contextmanager
def _explain(folder: Path) -> Iterator[None]:
    """Say in one sentence why a checkpoint cannot be written, and free the space of its files."""
    try:
        yield
    except (Exception, CheckpointException) as error:
        cause = _cause(error)
        _end_writers()
        full = full_disk(cause, folder)
        if is_first():
            shutil.rmtree(partial_of(folder), ignore_errors=True)
        if full or isinstance(cause, OSError):
            why = full or getattr(cause, "strerror", "") or cause
            steps = checkpoints.steps_of(folder.parent.parent)
            remedy = f"go on from step {max(steps)} with --resume" if steps else "start again: there is none before it"
            raise UserError(f"the checkpoint {folder} cannot be written: {why}; mend that, and {remedy}") from error
        raise ServiceError(f"the checkpoint {folder} was not written: {type(cause).__name__}: {cause}") from error


def _end_writers() -> None:
    """End the writers that torch leaves in the frames of a failed save.

    Otherwise Python 3.13 prints an error, at any later time, for each writer that is collected.
    """
    for item in gc.get_objects():
        if type(item).__name__ == "NoCloseWriter" and item.raw.closed:
            item.raw = io.BytesIO()


def _cause(error: BaseException) -> BaseException:
    """The error of the first rank that failed; the OSError, if it began with one."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    causes = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(before)
    return next((cause for cause in causes if isinstance(cause, OSError)), error)
