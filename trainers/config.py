"""The settings of a training run, one dataclass per section.

Every field is an option by its dotted name: `--training.learning_rate 1e-4`. The field says all about the option: its
type with its bounds, its default, whether it may change when a run goes on (`MAY_CHANGE`, of a section for all of its
fields), and the text of --help below it. `OR_BY_CASE` allows -1, the default of what is trained, from the table of
`trainers.setup.options.defaults`; the other defaults are the tiny CPU recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Interval

from forge_env.core.faults import FaultPolicy
from forge_env.core.types import EpisodeLimits
from forge_env.utils.settings import BY_CASE, MAY_CHANGE, OR_BY_CASE, Or

PROCESSES = 4096
"""Processes, hosts or threads at most; a plan has a line for each process."""

SHORT_OPTIONS = {
    "env": "env.name",
    "tools": "env.options.tools",
    "command": "env.options.command",
    "model": "model.path",
    "output": "output",
    "steps": "training.steps",
    "seed": "training.seed",
    "tasks": "dataset.tasks",
    "loss": "training.loss",
    "advantages": "training.advantages",
    "reward": "training.reward",
    "verbose": "metrics.verbose",
    "trainer": "services.trainer",
    "generator": "services.generator",
    "ref_model": "services.ref_model",
}
"""Short names of settings and, as in `--trainer.procs 4`, of sections."""


@dataclass(kw_only=True)
class ModelConfig:
    path: str = ""
    """A Hugging Face folder or hub id; empty makes a small Qwen3 on the spot."""
    size: Literal["tiny", "100m", "tiny-moe"] = "tiny"
    """Of the model that is made on the spot: half a million parameters, or a hundred million."""


@dataclass(kw_only=True)
class DatasetConfig:
    path: str = ""
    """A file of tasks (.jsonl, .json, .csv, .parquet), or a dataset of the hub, for environments that read their tasks
    from data; empty is the environment's own tasks."""
    split: str = "train"
    """The split to train on; "test" is held out."""
    streaming: bool = False
    """Read no more of `path` than the tasks need, rather than all of it."""
    tasks: Annotated[int, Ge(0)] = 0
    """Distinct training tasks; 0 is all of a dataset, and of an environment's own tasks 4096, or as many as it has."""
    held_out: Annotated[int, Ge(0)] = 0
    """Distinct tasks of the test split, which every evaluation of the run is on; 0 is 256, or as many as there are."""


@dataclass(kw_only=True)
class EnvConfig:
    name: str = "code_exec"
    """A registered name, or a "module:Class"; `forge-env list` shows them."""
    options: dict[str, Any] = field(default_factory=dict)
    """The environment's own options, one by one: `--env.options.level 2`; `forge-env info NAME` shows them."""
    max_turns: Annotated[int, Ge(1), OR_BY_CASE] = BY_CASE
    """Turns of an episode at most. -1: what the environment declares, or else 3 with a model made on the spot, and 8
    with a given one, as in `forge-env eval`."""
    max_turn_tokens: Annotated[int, Ge(1), OR_BY_CASE] = BY_CASE
    """Sampled tokens of one turn at most. -1: training.seq_len, or what the environment declares, or else 32 with a
    model made on the spot, and 512 with a given one."""
    max_tokens: Annotated[int, Ge(2), OR_BY_CASE] = BY_CASE
    """Prompt and sampled tokens of an episode at most. -1: training.seq_len, or what the environment declares, or else
    512 with a model made on the spot, and 4096 with a given one; never more than the model reads."""
    thinking: Literal["off", "on", "template"] = "off"
    """Whether the model thinks before it answers, where its family has thinking, as Qwen3 has; "template" is what the
    family's chat template does by default."""
    max_thinking_tokens: Annotated[int, Ge(0), OR_BY_CASE] = BY_CASE
    """Tokens of one turn's thought at most: a longer one is ended, and the model goes on with the answer; 0 is no limit
    but that of the turn. -1: what the environment declares, or else 0."""
    step_seconds: Annotated[float, Gt(0), OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """Of one reset or step of the environment. -1: what the environment declares, or else 60."""
    episode_seconds: Annotated[float, Gt(0), OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """Of the environment's own time, without generation and queues. -1: what the environment declares, or else 300 with
    a model made on the spot, and 600 with a given one."""
    scoring_seconds: Annotated[float, Gt(0), OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """Of the rewards of one episode. -1: what the environment declares, or else 120."""
    on_fault: Literal["refill", "shrink", "drop"] = "refill"
    """What becomes of a group when an episode ends by a fault of ours, or by slow services: run the episode again, go
    on with the rest, or give the group up."""
    min_valid: Annotated[int, Ge(1)] = 2
    """Valid episodes that a group needs to be trained on."""

    def fault_policy(self) -> FaultPolicy:
        return FaultPolicy(mode=self.on_fault, min_valid=self.min_valid)

    def limits(self) -> EpisodeLimits:
        """The limits of an episode, in the config of a plan: before that, they may still be -1."""
        return EpisodeLimits(
            max_turns=self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            max_tokens=self.max_tokens,
            max_thinking_tokens=self.max_thinking_tokens,
            step_seconds=self.step_seconds,
            episode_seconds=self.episode_seconds,
            scoring_seconds=self.scoring_seconds,
        )


@dataclass(kw_only=True)
class WarmupConfig:
    """Supervised warm-up on the environment's own demonstrations. It is cut short on purpose, to leave work to do."""

    steps: Annotated[int, Ge(0), OR_BY_CASE] = BY_CASE
    """Optimizer steps at most. -1: 200 for a model made on the spot, and none for a given one."""
    until_success: Annotated[float, Ge(0)] = 0.22
    """Stop as soon as the policy solves this share of the probe tasks; 1 never stops early."""
    probe_every: Annotated[int, Ge(1)] = 2
    """Steps between two probes."""
    probe_tasks: Annotated[int, Ge(1)] = 96
    """Training tasks of one probe, none of them among the demonstrations."""
    demonstrations: Annotated[int, Ge(1)] = 1024
    batch_size: Annotated[int, Ge(1)] = 32
    """Demonstrations of one optimizer step."""
    balance: Literal["none", "length"] = "length"
    """"length" shows demonstrations of every common length, in tokens, equally often; "none" shows every demonstration
    equally often."""
    learning_rate: Annotated[float, Interval(ge=0, le=1), OR_BY_CASE] = BY_CASE
    """-1: 3e-3 for the tiny model made on the spot, 6e-4 for the one of size 100m, 1e-5 for all weights of a given one,
    1e-4 for adapters."""
    learning_rate_warmup: Annotated[int, Ge(0)] = 50
    """Steps over which the learning rate rises from 0."""


@dataclass(kw_only=True)
class TrainingConfig:
    steps: Annotated[int, Ge(1), MAY_CHANGE] = 120
    """Optimizer steps, 1 or more."""
    seed: Annotated[int, Ge(0)] = 0
    batch_size: Annotated[int, Ge(1)] = 12
    """Global prompts (= groups) per micro-step, over all ranks."""
    gradient_accumulation_steps: Annotated[int, Ge(1)] = 1
    """Micro-steps per optimizer step; an optimizer step has batch_size times this many groups."""
    sync_interval: Annotated[int, Ge(1)] = 1
    """Optimizer steps between two updates of the engine's weights: the number of mini-batches per batch of rollouts, 4
    in GSPO's paper and 16 in DAPO's. Each mini-batch has the groups of one step."""
    learning_rate: Annotated[float, Interval(ge=0, le=1), OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """-1: 6e-4 for the tiny model made on the spot, 6e-5 for the one of size 100m, 1e-6 for all weights of a given one,
    1e-5 for adapters; in supervised training as warmup.learning_rate."""
    lr_schedule: Annotated[Literal["constant", "linear", "cosine"], MAY_CHANGE] = "linear"
    """Learning rate after its warm-up: "linear" and "cosine" decay to 0 at the last step."""
    warmup_steps: Annotated[int, Ge(0), OR_BY_CASE] = BY_CASE
    """Steps over which the learning rate rises from 0. -1: for a model made on the spot a twentieth of the steps, for a
    given one half of them, and 10 at most; none in supervised training of a model made on the spot. AdamW's first
    steps move every weight by the whole learning rate, which can undo what a model knows."""
    weight_decay: Annotated[float, Ge(0), MAY_CHANGE] = 0.0
    max_grad_norm: Annotated[float, Gt(0), MAY_CHANGE] = 1.0
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], MAY_CHANGE] = "auto"
    """What the trainer computes in; "auto" is float32 on CPU and bfloat16, over float32 weights, on GPU."""
    activation_checkpoint: Annotated[Literal["none", "selective", "full"], MAY_CHANGE] = "none"
    """Activations that the backward pass computes again instead of keeping them: saves memory, costs time."""
    keep_logits_gib: Annotated[float, Ge(0), MAY_CHANGE] = 10.0
    """On GPU, logits of a micro-batch up to this size are kept for the backward pass; larger ones are made again."""
    cpu_offload: bool = False
    """On GPU, keep weights, gradients and optimizer state in the host's memory: 16 to 20 bytes a parameter over all
    processes with float32 state. The optimizer then runs on the CPU, with services.trainer.threads."""
    reshard_after_forward: Annotated[Literal["default", "always", "never"], MAY_CHANGE] = "default"
    """Whether FSDP frees the weights of a block after its forward pass, and gathers them again for the backward pass;
    "default" does but for the output layer, "never" is faster and holds the whole model in the compute dtype."""
    optimizer_state: Literal["float32", "bfloat16", "8bit"] = "float32"
    """What AdamW's two moments are kept in: 8, 4 or 2 bytes a parameter. "bfloat16" needs a trainer on GPU without
    cpu_offload, "8bit" the package torchao."""
    fp32_head: bool = False
    """Compute the output layer in float32 with float32 weights, where the trainer computes in bfloat16."""
    attention: Annotated[Literal["", "varlen", "flex", "sdpa"], MAY_CHANGE] = ""
    """The trainer's attention kernel. Empty is sdpa on CPU; on GPU varlen (FlashAttention), or flex in float32 and with
    context parallelism. On GPU flex makes long rows faster, but compiles for each new length: docs/gpu.md."""
    compile: Annotated[bool, MAY_CHANGE] = False
    """Compile each transformer block: takes minutes at the start, and makes steps faster on a GPU."""
    seq_len: Annotated[int, Ge(0)] = 0
    """Most tokens of a training row, and so of an episode: another name for env.max_tokens; 0 uses env.max_tokens. A
    turn may then use all of them, unless env.max_turn_tokens says otherwise."""
    packing: Annotated[bool, MAY_CHANGE] = False
    """Whether rows share sequences of max_tokens_per_micro_batch tokens, instead of being padded to one length."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    loss: str = ""
    """A loss of your own in the place of the algorithm's, "module:MyLoss"; see trainers/objective/plugins.py."""
    advantages: str = ""
    """A function of your own from the rewards of a group to its advantages, "module:function"."""
    reward: str = ""
    """A function of your own from an episode to its reward, "module:function"; the environment's is still recorded."""
    staleness: Annotated[int, Ge(0), OR_BY_CASE] = BY_CASE
    """Optimizer steps between the weights that sampled a group and those that it trains, at most; -1 is what
    sync_interval needs, which is one less: rollouts and training then take turns."""
    cache_on_update: Literal["keep", "recompute"] = "keep"
    """KV cache of in-flight requests after a weight update (staleness above 0): keep that of the old weights, or
    recompute it with the new ones."""
    step_seconds: Annotated[float, Gt(0), MAY_CHANGE] = 600.0
    """Deadline of one optimizer step, and how long a run waits for groups while nothing moves: no group comes back, no
    engine computes, no episode ends. It waits at least as long as a legal episode may take between two of these."""
    deterministic: bool = False
    """Whether a run repeats bit by bit on CPU, also when it is killed and resumed: turns in lockstep, which costs time.
    All groups have to be sampled from the weights that their step, or window of steps, begins with."""
    max_tokens_per_micro_batch: Annotated[int, Interval(ge=1, le=2**24), MAY_CHANGE] = 4096
    """Tokens of one forward pass at most, shared by the processes of context parallelism; a longer row has one of its
    own, and the rows of a longer episode go to several. Few tokens limit how much one long row pads the others."""
    old_logprobs: Literal["auto", "generator", "trainer"] = "auto"
    """Whose logprobs of a token the importance ratio begins from: those of the engine that sampled it, or the trainer's
    own, frozen at each update of the engine's weights; the correction then bounds trainer / engine. "auto" is
    "trainer" for GSPO where the trainer or the engine computes in bfloat16, and else "generator"."""
    mismatch_alarm: Annotated[float, Ge(0), MAY_CHANGE] = 0.0
    """Mean |logprob difference| of trainer and engine on the same weights above which the run warns; 0 is 1e-4 where
    both compute in float32, and 0.1 otherwise."""


@dataclass(kw_only=True)
class LoraConfig:
    """Low-rank adapters, which are trained in the place of all weights; docs/lora.md."""

    rank: Annotated[int, Interval(ge=0, le=1024)] = 0
    """Rows of the adapters' small matrices; 0 trains all weights, without adapters."""
    alpha: Annotated[float, Gt(0)] = 32.0
    """What an adapter computes is multiplied by alpha / rank."""
    targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """The matrices that get an adapter: all-linear, or any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and
    down_proj, with commas between them."""
    publish: Annotated[Literal["auto", "merged", "adapter"], MAY_CHANGE] = "auto"
    """What the engine gets: "merged" weights, summed in float32; or the "adapter" alone, which it computes beside the
    weights that it started with. "auto" is merged for an engine in float32 and for a model with experts, and else
    adapter for one in bfloat16, whose rounding would swallow small updates of merged weights."""
    adapter: str = ""
    """An adapter in PEFT's format to start from: a folder with adapter_config.json; its rank, alpha and targets must be
    those set here. The KL penalty is then against it."""


@dataclass(kw_only=True)
class MoEConfig:
    """Models with experts; docs/experts.md."""

    replay: Literal["auto", "off"] = "auto"
    """Whether the trainer computes tokens with the experts that the engine chose for them (routing replay); "auto" does
    in a policy-gradient run of a model with experts."""
    compare_interval: Annotated[int, Ge(0)] = 20
    """With replay: the first optimizer step, and from there on each after so many, also measures how far trainer and
    engine are apart without it, which takes one forward pass more; 0 never does."""
    record_routes: bool = False
    """Write the experts that the engine chose into the files of episodes, too: most of their size then."""


@dataclass(kw_only=True)
class AlgorithmConfig:
    """What the sections of all policy-gradient algorithms have in common; an algorithm sets its own defaults."""

    clips_within_rounding: ClassVar[bool] = False
    """Whether the clip range is narrower than what a 16-bit engine's logprobs are off by."""

    n_samples: Annotated[int, Ge(1)] = 8
    """Episodes of one group."""
    temperature: Annotated[float, Ge(0.01)] = 1.0
    """The sampling temperature, 0.01 or more; all logprobs are taken at it."""
    credit: Literal["episode", "turn"] = "episode"
    """Whether every token answers for the whole episode's reward, or for what came from its own turn on."""
    beta: Annotated[float, Ge(0)] = 0.0
    """Weight of the KL penalty; 0 is none. Without services.ref_model it is against the generator's own logprobs; with
    lora.rank it is against the model that the adapters started from."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the penalty is a term of the loss, or is taken off the episode's reward before the advantages."""
    kl: Literal["auto", "k1", "k2", "k3"] = "auto"
    """Estimator of the KL penalty; "auto" is k3 in the loss, and k1 in the reward."""
    kl_straight_through: bool = False
    """The estimator's value with k2's gradient, which on-policy is the KL's own."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """"token" weighs every sampled token alike, "sequence" every episode, "constant" is Dr.GRPO's sum of tokens."""
    constant: Annotated[float, Ge(0)] = 0.0
    """What "constant" divides an episode's sum by; 0 is env.max_tokens."""
    correction: Literal["none", "truncate", "mask", "sequence_truncate", "sequence_mask"] = "mask"
    """What becomes of tokens, or of whole episodes, whose ratio of trainer to engine is out of bounds."""
    correction_low: Annotated[float, Interval(ge=0, le=1)] = 1e-4
    correction_high: Annotated[float, Ge(1)] = 100.0
    normalization: Literal["none", "group", "batch"] = "group"
    """Whose standard deviation the advantages are divided by."""
    std_ddof: Annotated[int, Interval(ge=0, le=1)] = 1
    """1 divides the variance by n - 1, 0 by n."""
    std_eps: Annotated[float, Ge(0)] = 1e-4


@dataclass(kw_only=True)
class ReplicasConfig:
    num_replicas: Annotated[int, Interval(ge=1, le=PROCESSES)] = 1
    threads: Annotated[int, Interval(ge=1, le=PROCESSES)] = 1
    """CPU threads of one process."""
    ping_seconds: Annotated[float, Gt(0)] = 30.0
    """A replica that does not answer a ping for so long is ended and replaced; the trainer is not pinged."""


@dataclass(kw_only=True)
class ServiceConfig(ReplicasConfig):
    procs: Annotated[int, Interval(ge=1, le=PROCESSES)] = 1
    """Processes of one replica: of the generator its tensor parallel ranks, of the trainer all of its ranks."""
    with_gpus: bool = False
    """Whether each process is on a GPU. Where the machine has GPUs, trainer, generator and reference model are, unless
    this is given; see also launcher.share_gpus."""


@dataclass(kw_only=True)
class ReferenceConfig(ServiceConfig):
    procs: Annotated[int, Interval(ge=0, le=PROCESSES)] = 0


@dataclass(kw_only=True)
class GeneratorConfig(ServiceConfig):
    kv_cache_gib: Annotated[float, Interval(ge=0, le=1024)] = 0.0
    """For keys and values, on each process; 0 is 1 GiB on CPU, and on GPU what all requests of the run need at their
    longest, or what gpu_memory_utilization leaves."""
    gpu_memory_utilization: Annotated[float, Interval(gt=0, le=1)] = 0.9
    """On GPU: the share of the card up to which the engine's cache may fill it, beside the engine's weights and what
    else is on the card."""
    sleep: Literal["auto", "yes", "no"] = "auto"
    """Whether the engine gives its GPU memory back while the trainer steps; for an engine that shares the trainer's GPU
    and has no episodes in flight meanwhile. "auto" does where the card has no room for both; docs/gpu.md."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Further settings of vLLM, by the names of its EngineArgs: `--services.generator.engine.block_size 32`.
    docs/gpu.md lists them."""
    cuda_graphs: bool = True
    """On GPU: whether steps are captured, which takes a minute at the start and makes small batches much faster."""
    worker_process: bool = True
    """On one GPU: whether what prepares and launches a step has a process of its own, as it has on several. It makes
    more tokens a second, because it does not wait for what takes requests; docs/gpu.md. On a CPU it has none."""


@dataclass(kw_only=True)
class ServicesConfig:
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    envs: ReplicasConfig = field(default_factory=ReplicasConfig)
    """The environments, with their agents, tokenising and rewards: a replica is one process, never on a GPU."""
    trainer: ServiceConfig = field(default_factory=lambda: ServiceConfig(threads=2))
    ref_model: ReferenceConfig = field(default_factory=ReferenceConfig)
    """The frozen reference model of the KL penalty; it is started only where beta is above 0, or a loss of your own
    names ref_logprobs. Its weights are sharded over the processes of a replica, and a step's samples are split over the
    replicas."""


@dataclass(kw_only=True)
class LauncherConfig:
    """On which machines the processes run; docs/clusters.md."""

    kind: Literal["local", "processes", "workers", "slurm"] = "local"
    """"local" is this machine, "workers" names machines on which `python -m forge_env.runtime.host` waits, "slurm" is
    the nodes of the allocation that examples/slurm/submit.sh asks for, and "processes" tries out what several machines
    do with processes on this one."""
    hosts: Annotated[int, Interval(ge=0, le=PROCESSES)] = 0
    """How many hosts; 0 is as many as are named or allocated, and one for the other kinds."""
    workers: str = ""
    """For "workers": NAME or NAME:PORT of each, with commas between them."""
    port: Annotated[int, Interval(ge=1, le=65535)] = 22222
    """Of the hosts that name none."""
    gpus_per_host: Annotated[int, Interval(ge=0, le=PROCESSES)] = 0
    """GPUs of each host; 0 is as many as this machine has."""
    gpu_memory_gib: Annotated[float, Interval(ge=0, le=1024)] = 0.0
    """What trainer, engine and plan believe each GPU to have, in GiB: no more than it has; 0 is what it has."""
    share_gpus: Literal["auto", "yes", "no"] = "auto"
    """Whether generator, trainer and reference model have the same GPUs; "auto" shares them where one machine has fewer
    than they ask for together."""
    silence_seconds: Annotated[float, Ge(2)] = 10.0
    """A host that does not answer for so long is given up."""
    lease_seconds: Annotated[float, Ge(5)] = 60.0
    """A host that hears nothing of the run for so long ends the processes of it."""


@dataclass(kw_only=True)
class DeadlinesConfig:
    """When the run's own parts count as hung; what an episode may take is in `env`. No completion has a deadline."""

    stall_seconds: Annotated[float, Gt(0)] = 300.0
    """An engine that has requests and computes no token for so long is ended and replaced."""
    base_seconds: Annotated[float, Gt(0)] = 300.0
    """For the start of a process, and for publishing, pulling, saving, loading or exporting weights; the time that
    their bytes take comes on top."""
    least_mib_per_second: Annotated[float, Gt(0)] = 50.0
    """The slowest disk or network that still counts as working."""


@dataclass(kw_only=True)
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
    """Processes that share every row, each with a part of its tokens; weights are sharded over them as well. For rows
    whose activations do not fit on one GPU."""
    expert_parallel_degree: Annotated[int, Ge(1)] = 1
    """Processes that the experts of each layer are spread over, of a model that has experts. They are those of the
    other degrees but replicas: it divides their number, and the number of experts. Tokens are exchanged between them,
    and each gathers the weights of its own experts only."""


@dataclass(kw_only=True)
class WeightsConfig:
    store: Literal["auto", "shared_memory", "cuda_ipc", "nccl", "torchstore"] = "auto"
    """How the weights get from the trainer to the engine; "auto" is the fastest that the run's processes can use."""


@dataclass(kw_only=True)
class EvaluationConfig:
    """The evaluations of a run: before, after, and in between; always the held-out tasks, with the same seeds.

    They have a sampling of their own, so that figures of runs with different training temperatures compare.
    """

    interval: Annotated[int, Ge(0), MAY_CHANGE] = 0
    """Optimizer steps between two evaluations; 0 is none between the first and the last."""
    n: Annotated[int, Ge(1)] = 1
    """Attempts at each task."""
    temperature: Annotated[float, Ge(0)] = 1.0
    """The sampling temperature of evaluations, whatever that of the training is; 0 is greedy."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """The share of the probability, the likeliest tokens first, that evaluations sample from; 1 is all."""
    greedy: bool = False
    """Whether each evaluation measures a second figure, at temperature 0 with one attempt at each task."""
    sets: dict[str, Any] = field(default_factory=dict)
    """Further held-out sets of the same environment, each a figure of its own: `--evaluation.sets.NAME.split`,
    `.tasks`, and `.options.OPTION` for options of the environment that differ."""


@dataclass(kw_only=True)
class CheckpointConfig:
    interval: Annotated[int, Ge(0)] = 0
    """Optimizer steps between two checkpoints; 0 is one, after the last step."""
    keep_last: Annotated[int, Ge(1)] = 2
    """Checkpoints to keep; older ones are removed once a newer one is complete."""
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written."""
    step: Annotated[int, Ge(0)] = 0
    """With resume: go on from the checkpoint of this step; 0 is the newest."""


@dataclass(kw_only=True)
class MetricsConfig:
    """Where metrics go, beside metrics.jsonl and the console; docs/metrics.md."""

    tensorboard: bool = True
    """Whether TensorBoard's files are written."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases; "online" needs WANDB_API_KEY in the environment."""
    wandb_project: str = "forge_env"
    wandb_name: str = ""
    """The run's name at W&B; empty is that of the run's folder."""
    sinks: list[str] = field(default_factory=list)
    """Sinks of your own, "module:Class", with commas between them; see trainers/metrics/sink.py."""
    otel: Literal["off", "spans", "messages"] = "off"
    """OpenTelemetry spans of episodes, turns and tool calls, sent to OTEL_EXPORTER_OTLP_TRACES_ENDPOINT;
    "messages" sends the texts of messages, arguments and results, too."""
    verbose: bool = False
    """Print the phases of the start, too, with the time that each took."""
    system_seconds: Annotated[float, Ge(0)] = 10.0
    """Seconds between two measurements of CPU, memory, disk and GPUs; 0 is none."""


@dataclass(kw_only=True)
class RunConfig:
    """What all algorithms share; each algorithm adds its own section."""

    output: Annotated[str, MAY_CHANGE] = ""
    """Folder of the run; empty makes a new one under outputs/."""
    resume: Annotated[bool, MAY_CHANGE] = False
    """Go on with the run of `output` from its newest checkpoint."""
    dry_run: Annotated[bool, MAY_CHANGE] = False
    """Print what would run, where, and what it needs; start nothing."""
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    moe: MoEConfig = field(default_factory=MoEConfig)
    services: Annotated[ServicesConfig, MAY_CHANGE] = field(default_factory=ServicesConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    deadlines: Annotated[DeadlinesConfig, MAY_CHANGE] = field(default_factory=DeadlinesConfig)
    parallelism: Annotated[ParallelismConfig, MAY_CHANGE] = field(default_factory=ParallelismConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: Annotated[CheckpointConfig, MAY_CHANGE] = field(default_factory=CheckpointConfig)
    metrics: Annotated[MetricsConfig, MAY_CHANGE] = field(default_factory=MetricsConfig)

    def settle(self) -> None:
        """Set what follows from other settings, and check what only the algorithm can; algorithms override this.

        Raises:
            UserError: for settings that contradict each other.
        """

    def about_data(self) -> Sequence[str]:
        """Sentences on data that replaces an environment's tasks, as far as it is on this machine.

        Raises:
            UserError: when it cannot be read.
        """
        return ()

    @property
    def groups_per_step(self) -> int:
        """Groups of one optimizer step."""
        return self.training.batch_size * self.training.gradient_accumulation_steps

    @property
    def staleness(self) -> int:
        """Optimizer steps between the weights that sampled a group and those that it trains, at most."""
        return self.training.staleness if self.training.staleness >= 0 else self.training.sync_interval - 1

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """The coarser of what the trainer and the engine compute in."""
        dtype, services = self.training.dtype, self.services
        coarse = dtype == "bfloat16" or services.generator.with_gpus or (dtype == "auto" and services.trainer.with_gpus)
        return "bfloat16" if coarse else "float32"

    @property
    def engine_dtype(self) -> Literal["float32", "bfloat16"]:
        """What the engine computes in, and the weights are published in."""
        return "bfloat16" if self.services.generator.with_gpus else "float32"

    @property
    def algorithm(self) -> AlgorithmConfig | None:
        """The section of the policy-gradient algorithm; None for supervised training."""
        return getattr(self, self.algorithm_name) if self.algorithm_name else None

    @property
    def algorithm_name(self) -> str:
        """The name of that section, such as "grpo"; "" for supervised training."""
        names = (setting.name for setting in fields(self))
        return next((name for name in names if isinstance(getattr(self, name), AlgorithmConfig)), "")

    @property
    def temperature(self) -> float:
        """The sampling temperature."""
        return self.algorithm.temperature if self.algorithm else 1.0
