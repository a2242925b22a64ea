"""The trainer: TorchTitan's model, optimizer, scheduler and checkpointer behind a handful of methods.

    trainer = TitanTrainer("path/to/qwen3", TitanSettings(learning_rate=1e-4))
    metrics = trainer.train_step(samples, GRPOLoss())
    trainer.export_hf("path/to/result")

One process or many (launch each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set), CPU over gloo or
GPU over nccl: the same code. Every rank is given all samples and takes its share. Every denominator is counted over
all ranks and micro-batches before the first backward pass, and gradients are summed, never averaged. So the number of
ranks, the micro-batch size and the packing change the speed and not the result.

No actor is defined here: the caller decides in which process the trainer runs. Its parts are in these files:

- model.py: the model, which builder.py and its siblings build.
- settings.py: how to train.
- parallel.py: the process group, the meshes, what the device can do.
- checkpoint.py: checkpoints. export.py: the weights for other programs.
- hf_weights.py: the weights under Hugging Face names, tensor by tensor; weight_files.py: in safetensors.
- rank_batches.py: a rank's share of a step, and sums over the ranks.
- context.py: context parallelism, where ranks share a sequence.
- lora.py: adapters, which are trained in the place of all weights; adapter_files.py: in PEFT's format.
- experts.py: layers with experts, and routing replay; replay_metrics.py: what is measured of it.
- optimizer.py: AdamW, and the learning rate. wide_head.py: an output layer in float32.
- sums.py: gradients of several micro-batches.
- head.py, lm_head.py: from hidden states to logprobs and entropy, without all the logits.
- passes.py: forward passes. backward.py: from logprobs to gradients, also of rows in several micro-batches.
- ../batching/batch.py: from samples to micro-batches; packing.py: which samples share one, and which rank has it.
- ../objective/loss_call.py: the tensors that a loss gets, and its divisor.
- ../objective/loss_metrics.py: what is measured beside the loss.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.model import TitanModel  # isort: skip
from torchtitan.distributed import utils as titan_dist

from forge_env.core.episode import Row
from forge_env.core.errors import UserError
from forge_env.core.tokens import IDS, array_of
from forge_env.core.types import NOT_SAMPLED
from forge_env.utils.settings import values_of
from trainers.batching.batch import MicroBatch, Sample
from trainers.batching.empty import batches_to_compile
from trainers.objective.distillation import distillation_loss
from trainers.objective.loss_call import Loss, LossCall
from trainers.objective.loss_metrics import LossMetrics
from trainers.titan.adapter_files import export_adapter, load_adapter
from trainers.titan.backward import SplitEpisodes, StepLoss
from trainers.titan.checkpoint import TrainingState
from trainers.titan.context import multiple_of_lengths
from trainers.titan.device import device, limit_memory, release_memory
from trainers.titan.export import export_hf, write_weights
from trainers.titan.head import check_temperature
from trainers.titan.lora import Adapters
from trainers.titan.optimizer import (
    build_adamw,
    build_schedule,
    forget_empty_moments,
    forget_moments,
    go_on,
    set_first_rate,
    set_rate,
    take_step,
)
from trainers.titan.parallel import init_process_group, parallel_dims
from trainers.titan.passes import Passes
from trainers.titan.rank_batches import RankBatches, StepWork
from trainers.titan.replay_metrics import ReplayMetrics
from trainers.titan.settings import RateSettings, TitanSettings
from trainers.titan.shards import reshard
from trainers.titan.weight_files import WeightFiles

COMPILED = 8
"""Forms of a block that a trainer may compile. Torch's limit counts those of all trainers of a process together."""


class TitanTrainer:
    """Trains one model from a Hugging Face folder, of a family of trainers/families.

    Args:
        is_frozen: give logprobs only, as a reference model does. There is no optimizer, and the weights are in the
            dtype in which the model computes; if they are sharded, they are freed after each layer. It replays no
            routes: they belong to the policy, and this is another model.
    """

    def __init__(
        self, model_path: str | os.PathLike[str], settings: TitanSettings | None = None, *, is_frozen: bool = False
    ) -> None:
        settings = settings or TitanSettings()
        if is_frozen:
            settings = dataclasses.replace(settings, reshard_after_forward="always")
        self.settings = settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        if settings.deterministic:
            torch.use_deterministic_algorithms(True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it
        self._owns_group = init_process_group()
        try:
            limit_memory(settings.gpu_memory_gib)
            context, tensor = settings.context_parallel_degree, settings.tensor_parallel_degree
            self.parallel = parallel_dims(settings)
            is_on_gpu = device().type != "cpu"
            dtype = settings.dtype_on(is_on_gpu)
            attention = settings.choose_attention(is_on_gpu=is_on_gpu)
            settings.check_state(is_on_gpu=is_on_gpu)
            settings.check_packages()
            torch.manual_seed(settings.seed)
            self.model = TitanModel(
                Path(model_path),
                self.parallel,
                settings,
                dtype=dtype,
                attention=attention,
                weights=dtype if is_frozen or settings.lora else "float32",
            )
        except BaseException:
            self._destroy_group()
            raise
        self._replays = settings.replay and not is_frozen and self.model.experts is not None
        self._state = TrainingState(self.model, settings.optimizer_state)
        self.device = self.model.device
        # Tensor and context parallelism cut sequences evenly; compiled kernels should see few different lengths.
        full_blocks = self.device.type != "cpu" and (self.model.attention == "flex" or settings.compile)
        multiple = multiple_of_lengths(context, tensor=tensor, full_blocks=full_blocks)
        self._batches = RankBatches(self.model, self.parallel, settings, multiple=multiple, replays=self._replays)
        # Without routes, a block that replays them would be compiled a second time.
        self._passes = Passes(self.model, self._batches, fills_routes=self._replays and settings.compile)
        if is_frozen:
            self.model.module.requires_grad_(False).eval()
        else:
            self._optimizer = build_adamw(self.model.module, settings.hyperparameters, state=settings.optimizer_state)
            self.begin()
        if settings.compile:
            try:
                self._compile(multiple)
            except BaseException:
                self._destroy_group()
                raise
        self.release_memory()  # of gradients that were compiled for: an engine may be starting on the same GPU

    def begin(self, rate: RateSettings | None = None) -> None:
        """Begin a phase of training: no moments and a fresh schedule on the present weights.

        It waits for an asynchronous save. `rate` is that of the phase; None is the rate of the trainer's settings.
        """
        if rate is not None:
            self.settings = dataclasses.replace(self.settings, **values_of(rate, RateSettings))
        self.step = 0
        self._state.close()
        forget_moments(self._optimizer)
        self._begin_schedule()

    def end_at(self, steps: int, rate: RateSettings) -> None:
        """Change the total number of steps, and the learning rate with it, as if both had been so from the start."""
        self.settings = dataclasses.replace(self.settings, total_steps=steps, **values_of(rate, RateSettings))
        self._state.close()  # an asynchronous save has the schedule of before
        self._begin_schedule()
        with warnings.catch_warnings():  # torch warns when the schedule recomputes its learning rate
            warnings.simplefilter("ignore", UserWarning)
            self._scheduler.load_state_dict({"last_epoch": self.step})
        set_rate(self._scheduler, self.settings)

    def _begin_schedule(self) -> None:
        set_first_rate(self._optimizer, self.settings.hyperparameters)
        self._scheduler = build_schedule(
            self._optimizer,
            self.settings.lr_schedule,
            warmup_steps=self.settings.warmup_steps,
            total_steps=self.settings.total_steps,
        )
        self._state.optimizer, self._state.scheduler = self._optimizer, self._scheduler

    # -- training ------------------------------------------------------------------------------------------------

    def train_step(
        self,
        samples: Sequence[Sample],
        loss: Loss,
        *,
        temperature: float = 1.0,
        old_is_present: bool = False,
        compare_replay: bool = False,
        distill_coef: float = 0.0,
    ) -> dict[str, float]:
        """Take one optimizer step on `samples`; every rank is given the same ones.

        Args:
            loss: a function or module with parameters of `LOSS_TENSORS`; see `LossCall` for what it returns.
            temperature: the sampling temperature; all logprobs and the entropy are taken of logits / temperature.
            old_is_present: give the loss the logprobs of this very pass, without gradient, as old_logprobs. The ratio
                is then exactly 1; a second pass would round differently. Otherwise old_logprobs are the samples' own,
                if any.
            compare_replay: if rows have routes, also measure the step without them: one more forward pass.
            distill_coef: weight of the mean reverse KL over the samples' teacher_ids, see `distillation_loss`.

        Returns:
            loss, grad_norm, learning_rate of this step, seconds;
            tokens and episodes: the valid ones;
            tokens_left_out and episodes_left_out: the number of them that were not computed, because they have no
            advantage and the loss needs none of them. The loss is still divided by all;
            the metrics of `LossMetrics.values` and, if rows have routes, of `ReplayMetrics.values`, over the computed
            ones;
            teacher_kl, if the samples have teacher_ids: the mean of that KL, in nats a token;
            skipped: 1.0 if nothing was changed, because there was no valid token, or the loss or the gradient was not
                finite. If all episodes are left out, the step is taken with a gradient of 0.
        """
        self._state.check()
        start, learning_rate = time.perf_counter(), self.learning_rate
        check_temperature(temperature)
        self._batches.check_rows(samples)
        call = LossCall(loss)
        work = self._batches.work(samples, skips_idle=call.skips_idle)
        metrics, replay = LossMetrics(loss, self.device), ReplayMetrics(self.model, work.counts.rows_read)
        normalizer = torch.tensor(float(call.units(work.tokens, work.episodes)), device=self.device)
        step = StepLoss(call, normalizer, metrics, old_is_present=old_is_present)
        distill_targets = sum(sample.units[0] for sample in samples if sample.teacher_ids is not None)
        distill_weight = distill_coef / max(distill_targets, 1)
        # If all are left out, one round of padding still gives every parameter its gradient, which is 0.
        batches = self._batches.rounds(work.batches, max(work.counts.rounds, 1) if work.tokens else 0)
        try:
            if compare_replay and replay.is_on:
                replay.compare(batches, partial(self._passes.of_batch, temperature=temperature))
            distillation = self._add_gradients(work, batches, step, replay, temperature, distill_weight)
            for part in (step.total, distillation, metrics.sums):
                self._batches.sum_over_ranks(part)
            replay.sum_over_ranks(self._batches.sum_over_ranks)
            self._batches.max_over_ranks(metrics.largest)
            total, grad_norm, is_taken = self._update_weights(step.total, has_tokens=work.tokens > 0)
        except BaseException:
            self.model.abandon_pass()
            raise
        finally:
            self._optimizer.zero_grad()  # a loss that raised half-way must not leak into the next step
        return {
            "loss": total,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens": float(work.tokens),
            "episodes": float(work.episodes),
            "tokens_left_out": float(work.tokens - work.counts.tokens),
            "episodes_left_out": float(work.episodes - work.counts.episodes),
            **metrics.values(work.counts.tokens),
            **replay.values(work.counts.tokens),
            **({"teacher_kl": float(distillation) / distill_coef} if distill_coef else {}),
            "skipped": float(not is_taken),
            "seconds": time.perf_counter() - start,
        }

    def _add_gradients(
        self,
        work: StepWork,
        batches: Sequence[MicroBatch],
        step: StepLoss,
        replay: ReplayMetrics,
        temperature: float,
        distill_weight: float,
    ) -> Tensor:
        """Run the model on every micro-batch, forwards and backwards; `batches` are those of `work` on the device.

        Returns:
            The distillation's part of this rank's loss, a scalar.
        """
        distillation = torch.zeros_like(step.total)
        split = SplitEpisodes(work.samples, work.batches, step)
        if work.tokens and work.counts.rounds_of_parts:
            parts = self._batches.pad([batch for batch in batches if batch.is_part], work.counts.rounds_of_parts)
            split.call_loss(self._passes.values(work.samples, parts, temperature, with_entropy=True))
        for number, batch in enumerate(batches, 1):
            self.model.complete_gradients(number == len(batches))
            # The entropy is for the metrics in any case: only a loss that uses it pays for its gradient.
            with_entropy = split.uses_entropy or not batch.is_part
            logprobs, entropies, teacher_logprobs = self._passes.forward(batch, temperature, with_entropy=with_entropy)
            replay.add(batch)
            divergence = distillation_loss(batch, teacher_logprobs) if distill_weight else None
            beside = None if divergence is None else distill_weight * divergence
            (split if batch.is_part else step).backward(batch, logprobs, entropies, beside=beside)
            if beside is not None:
                distillation += beside.detach()
        step.total += distillation
        return distillation

    def _update_weights(self, total_loss: Tensor, *, has_tokens: bool) -> tuple[float, float, bool]:
        """Take the optimizer step, unless there is no token, or a value that is not finite.

        Returns:
            The loss, the norm of the gradients before they are clipped, and whether the step was taken.
        """
        norm = self._clip_gradients() if has_tokens else total_loss.new_zeros(())
        total, grad_norm = torch.stack([total_loss, norm]).tolist()  # here, and only here, a GPU is waited for
        is_taken = has_tokens and math.isfinite(total) and math.isfinite(grad_norm)
        if is_taken:
            take_step(self._optimizer, self.settings.optimizer_state)
            self._scheduler.step()
            self.step += 1
        return total, grad_norm, is_taken

    def logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[np.ndarray]:
        """This model's logprobs of the sampled targets: one float32 array per sample, in row order, the same on every
        rank. Rows with routes are computed with the engine's experts, as in a training step."""
        return self._passes.logprobs(samples, temperature, with_routes=self._replays)

    def top_logprobs(
        self, samples: Sequence[Sample], temperature: float, count: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The `count` most likely tokens at each sampled target: for each sample their ids, int32, and their logprobs,
        float32, target after target; the same on every rank."""
        return self._passes.top_logprobs(samples, temperature, count)

    def reference_logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[np.ndarray]:
        """Like `logprobs`, under the model that the adapters started from: the frozen base, or the adapters that were
        kept.

        It chooses its experts itself, as a separate reference model does.
        """
        with self._adapters.reference():
            return self._passes.logprobs(samples, temperature, with_routes=False)

    def score(self, token_ids: Sequence[int], *, of_folder: bool = False) -> np.ndarray:
        """Logprobs of a row's tokens after the first, at temperature 1: float32, the same on every rank.

        The router chooses the experts. With `of_folder` a trainer with adapters gives the logprobs of the model's
        folder, which has none.
        """
        length = len(token_ids)
        row = Row(
            token_ids=array_of(token_ids, IDS),
            loss_mask=np.arange(length) > 0,
            generator_logprobs=np.zeros(length),
            versions=np.full(length, NOT_SAMPLED, dtype=IDS),
        )
        adapters = self.model.adapters
        with adapters.off() if adapters is not None and of_folder else nullcontext():
            (logprobs,) = self._passes.logprobs([Sample(rows=(row,))], 1.0, with_routes=False)
        reshard(self.model.module)  # the memory plan counts no gathered weights between two steps
        return logprobs

    @property
    def _adapters(self) -> Adapters:
        if self.model.adapters is None:
            raise UserError("the trainer has no adapters: give it TitanSettings(lora=Lora(rank=16, alpha=32.0))")
        return self.model.adapters

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.optimizers[0].param_groups[0]["lr"])

    def _compile(self, multiple: int) -> None:
        """Compile the blocks for sequences of any length, before the first step.

        Torch compiles for the first shape that it is given, and for all shapes when it is given a second one. On a GPU
        the second compilation covers small tensors only: Inductor fuses the reductions of large ones in another way.
        """
        torch._dynamo.config.recompile_limit += COMPILED
        settings = self.settings
        is_full = settings.compile_full and self.device.type != "cpu"
        full = min(settings.pack_length, settings.max_tokens_per_micro_batch) if is_full else 0
        for batch in batches_to_compile(multiple, sequences=1 if settings.pack_length else 2, full=full):
            inputs = self._batches.place(batch)
            if not self.model.module.training:
                with torch.no_grad():
                    self._passes.of_batch(inputs, 1.0)
                continue
            logprobs, entropies = self._passes.of_batch(inputs, 1.0, with_entropy=True)
            self.model.complete_gradients(True)
            (logprobs.sum() + entropies.sum()).backward()  # type: ignore[union-attr]
            self._optimizer.zero_grad()

    def _clip_gradients(self) -> Tensor:
        parameters = list(self.model.module.parameters())
        limit, is_spread = self.settings.max_grad_norm, self.parallel.ep_enabled
        norm = titan_dist.clip_grad_norm_(parameters, limit, ep_enabled=is_spread)
        return norm.to(self.device)  # if gradients are in the host's memory, so is their norm

    # -- weights and checkpoints ---------------------------------------------------------------------------------

    def release_memory(self) -> None:
        """Return the memory of the GPU that the last step leaves unused, for other processes; weights and moments
        stay."""
        release_memory()

    def save(
        self,
        folder: str | os.PathLike[str],
        step: int,
        extra: Mapping[str, Any],
        *,
        texts: Mapping[str, Sequence[bytes]] | None = None,
        asynchronous: bool = False,
        keep_last: int = 0,
        spare: int | None = None,
    ) -> None:
        """Save weights, optimizer, schedule and random state. Training then goes on bit by bit as if it had never
        stopped.

        Every rank calls it. The folder appears complete or not at all: it is written beside its place, then renamed.

        Args:
            step: the caller's step number, kept in the manifest for people to read.
            extra: data that `load` returns; must be JSON.
            asynchronous: return once the state is copied, and write while training goes on. The next `train_step`,
                `save`, `load` or `close` raises its errors. With moments of 8 bits it returns when all is written:
                torch cannot copy them.
            keep_last: when this checkpoint is complete, remove all of the run's checkpoints except this number of the
                newest, see trainers/checkpoints.py; 0 keeps all.
            spare: the step of a checkpoint that stays in any case.
        """
        self._state.save(
            Path(folder),
            step=step,
            optimizer_steps=self.step,
            extra=extra,
            texts=texts,
            asynchronous=asynchronous and self.settings.optimizer_state != "8bit",
            keep_last=keep_last,
            spare=spare,
        )
        forget_empty_moments(self._optimizer, self.step)

    def finish_saving(self) -> None:
        """Wait until an asynchronous save has written its folder. Every rank calls it."""
        self._state.wait()

    def load(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from a saved folder and return its `extra`. Every rank calls it; their number may have changed.

        Learning rate, betas, eps and weight decay come from this trainer's settings, not from the folder.
        """
        manifest = self._state.load(Path(folder))
        self.step = manifest["optimizer_steps"]
        go_on(self._optimizer, self._scheduler, self.settings, self.step)
        return dict(manifest["extra"])

    def export_hf(self, folder: str | os.PathLike[str], *, texts: Mapping[str, str] | None = None) -> None:
        """Write a Hugging Face folder: safetensors in config.json's dtype, and the tokenizer's files beside them.
        `texts` are further files by name, instead of the model's own.

        Every rank calls it. Like `save`, the folder appears complete or not at all.
        """
        export_hf(self.model, Path(folder), texts=texts)

    def export_adapter(
        self, folder: str | os.PathLike[str], *, base: str = "", texts: Mapping[str, str] | None = None
    ) -> None:
        """Write the adapters, in float32, as a PEFT folder with `base` as the name of their model. `texts` are further
        files by name.

        Every rank calls it. Like `save`, the folder appears complete or not at all.
        """
        _ = self._adapters
        export_adapter(self.model, Path(folder), base=base, texts=texts)

    def keep_reference(self, folder: str | os.PathLike[str], *, is_written: bool = False) -> None:
        """Take the adapters in a PEFT folder for `reference_logprobs`. The present adapters are written there first,
        unless it `is_written` already. Every rank calls it.
        """
        adapters = self._adapters
        if not is_written:
            export_adapter(self.model, Path(folder))
            adapters.keep_as_reference()
            return
        with adapters.keep():
            load_adapter(self.model, Path(folder))
            adapters.keep_as_reference()

    def write_weights(self, path: str | os.PathLike[str]) -> None:
        """Write the exact weights as one file of safetensors, which appears complete or not at all.

        Every rank calls it.
        """
        write_weights(self.model, Path(path))

    def read_weights(self, path: str | os.PathLike[str]) -> None:
        """Replace all weights with those of a file that `write_weights` wrote. Every rank calls it."""
        self.model.weights.load(WeightFiles(Path(path), [Path(path)]))

    def close(self) -> None:
        """Wait for an asynchronous save; destroy the process group, if this trainer made it. May be called again."""
        try:
            self._state.close()
        finally:
            self._destroy_group()

    def _destroy_group(self) -> None:
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False
