"""The trainer: TorchTitan's model, optimizer, scheduler and checkpointer behind a handful of methods.

    trainer = TitanTrainer("path/to/qwen3", TitanSettings(learning_rate=1e-4))
    metrics = trainer.train_step(samples, GRPOLoss())
    weights = trainer.hf_state_dict()

One process or many (launch each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set), CPU over gloo or
GPU over nccl: the same code. Every rank is given all samples and takes its share; every denominator is counted over
all ranks and micro-batches before the first backward, and gradients are summed, never averaged. So the number of
ranks, the micro-batch size and the packing change the speed and not the result.

There are no actors in here: whoever drives the trainer decides where it lives.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan_model import SPMD_BACKEND, Qwen3, device, titan_utils  # isort: skip
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, default_adamw
from torchtitan.config import CommConfig, ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_dist

from forge_env.errors import InvariantError, UserError, nearest
from trainers.batch import MicroBatch, Sample, empty_batch, pack, partition

Loss = Callable[..., Tensor]

LOSS_TENSORS = (
    "logprobs",
    "generator_logprobs",
    "ref_logprobs",
    "advantages",
    "padding_mask",
    "entropy",
    "normalizer",
)
MANIFEST = "forge_env.json"
CHECKPOINT_VERSION = 1
# TorchTitan's manager files a checkpoint under its step and restores only the weights of a step 0. The step is kept in
# the manifest, and the manager is always told this one.
MANAGER_STEP = 1
# Copied from the model's folder into an export, so that transformers and vLLM can load it.
EXPORT_PATTERNS = ("config.json", "generation_config.json", "*token*", "vocab.*", "merges.txt", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanSettings:
    """How to train, e.g. `TitanSettings(learning_rate=3e-4, threads=2)`."""

    learning_rate: float = 1e-6
    """Learning rate of AdamW after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on every parameter."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global 2-norm."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly; constant afterwards."""
    seed: int = 0
    """Seed of torch's generator."""
    dtype: str = ""
    """"float32", or "bfloat16" for bfloat16 compute over float32 weights; "" is float32 on CPU, bfloat16 on GPU."""
    max_tokens_per_micro_batch: int = 16384
    """Model tokens of one forward pass, padding included."""
    pack_length: int = 0
    """Pack rows into sequences of this many tokens; 0 pads each row instead."""
    dp_shard: int = -1
    """Ranks to shard data and weights over (FSDP); -1 is all that tensor parallelism leaves."""
    tp: int = 1
    """Ranks to cut each matrix over."""
    threads: int = 0
    """CPU threads of torch; 0 leaves them as they are."""
    compile: bool = False
    """Compile each transformer block; costs minutes at the start, pays on a GPU."""
    attention: str = ""
    """"sdpa", "flex" or "varlen"; "" is sdpa on CPU, varlen on GPU (flex in float32, which varlen cannot)."""


class TitanTrainer:
    """Trains one Qwen3 model from a Hugging Face folder.

    Raises:
        UserError: a setting or the model folder is wrong.
    """

    def __init__(self, model_path: str | os.PathLike[str], settings: TitanSettings | None = None) -> None:
        self.model_path = Path(model_path)
        self.settings = settings = settings or TitanSettings()
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._owns_group = _init_process_group()
        try:
            self.parallel = _parallel_dims(settings)
            dtype, attention = _resolve(settings)
            torch.manual_seed(settings.seed)
            self.model = Qwen3(
                self.model_path, self.parallel, dtype=dtype, attention=attention, compile=settings.compile
            )
        except BaseException:
            self.close()
            raise
        self.device = self.model.device
        # Tensor parallelism cuts sequences evenly; compiled kernels should see few different lengths.
        tuned = self.device.type != "cpu" and (attention == "flex" or settings.compile)
        self._multiple = math.lcm(settings.tp, 128 if tuned else 1)
        self.begin()
        batch_mesh = self.parallel.get_optional_mesh("batch")
        self._data_group = batch_mesh.get_group() if batch_mesh is not None else None
        self._data_rank = batch_mesh.get_local_rank() if batch_mesh is not None else 0

    def begin(self, *, learning_rate: float | None = None, warmup_steps: int | None = None) -> None:
        """Begin a phase of training: a fresh optimizer and schedule on the present weights.

        Settings that are left out stay as they are.
        """
        given = {"learning_rate": learning_rate, "warmup_steps": warmup_steps}
        changes = {name: value for name, value in given.items() if value is not None}
        self.settings = dataclasses.replace(self.settings, **changes)
        self.step = 0
        self._optimizer = self._build_optimizer()
        schedule = LRSchedulersContainer.Config(warmup_steps=self.settings.warmup_steps, decay_ratio=0.0)
        self._scheduler = schedule.build(optimizers=self._optimizer, training_steps=sys.maxsize)

    # -- training ------------------------------------------------------------------------------------------------

    def train_step(self, samples: Sequence[Sample], loss: Loss, *, temperature: float = 1.0) -> dict[str, float]:
        """Take one optimizer step on `samples`; every rank is given the same ones.

        Args:
            samples: whole episodes with their advantages.
            loss: a function or module whose parameters are any of `LOSS_TENSORS`. One that names `normalizer` returns
                a sum over it; any other returns a local mean, which is weighted by the micro-batch's share of the
                valid tokens (of the episodes, if its `normalizer_unit` is "episodes").
            temperature: the sampling temperature; all logprobs and the entropy are taken of logits / temperature.

        Returns:
            loss, grad_norm, learning_rate (of this step), tokens and episodes (valid ones), ratio_mean, kl (k3 of the
            generator to this model), mean_abs_logprob_difference, seconds, and skipped: 1.0 when nothing was changed,
            because there was no valid token or the loss or the gradient was not finite.

        Raises:
            UserError: the loss asks for what there is not, or returns something other than a scalar; a row is longer
                than the model allows; the temperature is not positive.
        """
        start = time.perf_counter()
        call = _LossCall(loss)
        _check_temperature(temperature)
        batches = self._micro_batches(samples)
        tokens, episodes, rounds = self._count(batches)
        learning_rate = self.learning_rate
        sums = torch.zeros(4, device=self.device)  # loss, ratio, k3, |difference|
        normalizer = torch.tensor(float(episodes if call.per_episode else tokens), device=self.device)
        try:
            for batch in _same_rounds(batches, rounds if tokens else 0, self._multiple):
                sums += self._backward(batch, call, normalizer, temperature)
            total, ratio, kl, difference = self._sum_over_ranks(sums).tolist()
            grad_norm = self._clip_gradients() if tokens else 0.0
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
            "ratio_mean": ratio / max(tokens, 1),
            "kl": kl / max(tokens, 1),
            "mean_abs_logprob_difference": difference / max(tokens, 1),
            "skipped": float(not healthy),
            "seconds": time.perf_counter() - start,
        }

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[list[float]]:
        """This model's logprobs of the sampled targets: one list per sample, in row order, the same on every rank."""
        _check_temperature(temperature)
        found: dict[int, list[float]] = {}
        batches = self._micro_batches(samples)
        for batch in _same_rounds(batches, self._count(batches)[2], self._multiple):
            batch = batch.to(self.device)
            values = token_logprobs(self._logits(batch), batch.targets, temperature)
            found.update(zip(batch.samples, batch.split(values), strict=False))
        if self._data_group is not None:
            parts: list[dict[int, list[float]]] = [{} for _ in range(dist.get_world_size(self._data_group))]
            dist.all_gather_object(parts, found, group=self._data_group)
            found = {index: values for part in parts for index, values in part.items()}
        return [found.get(index, []) for index in range(len(samples))]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return float(self._optimizer.optimizers[0].param_groups[0]["lr"])

    def _backward(self, batch: MicroBatch, call: _LossCall, normalizer: Tensor, temperature: float) -> Tensor:
        """Add one micro-batch's gradients; returns its loss and the sums of ratio, k3 and |difference|: (4,)."""
        units = batch.units[1 if call.per_episode else 0]
        batch = batch.to(self.device)
        logits = self._logits(batch)  # (N, vocabulary)
        logprobs = batch.scatter(token_logprobs(logits, batch.targets, temperature))  # (E, T)
        tensors: dict[str, Tensor | None] = {
            "logprobs": logprobs,
            "generator_logprobs": batch.generator_logprobs,
            "ref_logprobs": batch.ref_logprobs,
            "advantages": batch.advantages,
            "padding_mask": batch.padding_mask,
            "normalizer": normalizer,
        }
        if "entropy" in call.names:
            tensors["entropy"] = batch.scatter(token_entropy(logits, temperature))
        if units:
            value = call(tensors, units)
        else:  # nothing to learn here, but the other ranks wait for this one's part of the collectives
            value = logprobs.nan_to_num().sum() * 0
        value.backward()
        return torch.stack([value.detach().float(), *_drift(logprobs.detach(), batch)])

    def _logits(self, batch: MicroBatch) -> Tensor:
        return self.model.logits(batch.tokens, batch.positions, batch.selected)

    def _micro_batches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """This rank's share of the samples, on the CPU, with `samples` numbered as the caller did."""
        rows = [row.token_ids for sample in samples for row in sample.rows]
        longest = max(map(len, rows), default=0)
        if longest > self.model.max_length:
            raise UserError(
                f"a row has {longest} tokens, more than the model's max_position_embeddings={self.model.max_length}."
            )
        highest, vocabulary = max(map(max, filter(None, rows)), default=0), self.model.config.vocab_size
        if highest >= vocabulary:
            raise InvariantError(f"a row holds token {highest}, but the model's vocabulary has {vocabulary} entries")
        share = partition(samples, self.parallel.dp_shard)[self._data_rank]
        batches = pack(
            [samples[index] for index in share],
            max_tokens=self.settings.max_tokens_per_micro_batch,
            pack_length=self.settings.pack_length,
            pad_id=0,
            multiple=self._multiple,
        )
        return [dataclasses.replace(b, samples=tuple(share[index] for index in b.samples)) for b in batches]

    def _count(self, batches: Sequence[MicroBatch]) -> tuple[int, int, int]:
        """Valid tokens and episodes over all ranks, and the most micro-batches that any rank has."""
        units = [batch.units for batch in batches]
        sums = torch.tensor([sum(t for t, _ in units), sum(e for _, e in units)], device=self.device)
        rounds = torch.tensor(len(batches), device=self.device)
        if self._data_group is not None:
            dist.all_reduce(rounds, op=dist.ReduceOp.MAX, group=self._data_group)
        tokens, episodes = self._sum_over_ranks(sums).tolist()
        return tokens, episodes, int(rounds)

    def _sum_over_ranks(self, values: Tensor) -> Tensor:
        if self._data_group is not None:
            dist.all_reduce(values, group=self._data_group)
        return values

    def _clip_gradients(self) -> float:
        parameters = list(self.model.module.parameters())
        return float(titan_dist.clip_grad_norm_(parameters, self.settings.max_grad_norm))

    # -- weights and checkpoints ---------------------------------------------------------------------------------

    def hf_state_dict(self) -> dict[str, Tensor]:
        """Weights under Hugging Face names, detached and contiguous; tied weights appear once. Every rank calls it.

        Where nothing had to be gathered they share memory with the live weights: copy them before the next step.
        """
        return self.model.hf_state_dict()

    def save(self, folder: str | os.PathLike[str], step: int, extra: Mapping[str, Any]) -> None:
        """Save weights, optimizer, schedule and random state so that training goes on bitwise as if never stopped.

        Every rank calls it. The folder appears whole or not at all: it is written beside its place, then renamed.

        Args:
            folder: replaced when it exists.
            step: the caller's step number, kept in the manifest for people to read.
            extra: what the caller wants back from `load`; must be JSON.
        """
        folder = Path(folder)
        text = json.dumps(dict(extra))  # fail before anything is written
        partial = self._new_partial(folder)
        self._manager(partial).save(MANAGER_STEP)
        self._barrier()
        if self._is_first:
            manifest = {
                "version": CHECKPOINT_VERSION,
                "step": step,
                "optimizer_steps": self.step,
                "model": _shape(self.model.hf_config),
                "files": {str(path.relative_to(partial)): path.stat().st_size for path in _files(partial)},
                "extra": json.loads(text),
            }
            _write(partial / MANIFEST, json.dumps(manifest))
            _replace(partial, folder)
        self._barrier()

    def load(self, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Go on from a saved folder and return its `extra`. Every rank calls it; their number may have changed.

        Learning rate, betas, eps and weight decay are those of this trainer's settings, not the saved ones.

        Raises:
            UserError: the folder is missing, truncated, not a checkpoint of a trainer, or of another model.
        """
        folder = Path(folder)
        manifest = _read_manifest(folder)
        if manifest["model"] != _shape(self.model.hf_config):
            raise UserError(f"{folder} was saved from a model of another shape: {manifest['model']}.")
        try:
            with warnings.catch_warnings():  # the schedule recomputes its rate in a way that torch warns about
                warnings.simplefilter("ignore", UserWarning)
                self._manager(folder).load(MANAGER_STEP)
        except (Exception, CheckpointException) as error:  # there is no common base for what a damaged file raises
            raise UserError(f"{folder} is damaged: its contents cannot be restored.") from error
        (scheduler,) = self._scheduler
        for group, lr in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group.update(self._hyperparameters(), lr=lr)
        self.step = manifest["optimizer_steps"]
        return dict(manifest["extra"])

    def export_hf(self, folder: str | os.PathLike[str]) -> None:
        """Write a Hugging Face folder: safetensors in config.json's dtype, and the tokenizer's files beside them.

        Every rank calls it. Like `save`, the folder appears whole or not at all.
        """
        folder = Path(folder)
        weights = self.hf_state_dict()
        partial = self._new_partial(folder)
        if self._is_first:
            name = str(self.model.hf_config.get("dtype") or self.model.hf_config.get("torch_dtype") or "float32")
            dtype = getattr(torch, name.removeprefix("torch."))
            weights = {key: value.to(device="cpu", dtype=dtype) for key, value in weights.items()}
            save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
            for source in {path for pattern in EXPORT_PATTERNS for path in self.model_path.glob(pattern)}:
                if source.is_file():
                    shutil.copy(source, partial / source.name)
            _replace(partial, folder)
        self._barrier()

    def close(self) -> None:
        """Destroy the process group, if this trainer made it. May be called again."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    def _hyperparameters(self) -> dict[str, Any]:
        s = self.settings
        return {"lr": s.learning_rate, "betas": s.betas, "eps": s.eps, "weight_decay": s.weight_decay}

    def _build_optimizer(self) -> OptimizersContainer:
        config = default_adamw(**self._hyperparameters())
        config.implementation = "foreach" if self.device.type == "cpu" else "fused"
        return config.build(model_parts=[self.model.module])

    def _manager(self, folder: Path) -> CheckpointManager:
        config = CheckpointManager.Config(
            enable=True,
            folder="state",
            interval=1,
            keep_latest_k=0,
            initial_load_model_only=False,
            exclude_from_loading=["dataloader"],
        )
        return CheckpointManager(
            config,
            dataloader=None,
            model_parts=[self.model.module],
            optimizers=self._optimizer,
            lr_schedulers=self._scheduler,
            states={"rng": _RandomState()},
            sd_adapter=None,
            base_folder=str(folder),
        )

    @property
    def _is_first(self) -> bool:
        return dist.get_rank() == 0

    def _barrier(self) -> None:
        if self.parallel.world_size > 1:
            dist.barrier()

    def _new_partial(self, folder: Path) -> Path:
        """Make an empty folder beside `folder`, the same one on every rank."""
        partial = folder.with_name(f".{folder.name}.partial")
        if self._is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._barrier()
        return partial


class _LossCall:
    """A loss together with what its signature asks for."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.per_episode = getattr(loss, "normalizer_unit", "tokens") == "episodes"
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
        self.names = {p.name for p in parameters if p.name in LOSS_TENSORS}
        variadic = {p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        self.required = {p.name for p in parameters if p.default is p.empty} - variadic
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            self.names |= set(LOSS_TENSORS) - {"entropy"}  # entropy costs, so it has to be asked for by name
        for name in sorted(self.required - set(LOSS_TENSORS)):
            raise UserError(f"the loss asks for {name!r}, which no trainer has. {nearest(name, LOSS_TENSORS)}")

    def __call__(self, tensors: Mapping[str, Tensor | None], units: int) -> Tensor:
        """The micro-batch's part of the global loss, given that `units` of the normalizer are its own."""
        for name in sorted(self.required):
            if tensors[name] is None:
                raise UserError(f"the loss asks for {name!r}, which the samples do not have: give a reference model.")
        value = self.loss(**{name: tensors[name] for name in self.names})
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise UserError("the loss must return one number as a tensor that depends on logprobs or entropy.")
        normalizer = tensors["normalizer"]
        assert normalizer is not None
        return value.squeeze() if "normalizer" in self.names else value.squeeze() * (units / normalizer)


class _TokenLogprobs(torch.autograd.Function):
    """Log-softmax of the target only, in float32 and in slices: never a float32 copy of all logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
        logprobs = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        lse = torch.empty_like(logprobs)
        for rows in _slices(logits):
            scaled = logits[rows].float() / temperature
            lse[rows] = scaled.logsumexp(-1)
            logprobs[rows] = scaled.gather(-1, targets[rows, None])[:, 0] - lse[rows]
        ctx.save_for_backward(logits, targets, lse)
        ctx.temperature = temperature
        return logprobs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, lse = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for rows in _slices(logits):
            scaled = logits[rows].float() / ctx.temperature
            weight = upstream[rows, None] / ctx.temperature
            part = (scaled - lse[rows, None]).exp_() * -weight
            gradient[rows] = part.scatter_add_(-1, targets[rows, None], weight)
        return gradient, None, None


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Logprob of each target under softmax(logits / temperature).

    Args:
        logits: (N, vocabulary), any float dtype.
        targets: (N,) int64.
        temperature: above 0.

    Returns:
        (N,) float32, with gradient.
    """
    return _TokenLogprobs.apply(logits, targets, temperature)


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of softmax(logits / temperature), with gradient: (N, vocabulary) to (N,) float32."""
    scaled = logits.float() / temperature
    return scaled.logsumexp(-1) - (scaled.softmax(-1) * scaled).sum(-1)


def _slices(logits: Tensor, most: int = 1 << 26) -> Iterator[slice]:
    """Cut the rows so that a slice has at most `most` numbers: 256 MiB in float32."""
    rows = max(1, most // logits.shape[-1])
    return (slice(start, start + rows) for start in range(0, len(logits), rows))


def _drift(logprobs: Tensor, batch: MicroBatch) -> Tensor:
    """Sums over the valid tokens of ratio, k3 of KL(generator || model) and |difference|: (3,)."""
    difference = torch.where(batch.padding_mask, logprobs - batch.generator_logprobs, 0.0)
    ratio = torch.where(batch.padding_mask, difference.exp(), 0.0)
    k3 = torch.where(batch.padding_mask, ratio - 1 - difference, 0.0)
    return torch.stack([ratio.sum(), k3.sum(), difference.abs().sum()])


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise UserError(f"temperature={temperature} must be above 0: greedy answers have no usable logprobs.")


def _same_rounds(batches: Sequence[MicroBatch], rounds: int, length: int) -> Iterator[MicroBatch]:
    """`rounds` batches, empty ones last: every rank has to run the model equally often, or collectives never meet."""
    yield from batches[:rounds]
    for _ in range(rounds - len(batches)):
        yield empty_batch(length)


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


def _init_process_group() -> bool:
    """Bring up the process group unless there is one; returns whether it was made here."""
    if dist.is_initialized():
        return False
    if titan_utils.device_type != "cpu":
        titan_utils.device_module.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # No flight recorder: it leaves a folder in the working directory.
        titan_dist.init_distributed(CommConfig(trace_buf_size=0), enable_cpu_backend=titan_utils.device_type != "cpu")
    else:  # alone: no port to choose, nobody to wait for
        backend = "gloo" if titan_utils.device_type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return True


def _parallel_dims(settings: TitanSettings) -> ParallelDims:
    world = dist.get_world_size()
    data = world // settings.tp if settings.dp_shard == -1 else settings.dp_shard
    if data * settings.tp != world:
        raise UserError(f"dp_shard={settings.dp_shard} times tp={settings.tp} must be the number of ranks, {world}.")
    titan_dist.set_spmd_backend(SPMD_BACKEND)
    return ParallelDims.from_config(
        ParallelismConfig(
            data_parallel_shard_degree=data, tensor_parallel_degree=settings.tp, spmd_backend=SPMD_BACKEND
        ),
        world,
    )


def _resolve(settings: TitanSettings) -> tuple[str, str]:
    """The dtype and attention to use, with this device's defaults filled in."""
    on_cpu = device().type == "cpu"
    dtype = settings.dtype or ("float32" if on_cpu else "bfloat16")
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"dtype={dtype!r} is not known: use 'float32' or 'bfloat16'.")
    attention = settings.attention or ("sdpa" if on_cpu else "varlen" if dtype == "bfloat16" else "flex")
    allowed = ("sdpa",) if on_cpu else ("sdpa", "flex", "varlen")
    if attention not in allowed:
        raise UserError(f"attention={attention!r} cannot be used on this device: use {' or '.join(allowed)}.")
    return dtype, attention


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """What two models must share for one's checkpoint to fit the other."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {name: config.get(name) for name in (*names, "num_key_value_heads", "head_dim", "tie_word_embeddings")}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest and compare it with the files that are there."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a checkpoint: there is no such folder.")
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files, version = manifest["files"], manifest["version"]
    except FileNotFoundError:
        raise UserError(f"{folder} is not a checkpoint of this trainer: it has no {MANIFEST}.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is damaged: its {MANIFEST} cannot be read.") from None
    if version != CHECKPOINT_VERSION:
        raise UserError(f"{folder} has checkpoint version {version}, this trainer reads {CHECKPOINT_VERSION}.")
    for name, size in files.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if found != size:
            raise UserError(f"{folder} is damaged: {name} has {found} bytes of {size}.")
    return manifest


def _write(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _replace(partial: Path, folder: Path) -> None:
    """Put a finished folder in its place. A folder cannot be renamed over a full one, so the old steps aside first."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
