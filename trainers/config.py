"""The settings of a training run, one dataclass per section; the defaults are the tiny CPU recipe.

Every field can be set on the command line by its dotted name: `--training.learning_rate 1e-4`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from forge_env.faults import FaultPolicy
from forge_env.types import EpisodeLimits

SHORT_OPTIONS = {
    "env": "env.name",
    "tools": "env.options.tools",
    "model": "model.path",
    "output": "output",
    "steps": "training.steps",
    "seed": "training.seed",
    "tasks": "dataset.tasks",
    "loss": "training.loss",
    "advantages": "training.advantages",
}


@dataclass(kw_only=True)
class ModelConfig:
    path: str = ""
    """A Hugging Face folder or hub id; empty makes a tiny Qwen3 on the spot."""


@dataclass(kw_only=True)
class DatasetConfig:
    tasks: int = 4096
    """Distinct training tasks."""
    held_out: int = 256
    """Distinct tasks of the test split, one episode each, for the evaluation before and after."""


@dataclass(kw_only=True)
class EnvConfig:
    name: str = "code_exec"
    """A registered name, or a "module:Class"; `forge-env list` shows them."""
    options: dict[str, Any] = field(default_factory=dict)
    """The environment's own options, one by one: `--env.options.level 2`; `forge-env info NAME` shows them."""
    max_turns: int = 3
    max_turn_tokens: int = 32
    """Sampled tokens of one turn at most."""
    max_tokens: int = 512
    """Prompt and sampled tokens of an episode at most."""
    step_seconds: float = 60.0
    episode_seconds: float = 300.0
    scoring_seconds: float = 120.0
    on_fault: Literal["refill", "shrink", "drop"] = "refill"
    """What becomes of a group when an episode ends by a fault of ours: run the episode again, go on with the rest, or
    give the group up."""
    min_valid: int = 2
    """Valid episodes that a group needs to be trained on."""

    def fault_policy(self) -> FaultPolicy:
        return FaultPolicy(mode=self.on_fault, min_valid=self.min_valid)

    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(
            max_turns=self.max_turns,
            max_turn_tokens=self.max_turn_tokens,
            max_tokens=self.max_tokens,
            step_seconds=self.step_seconds,
            episode_seconds=self.episode_seconds,
            scoring_seconds=self.scoring_seconds,
        )


@dataclass(kw_only=True)
class WarmupConfig:
    """Supervised warm-up on the environment's own demonstrations. It is cut short on purpose, to leave work to do."""

    steps: int = -1
    """Optimizer steps at most; -1 is 200 for the tiny model, and none for a model that was given."""
    until_success: float = 0.15
    """Stop as soon as the policy solves this share of the probe tasks; 1 never stops early."""
    probe_every: int = 8
    """Steps between two probes."""
    probe_tasks: int = 64
    """Training tasks of one probe, none of them among the demonstrations."""
    demonstrations: int = 1024
    batch_size: int = 32
    """Demonstrations of one optimizer step."""
    learning_rate: float = 3e-3
    learning_rate_warmup: int = 50
    """Steps over which the learning rate rises from 0."""


@dataclass(kw_only=True)
class TrainingConfig:
    steps: int = 120
    seed: int = 0
    batch_size: int = 8
    """Prompts, and so groups, of one optimizer step."""
    learning_rate: float = 3e-4
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; its gradient costs memory of the size of the logits."""
    loss: str = ""
    """A loss of your own in the place of the algorithm's, "module:MyLoss"; see trainers/own_parts.py."""
    advantages: str = ""
    """A function of your own from the rewards of a group to its advantages, "module:function"."""
    staleness: int = 0
    """Optimizer steps between the weights that sampled a group and those that it trains, at most; 0 is synchronous."""
    step_seconds: float = 600.0
    """Deadline for one step's groups, and for one optimizer step."""
    max_tokens_per_micro_batch: int = 4096
    """Model tokens of one forward pass: few, so that one long episode does not pad all the others."""


@dataclass(kw_only=True)
class AlgorithmConfig:
    """What the sections of all policy-gradient algorithms have in common; a page sets its own defaults."""

    n_samples: int = 8
    """Episodes of one group."""
    beta: float = 0.0
    """Weight of the KL penalty; 0 is none. There being no reference model, it is against the generator."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL penalty."""
    kl_straight_through: bool = False
    """The estimator's value with k2's gradient, which on-policy is the KL's own."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """"token" weighs every sampled token alike, "sequence" every episode, "constant" is Dr.GRPO's sum of tokens."""
    constant: float = 0.0
    """What "constant" divides an episode's sum by; 0 is env.max_tokens."""
    correction: Literal["none", "truncate", "mask", "sequence_truncate", "sequence_mask"] = "mask"
    """What becomes of tokens, or of whole episodes, whose ratio of trainer to engine is out of bounds."""
    correction_low: float = 1e-4
    correction_high: float = 100.0
    normalization: Literal["none", "group", "batch"] = "group"
    """Whose standard deviation the advantages are divided by."""
    std_ddof: int = 1
    """1 divides the variance by n - 1, 0 by n."""
    std_eps: float = 1e-4


@dataclass(kw_only=True)
class ServiceConfig:
    procs: int = 1
    threads: int = 1
    """CPU threads of one process."""
    with_gpus: bool = False


@dataclass(kw_only=True)
class ServicesConfig:
    generator: ServiceConfig = field(default_factory=ServiceConfig)
    trainer: ServiceConfig = field(default_factory=lambda: ServiceConfig(threads=2))


@dataclass(kw_only=True)
class RunConfig:
    """What all algorithms share; each page adds its own section."""

    output: str = ""
    """Folder of the run; empty makes a new one under outputs/."""
    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    services: ServicesConfig = field(default_factory=ServicesConfig)
