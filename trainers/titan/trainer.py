"""The trainer: TorchTitan's model, optimizer, scheduler and checkpointer behind a handful of methods.

    trainer = TitanTrainer("path/to/qwen3", TitanSettings(learning_rate=1e-4))
    metrics = trainer.train_step(samples, GRPOLoss())
    weights = trainer.hf_state_dict()

One process or many (launch each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set), CPU over gloo or
GPU over nccl: the same code. Every rank is given all samples and takes its share; every denominator is counted over
all ranks and micro-batches before the first backward, and gradients are summed, never averaged. So the number of
ranks, the micro-batch size and the packing change the speed and not the result.

No actor is defined here: the caller decides in which process the trainer runs. Its parts are in these files:

- model.py: the model, of one of the families in families.py.
- settings.py: how to train. schedule.py: the learning rate.
- parallel.py: the process group, the meshes, what the device can do.
- checkpoint.py: checkpoints and exports.
- head.py, lm_head.py: from hidden states to logprobs and entropy, without all the logits.
- ../batching/batch.py: from samples to micro-batches; packing.py: which of them share one, and a rank.
- ../objective/loss_call.py: which tensors a loss gets, and what it is divided by.
- ../objective/loss_metrics.py: what is measured beside it.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.model import TitanModel  # isort: skip
from torchtitan.components.optimizer import default_adamw
from torchtitan.distributed import utils as titan_dist

from forge_env.core.errors import InvariantError, UserError
from trainers.batching.batch import MicroBatch, Sample, empty_batch, pack
from trainers.batching.packing import flops_crossover
from trainers.objective.loss_call import Loss, LossCall
from trainers.objective.loss_metrics import LossMetrics
from trainers.titan.checkpoint import TrainingState, export_hf
from trainers.titan.head import check_temperature
from trainers.titan.parallel import init_process_group, parallel_dims, resolve
from trainers.titan.schedule import build_schedule
from trainers.titan.settings import TitanSettings


class TitanTrainer:
    """Trains one model from a Hugging Face folder: Qwen3, Qwen2.5 or Llama 3.

    Raises:
        UserError: a setting or the model folder is wrong.
    """

    def __init__(self, model_path: str | os.PathLike[str], settings: TitanSettings | None = None) -> None:
        self.settings = settings = settings or TitanSettings()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if settings.deterministic:
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it
        self._owns_group = init_process_group()
        try:
            self.parallel = parallel_dims(settings.dp_shard, settings.tp)
            dtype, attention = resolve(settings.dtype, settings.attention)
            torch.manual_seed(settings.seed)
            self.model = TitanModel(
                Path(model_path),
                self.parallel,
                dtype=dtype,
                attention=attention,
                compile=settings.compile,
                activation_checkpoint=settings.activation_checkpoint,
                keep_logits_gib=settings.keep_logits_gib,
            )
        except BaseException:
            self._destroy_group()
            raise
        self._state = TrainingState(self.model)
        self.device = self.model.device
        # Tensor parallelism cuts sequences evenly; compiled kernels should see few different lengths.
        tuned = self.device.type != "cpu" and (attention == "flex" or settings.compile)
        self._multiple = math.lcm(settings.tp, 128 if tuned else 1)
        self.begin()
        batch_mesh = self.parallel.get_optional_mesh("batch")
        self._data_group = batch_mesh.get_group() if batch_mesh is not None else None
        self._data_rank = batch_mesh.get_local_rank() if batch_mesh is not None else 0

    def begin(
        self,
        *,
        learning_rate: float | None = None,
        warmup_steps: int | None = None,
        lr_schedule: str | None = None,
        total_steps: int | None = None,
    ) -> None:
        """Begin a phase of training: a fresh optimizer and schedule on the present weights.

        Settings that are left out stay as they are.
        """
        given: dict[str, Any] = {
            "learning_rate": learning_rate,
            "warmup_steps": warmup_steps,
            "lr_schedule": lr_schedule,
            "total_steps": total_steps,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        self.settings = dataclasses.replace(self.settings, **changes)
        self.step = 0
        optimizer = default_adamw(**self._hyperparameters())
        optimizer.implementation = "foreach" if self.device.type == "cpu" else "fused"
        self._optimizer = optimizer.build(model_parts=[self.model.module])
        self._scheduler = build_schedule(
            self._optimizer,
            self.settings.lr_schedule,
            warmup_steps=self.settings.warmup_steps,
            total_steps=self.settings.total_steps,
        )
        self._state.begin(self._optimizer, self._scheduler)

    # -- training ------------------------------------------------------------------------------------------------

    def train_step(
        self, samples: Sequence[Sample], loss: Loss, *, temperature: float = 1.0, old_is_present: bool = False
    ) -> dict[str, float]:
        """Take one optimizer step on `samples`; every rank is given the same ones.

        Args:
            samples: whole episodes with their advantages.
            loss: a function or module whose parameters are any of `LOSS_TENSORS`; `LossCall` says what it returns.
            temperature: the sampling temperature; all logprobs and the entropy are taken of logits / temperature.
            old_is_present: give the loss, for old_logprobs, those of this very pass without their gradient: a ratio to
                them is exactly 1, which no second pass would give. Otherwise they are the samples' own, if any.

        Returns:
            loss, grad_norm, learning_rate (of this step), tokens and episodes (valid ones), tokens_left_out and
            episodes_left_out (those of them that have no advantage, where the loss gets nothing of such: they were not
            computed, and the loss is still divided by all), what `LossMetrics.values` has of the others, seconds, and
            skipped: 1.0 when nothing was changed, because there was no valid token or the loss or the gradient was not
            finite. A step that leaves all of them out is one with a gradient of 0.

        Raises:
            UserError: the loss asks for what there is not, or returns something other than a scalar; a row is longer
                than the model allows; the temperature is not positive; the disk was full for an asynchronous save.
        """
        self._state.check()
        start = time.perf_counter()
        call = LossCall(loss)
        check_temperature(temperature)
        self._check_rows(samples)
        idle = [sample for sample in samples if call.skips_idle and not sample.has_advantage]
        batches = self._micro_batches([s for s in samples if s.has_advantage] if idle else samples)
        computed, episodes, rounds = self._count(batches)
        # Every rank has all samples, so this needs no collective.
        left_out = [sum(units) for units in zip(*(sample.units for sample in idle), strict=True)] or [0, 0]
        tokens, episodes = computed + left_out[0], episodes + left_out[1]
        learning_rate = self.learning_rate
        metrics = LossMetrics(loss, self.device)
        total_loss = torch.zeros((), device=self.device)
        normalizer = torch.tensor(float(call.units(tokens, episodes)), device=self.device)
        try:
            # With all left out, one round of padding still gives every parameter its gradient, which is 0.
            for batch in self._rounds(batches, max(rounds, 1) if tokens else 0):
                total_loss += self._backward(
                    batch, call, normalizer, temperature, metrics, old_is_present=old_is_present
                )
            self._sum_over_ranks(total_loss)
            self._sum_over_ranks(metrics.sums)
            self._max_over_ranks(metrics.largest)
            norm = self._clip_gradients() if tokens else total_loss.new_zeros(())
            total, grad_norm = torch.stack([total_loss, norm]).tolist()  # here, and only here, a GPU is waited for
            healthy = tokens > 0 and math.isfinite(total) and math.isfinite(grad_norm)
            if healthy:
                self._optimizer.step()
                self._scheduler.step()
                self.step += 1
        finally:
            self._optimizer.zero_grad()  # a loss that raised half-way must not leak into the next step
        return {
            "loss": total,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens": float(tokens),
            "episodes": float(episodes),
            "tokens_left_out": float(left_out[0]),
            "episodes_left_out": float(left_out[1]),
            **metrics.values(computed),
            "skipped": float(not healthy),
            "seconds": time.perf_counter() - start,
        }

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[list[float]]:
        """This model's logprobs of the sampled targets: one list per sample, in row order, the same on every rank."""
        check_temperature(temperature)
        by_sample: dict[int, list[float]] = {}
        self._check_rows(samples)
        batches = self._micro_batches(samples)
        for batch in self._rounds(batches, self._count(batches)[2]):
            values, _ = self._logprobs(batch, temperature)
            by_sample.update(zip(batch.samples, batch.split(values), strict=False))
        if self._data_group is not None:
            parts: list[dict[int, list[float]]] = [{} for _ in range(dist.get_world_size(self._data_group))]
            dist.all_gather_object(parts, by_sample, group=self._data_group)
            by_sample = {index: values for part in parts for index, values in part.items()}
        return [by_sample.get(index, []) for index in range(len(samples))]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.optimizers[0].param_groups[0]["lr"])

    def _backward(
        self,
        batch: MicroBatch,
        call: LossCall,
        normalizer: Tensor,
        temperature: float,
        metrics: LossMetrics,
        *,
        old_is_present: bool,
    ) -> Tensor:
        """Add one micro-batch's gradients, and what it measures to `metrics`; returns its part of the loss."""
        # The entropy is for the metrics in any case: only a loss that uses it pays for its gradient.
        of_targets, entropies = self._logprobs(batch, temperature, with_entropy=True)  # (N,)
        logprobs = batch.scatter(of_targets)  # (E, T)
        entropy = None if entropies is None else batch.scatter(entropies)
        if old_is_present:
            batch = dataclasses.replace(batch, old_logprobs=logprobs.detach())
        logprobs.retain_grad()
        if units := call.units(*batch.units):
            value = call(batch, logprobs, entropy, units=units, normalizer=normalizer)
        else:  # nothing to learn here, but the other ranks wait for this one's part of the collectives
            value = logprobs.nan_to_num().sum() * 0
        value.backward()
        metrics.add(batch, logprobs.detach(), None if entropy is None else entropy.detach(), logprobs.grad)
        return value.detach().float()

    def _logprobs(
        self, batch: MicroBatch, temperature: float, *, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        inputs = batch.tokens, batch.positions, batch.selected, batch.targets
        return self.model.logprobs(*inputs, temperature, with_entropy=with_entropy)

    def _check_rows(self, samples: Sequence[Sample]) -> None:
        """Check that the model can read every row."""
        rows = [row.token_ids for sample in samples for row in sample.rows]
        longest = max(map(len, rows), default=0)
        if longest > self.model.max_length:
            raise UserError(
                f"a row has {longest} tokens, more than the model's max_position_embeddings={self.model.max_length}."
            )
        highest, vocabulary = max(map(max, filter(None, rows)), default=0), self.model.config.vocab_size
        if highest >= vocabulary:
            raise InvariantError(f"a row holds token {highest}, but the model's vocabulary has {vocabulary} entries")

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """This rank's share of the samples, on the CPU, with `samples` numbered as the caller did."""
        return pack(
            samples,
            max_tokens=self.settings.max_tokens_per_micro_batch,
            pack_length=self.settings.pack_length,
            pad_id=0,
            multiple=self._multiple,
            rank=self._data_rank,
            ranks=self.parallel.dp_shard,
            crossover=flops_crossover(self.model.hf_config),
        )

    def _count(self, batches: Sequence[MicroBatch]) -> tuple[int, int, int]:
        """Valid tokens and episodes over all ranks, and the most micro-batches that any rank has."""
        units = [batch.units for batch in batches]
        sums = torch.tensor([sum(t for t, _ in units), sum(e for _, e in units)])
        if self._data_group is None:
            tokens, episodes = sums.tolist()
            return tokens, episodes, len(batches)
        rounds = self._max_over_ranks(torch.tensor(len(batches), device=self.device))
        tokens, episodes = self._sum_over_ranks(sums.to(self.device)).tolist()
        return tokens, episodes, int(rounds)

    def _rounds(self, batches: Sequence[MicroBatch], rounds: int) -> list[MicroBatch]:
        """`rounds` batches on the device.

        Empty ones come last: every rank has to run the model equally often, or collectives never meet. All go there
        before the first pass: a later copy would wait for the passes that are queued by then.
        """
        padding = [empty_batch(self._multiple)] * (rounds - len(batches))
        return [batch.to(self.device) for batch in (*batches[:rounds], *padding)]

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        if self._data_group is not None:
            dist.all_reduce(values, group=self._data_group)
        return values

    def _max_over_ranks(self, values: Tensor) -> Tensor:
        if self._data_group is not None:
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._data_group)
        return values

    def _clip_gradients(self) -> Tensor:
        parameters = list(self.model.module.parameters())
        return titan_dist.clip_grad_norm_(parameters, self.settings.max_grad_norm)

    # -- weights and checkpoints ---------------------------------------------------------------------------------

    def hf_state_dict(self) -> dict[str, Tensor]:
        """Weights under Hugging Face names, detached and contiguous; tied weights appear once. Every rank calls it.

        Where nothing had to be gathered they share memory with the live weights: copy them before the next step.
        """
        return self.model.hf_state_dict()

    def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        extra: Mapping[str, Any],
        *,
        texts: Mapping[str, Sequence[bytes]] | None = None,
        asynchronous: bool = False,
        keep_last: int = 0,
    ) -> None:
        """Save weights, optimizer, schedule and random state so that training goes on bitwise as if never stopped.

        Every rank calls it. The folder appears whole or not at all: it is written beside its place, then renamed.

        Args:
            folder: replaced when it exists.
            step: the caller's step number, kept in the manifest for people to read.
            extra: what the caller wants back from `load`; must be JSON.
            texts: further files of the folder, by name each its lines.
            asynchronous: return once the state is copied, and write while training goes on. What goes wrong is then
                raised by the next `train_step`, `save`, `load` or `close`.
            keep_last: when this one is complete, remove all but the newest so many of a run's checkpoints, see
                trainers/checkpoints.py; 0 keeps all.

        Raises:
            UserError: the disk is full or cannot be written; older checkpoints are untouched.
        """
        self._state.save(
            Path(folder),
            step=step,
            optimizer_steps=self.step,
            extra=extra,
            texts=texts,
            asynchronous=asynchronous,
            keep_last=keep_last,
        )
        self._forget_empty_moments()

    def load(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from a saved folder and return its `extra`. Every rank calls it; their number may have changed.

        Learning rate, betas, eps and weight decay are those of this trainer's settings, not the saved ones.

        Raises:
            UserError: the folder is missing, truncated, not a checkpoint of a trainer, or of another model.
        """
        manifest = self._state.load(Path(folder))
        (scheduler,) = self._scheduler
        for group, lr in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group.update(self._hyperparameters(), lr=lr)
        self.step = manifest["optimizer_steps"]
        self._forget_empty_moments()
        return dict(manifest["extra"])

    def _forget_empty_moments(self) -> None:
        """Take back what saving and loading do to a fresh optimizer.

        To have moments to write or to read into, torch takes a step without gradients, and so AdamW's bias correction
        would take the first real step for the second.
        """
        if self.step == 0:
            for optimizer in self._optimizer.optimizers:
                optimizer.state.clear()

    def export_hf(self, folder: str | os.PathLike[str]) -> None:
        """Write a Hugging Face folder: safetensors in config.json's dtype, and the tokenizer's files beside them.

        Every rank calls it. Like `save`, the folder appears whole or not at all.
        """
        export_hf(self.model, Path(folder))

    def close(self) -> None:
        """Wait for an asynchronous save; destroy the process group, if this trainer made it. May be called again.

        Raises:
            UserError: the disk is full or cannot be written, if no step has said so.
        """
        try:
            self._state.close()
        finally:
            self._destroy_group()

    def _destroy_group(self) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def _hyperparameters(self) -> dict[str, Any]:
        s = self.settings
        return {"lr": s.learning_rate, "betas": s.betas, "eps": s.eps, "weight_decay": s.weight_decay}
