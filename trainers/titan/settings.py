"""The settings of a trainer: its options in the sections `training`, `parallelism` and `moe`, and what a plan adds.

Nothing here needs torch.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from forge_env.core.errors import UserError
from forge_env.utils.settings import BY_CASE, MAY_CHANGE, OR_BY_CASE, Or, check_choices
from trainers.families.shape import ModelShape, divisors
from trainers.lora import Lora

Schedule = Literal["constant", "linear", "cosine"]
CAST_WHOLE = 2**30
"""Parameters that one process casts at once at most: 2 GiB in bfloat16."""


@dataclass(frozen=True, kw_only=True)
class RateSettings:
    """The learning rate over the steps of a phase."""

    learning_rate: Annotated[float, Interval(ge=0, le=1), MAY_CHANGE] = 1e-6
    """Learning rate of AdamW after its warm-up."""
    lr_schedule: Annotated[Schedule, MAY_CHANGE] = "constant"
    """Learning rate after its warm-up: "linear" and "cosine" decay to 0 at the last step."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Steps over which the learning rate rises from 0."""


@dataclass(frozen=True, kw_only=True)
class TrainingRate(RateSettings):
    """The learning rate of training, with defaults by what is trained."""

    learning_rate: Annotated[float, OR_BY_CASE] = BY_CASE
    """-1: by the number of parameters, from 6e-4 for half a million to 1e-6 for 8 billion and more, and ten times that
    for adapters; in supervised training as warmup.learning_rate."""
    lr_schedule: Schedule = "linear"
    warmup_steps: Annotated[int, OR_BY_CASE] = BY_CASE
    """-1: for a model made on the spot a twentieth of the steps, for a given one half of them, and 10 at most; none in
    supervised training of a model made on the spot. AdamW's first steps move every weight by the whole learning rate,
    which can undo what a model knows."""


@dataclass(frozen=True, kw_only=True)
class ForwardSettings:
    """How a model computes logprobs: a trainer and its reference model compute in the same way."""

    dtype: Annotated[Literal["auto", "float32", "bfloat16"], MAY_CHANGE] = "auto"
    """What the trainer computes in; "auto" is float32 on CPU and bfloat16, over float32 weights, on GPU."""
    fp32_head: bool = False
    """Compute the output layer in float32 with float32 weights, if the trainer computes in bfloat16."""
    max_tokens_per_micro_batch: Annotated[int, Interval(ge=1, le=2**24), OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """Tokens of one forward pass at most, padding included, shared by the processes of context parallelism. A longer
    row has a pass of its own, and the rows of a longer episode go to several. Smaller micro-batches waste less
    padding. -1 is 4096; in policy gradients on GPUs it is 8192 to 65536 if the card has room for it beside the whole
    engine."""

    def dtype_on(self, with_gpus: bool) -> str:
        """What a process computes in, on a GPU or on a CPU: "float32" or "bfloat16"."""
        return self.dtype if self.dtype != "auto" else "bfloat16" if with_gpus else "float32"

    def head_dtype(self, dtype: str) -> str:
        """What the output layer computes in, if the model computes in `dtype`."""
        return "float32" if self.fp32_head else dtype


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(ForwardSettings):
    """What a trainer takes as its user sets it; `TitanSettings` adds what a plan decides."""

    seed: Annotated[int, Ge(0)] = 0
    weight_decay: Annotated[float, Ge(0), MAY_CHANGE] = 0.0
    max_grad_norm: Annotated[float, Gt(0), MAY_CHANGE] = 1.0
    optimizer_state: Literal["float32", "bfloat16", "8bit"] = "float32"
    """Precision of AdamW's two moments: 8, 4 or 2 bytes a parameter. "bfloat16" needs a trainer on GPU without
    cpu_offload, "8bit" the package torchao."""
    activation_checkpoint: Annotated[Literal["none", "selective", "attention", "full"], MAY_CHANGE] = "none"
    """Activations that the backward pass computes again instead of keeping them: saves memory, costs time."""
    keep_logits_gib: Annotated[float, Ge(0), MAY_CHANGE] = 10.0
    """On GPU: keep the logits of a micro-batch up to this size for the backward pass; larger ones are computed
    again."""
    cpu_offload: bool = False
    """On GPU, keep weights, gradients and optimizer state in the host's memory: 16 to 20 bytes a parameter over all
    processes with float32 state. The optimizer then runs on the CPU, with services.trainer.threads. Gradients of
    several micro-batches are summed on the GPU, 4 bytes a parameter over the processes that share the weights."""
    offload_sums: bool = False
    """With cpu_offload and no replicas, sum the gradients of several micro-batches in the host's memory, too. The GPU
    then waits for the host after every micro-batch but the first."""
    reshard_after_forward: Annotated[Literal["default", "always", "never"], MAY_CHANGE] = "default"
    """Whether FSDP frees the weights of a block after its forward pass, and gathers them again for the backward pass;
    "default" does but for the output layer, "never" is faster and holds the whole model in the compute dtype."""
    attention: Annotated[Literal["", "varlen", "flex", "sdpa"], MAY_CHANGE] = ""
    """The trainer's attention kernel. Empty is sdpa on CPU; on GPU varlen (FlashAttention), or flex in float32 and with
    context parallelism. Flex compiles for each new length: docs/gpu.md."""
    compile: Annotated[bool, MAY_CHANGE] = False
    """Compile each transformer block: takes a minute or more at the start, and makes steps faster on a GPU. It is true
    by default if the trainer is on GPUs and this machine has a C compiler."""
    deterministic: bool = False
    """A run on CPU repeats bit by bit, also if it is killed and resumed. Turns are in lockstep, which costs time. All
    groups of a step, or of a window of steps, are sampled from the weights that it begins with."""

    def casts_whole(self, shape: ModelShape, lora: Lora | None) -> bool:
        """Whether a process that shares no weights casts all that it trains for each pass, without FSDP, which casts a
        block at a time. Checkpointing computes a block again when the cast weights are gone."""
        num_trained = lora.parameters(shape) if lora else shape.parameters
        return num_trained <= CAST_WHOLE and self.activation_checkpoint == "none"

    def check(self) -> None:
        """Raise UserError if settings of the trainer contradict each other."""
        if self.offload_sums and not self.cpu_offload:
            raise UserError(
                "--training.offload_sums is true, which is for offloaded gradients: leave it out, or set "
                "--training.cpu_offload true"
            )

    def check_packages(self) -> None:
        """Raise UserError if a package that the settings need is not installed."""
        if self.optimizer_state == "8bit" and importlib.util.find_spec("torchao") is None:
            raise UserError(
                "--training.optimizer_state is 8bit and torchao is not installed: it comes with the extra of that "
                "name, or by pip install 'torchao>=0.18'"
            )


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig:
    """How the trainer's processes share the work; the degrees multiply to services.trainer.procs."""

    tensor_parallel_degree: Annotated[int, Ge(1)] = 1
    data_parallel_shard_degree: Annotated[int, Ge(1), Or(-1, "for all processes that the other degrees leave")] = -1
    """FSDP; -1 is all processes that the other degrees leave."""
    data_parallel_replicate_degree: Annotated[int, Ge(1)] = 1
    """HSDP: groups of processes that each hold all weights, sharded within the group; the gradients of the groups are
    summed. Less is exchanged between hosts, and each process holds more."""
    pipeline_parallel_degree: Annotated[int, Ge(1)] = 1
    context_parallel_degree: Annotated[int, Ge(1)] = 1
    """Processes that share every row, each with a part of its tokens; weights are sharded over them as well. Use it for
    rows with activations that do not fit on one GPU."""
    expert_parallel_degree: Annotated[int, Ge(1)] = 1
    """For a model with experts: processes that the experts of each layer are spread over. They are processes of the
    other degrees, but not of replicas: this divides their number, and the number of experts. Tokens are exchanged
    between them, and each gathers the weights of its own experts only."""

    @property
    def other_degrees(self) -> int:
        """The product of the degrees beside `data_parallel_shard_degree`."""
        return self.tensor_parallel_degree * self.context_parallel_degree * self.data_parallel_replicate_degree

    def shards(self, procs: int) -> int:
        """The ranks of FSDP among `procs` trainer processes, with -1 resolved."""
        degree = self.data_parallel_shard_degree
        return degree if degree > 0 else max(1, procs // self.other_degrees)

    def check_procs(self, procs: int) -> None:
        """Check the degrees against the number of the trainer's processes."""
        shards = -(-procs // self.other_degrees) if self.data_parallel_shard_degree == -1 else self.shards(procs)
        product = self.other_degrees * shards
        if procs != product:
            processes = "trainer process" if product == 1 else "trainer processes"
            raise UserError(
                f"parallelism needs {product} {processes}, services.trainer.procs is {procs}: --trainer.procs {product}"
            )
        ranks, degree = max(1, procs // self.data_parallel_replicate_degree), self.expert_parallel_degree
        if ranks % degree:
            raise UserError(
                f"--parallelism.expert_parallel_degree is {degree}, which does not divide the number of trainer "
                f"processes that hold the weights together, {ranks}: choose {divisors(ranks)}"
            )

    def check_shape(self, shape: ModelShape) -> None:
        """Check that the matrices of a model can be cut and its experts spread."""
        if shape.linear:
            for option in ("tensor_parallel_degree", "context_parallel_degree"):
                if getattr(self, option) > 1:
                    raise UserError(
                        f"--parallelism.{option} is {getattr(self, option)}, and the model has layers of linear "
                        "attention, which the trainer computes for whole rows and all heads: set it to 1"
                    )
        degree = self.expert_parallel_degree
        setting = f"--parallelism.expert_parallel_degree is {degree}"
        if degree > 1 and not shape.num_experts:
            raise UserError(f"{setting}, and the model is dense, and has no experts to spread: set it to 1")
        if degree > 1 and shape.num_experts % degree:
            raise UserError(
                f"{setting}, which does not divide the model's experts, {shape.num_experts}: choose "
                f"{divisors(shape.num_experts)}"
            )
        option = "parallelism.tensor_parallel_degree"
        shape.check_cut(option, self.tensor_parallel_degree, cuts_experts=degree == 1)

    def check(self) -> None:
        """Raise UserError for a degree that the trainer does not have."""
        if (degree := self.pipeline_parallel_degree) > 1:
            raise UserError(
                f"--parallelism.pipeline_parallel_degree is {degree}, and the loss needs the logprobs of a whole row "
                "on every rank: set it to 1"
            )


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Models with experts; docs/experts.md."""

    replay: Literal["auto", "off"] = "auto"
    """Routing replay: the trainer computes each token with the experts that the engine chose for it. "auto" does so in
    a policy-gradient run of a model with experts."""
    compare_interval: Annotated[int, Ge(0)] = 20
    """Optimizer steps between two steps that also measure, with one more forward pass, how far trainer and engine are
    apart without replay; the first step does. 0 never measures it."""
    record_routes: bool = False
    """Also write the experts that the engine chose into the files of episodes, which then consist mostly of them."""


@dataclass(frozen=True, kw_only=True)
class TitanSettings(TrainerSettings, ParallelismConfig, RateSettings):
    """How to train, e.g. `TitanSettings(learning_rate=3e-4, threads=2)`."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    total_steps: int = 0
    """Optimizer steps after which "linear" and "cosine" have reached 0."""
    max_tokens_per_micro_batch: int = 16384
    pack_length: int = 0
    """Pack rows into sequences of this many tokens; 0 pads each row instead."""
    threads: int = 0
    """CPU threads of torch; 0 leaves them as they are."""
    compile_full: bool = False
    """On GPU, with `pack_length`: compile for a full micro-batch, too, before the first step. This takes the memory of
    a step."""
    replay: bool = True
    """In a model with experts: compute tokens with the experts that the engine chose, if rows have `routes`."""
    lora: Lora | None = None
    """Adapters to train instead of all weights, which are then frozen in the dtype in which the model computes."""
    gpu_memory_gib: float = 0.0
    """GPU memory of this process at most, in GiB; 0 is all of it."""

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Of AdamW, before the schedule."""
        return {"lr": self.learning_rate, "betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}

    def choose_attention(self, *, is_on_gpu: bool) -> str:
        """The attention kernel: `attention`, or the default on this device."""
        dtype, context = self.dtype_on(is_on_gpu), self.context_parallel_degree
        option = f"--training.attention is {self.attention}"
        if not self.attention:
            return "sdpa" if not is_on_gpu else "varlen" if dtype == "bfloat16" and context == 1 else "flex"
        if not is_on_gpu and self.attention != "sdpa":
            raise UserError(
                f"{option}, which is for a trainer on GPU, and this one is on the CPU: set it to sdpa, or leave it out"
            )
        if self.attention == "varlen" and context > 1:
            raise UserError(
                f"{option}, which cannot share a row between processes, and --parallelism.context_parallel_degree is "
                f"{context}: set it to flex, or leave it out"
            )
        if self.attention == "varlen" and dtype == "float32":
            raise UserError(
                f"{option}, which computes in bfloat16, and --training.dtype is float32: set --training.attention to "
                "flex, or leave it out"
            )
        return self.attention

    def check_state(self, *, is_on_gpu: bool) -> None:
        """Raise UserError if weights and moments cannot be kept as they are asked for."""
        state = self.optimizer_state
        if self.lora is not None and (state == "8bit" or self.cpu_offload):
            with_lora = f"and --lora.rank is {self.lora.rank}, which trains adapters"
            raise UserError(
                f"--training.optimizer_state is 8bit {with_lora}; their small moments are not kept in 8 bits: set it "
                "to float32, or --lora.rank to 0"
                if state == "8bit"
                else f"--training.cpu_offload is true {with_lora}, and the frozen weights stay on the GPU: leave it "
                "out, or set --lora.rank to 0"
            )
        if state == "bfloat16" and not is_on_gpu:
            raise UserError(
                "--training.optimizer_state is bfloat16, which is for a trainer on GPU, and this one is on the CPU: "
                "set it to float32 or 8bit"
            )
        if state == "bfloat16" and self.cpu_offload:
            raise UserError(
                "--training.optimizer_state is bfloat16 and --training.cpu_offload is true, by which the optimizer "
                "runs on the CPU, where there is none with such a state: set it to float32 or 8bit, or leave "
                "cpu_offload out"
            )

    def check_model(self, shape: ModelShape) -> None:
        """Check that a model of this shape can be trained so."""
        self.check_shape(shape)
        if shape.shares_by_fsdp_only:
            self._check_module()
        if self.fp32_head and self.expert_parallel_degree > 1:
            raise UserError(
                f"--parallelism.expert_parallel_degree is {self.expert_parallel_degree}, which does not work with "
                "--training.fp32_head true: leave one of them out"
            )
        if self.lora is not None:
            self.lora.check_shape(shape)

    def _check_module(self) -> None:
        """Check settings for a model that is transformers' own module."""
        settings = {
            "parallelism.tensor_parallel_degree": self.tensor_parallel_degree,
            "parallelism.context_parallel_degree": self.context_parallel_degree,
            "parallelism.expert_parallel_degree": self.expert_parallel_degree,
            "lora.rank": self.lora.rank if self.lora else 0,
        }
        why = "and the model is transformers' own module"
        for name, value in settings.items():
            if value > (usual := int(name != "lora.rank")):
                raise UserError(f"--{name} is {value}, {why}, which has none of it: set it to {usual}")
        if self.attention == "varlen":
            raise UserError(f"--training.attention is varlen, {why}: set it to flex or sdpa, or leave it out")

    def __post_init__(self) -> None:
        check_choices(self)
        kind, warmup, total = self.lr_schedule, self.warmup_steps, self.total_steps
        if kind != "constant" and total <= warmup:
            raise UserError(
                f"lr_schedule={kind!r} with total_steps={total} and warmup_steps={warmup} leaves no step to decay in: "
                "set total_steps to the optimizer steps of the whole phase."
            )
