"""What a run trains on: its model, its tasks and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from forge_env.core.errors import UserError
from forge_env.core.faults import FaultPolicy
from forge_env.core.types import EpisodeLimits
from forge_env.registry.contrib import rows
from forge_env.utils.settings import BY_CASE, MAY_CHANGE, OR_BY_CASE, SEVERAL, Or, values_of


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    path: str = ""
    """A Hugging Face folder, a hub id, or a training run: RUN, RUN@best or RUN@40. Empty makes a small Qwen3 on the
    spot."""
    size: Literal["tiny", "100m", "tiny-moe"] = "tiny"
    """Size of the model that is made on the spot: half a million parameters, a hundred million, or a tiny one with
    experts."""
    new_rows: Literal["off", "on"] = "off"
    """Give tokens of the chat template that `path` was never trained on, such as <tool_call>, rows of their own in the
    embedding and the output layer: the mean of the rows of their text's pieces, plus noise. The run then begins with a
    copy of the model in its folder. The plan names such tokens."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    path: str = ""
    """A file of tasks (.jsonl, .json, .csv, .parquet), or a dataset of the hub, for environments that read their tasks
    from data; empty is the environment's own tasks."""
    split: str = "train"
    """The split to train on; "test" is held out."""
    streaming: bool = False
    """Read only as much of `path` as the tasks need."""
    tasks: Annotated[int, Ge(0)] = 0
    """Distinct training tasks; 0 is all of a dataset, or of a profile, and of an environment's own tasks 4096, or as
    many as it has."""
    held_out: Annotated[int, Ge(0)] = 0
    """Distinct tasks of the test split, which every evaluation of the run is on; 0 is 256, or as many as there are."""

    pass_rate: str = ""
    """A folder of `forge-env profile`: how often an agent solves each training task. It is what a sampler begins with,
    and what pass_rate_range is about."""
    pass_rate_range: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """The least and the greatest rate in pass_rate of a task that is trained on, such as 0.1,0.9."""
    sampler: Literal["uniform", "window"] = "uniform"
    """Which task is next: "uniform" takes all in turn. "window" prefers tasks that are solved half of the time, by
    their last visits and the rate of their kind."""

    def check(self) -> None:
        """Raise UserError for a split that is held out, streaming without data, or a range of rates that is none."""
        bounds = self.pass_rate_range
        if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] <= 1:
            raise UserError(
                f"--dataset.pass_rate_range is {','.join(f'{rate:g}' for rate in bounds)}: give two rates from 0 to 1, "
                "the lower one first, such as 0.1,0.9"
            )
        if bounds != [0.0, 1.0] and not self.pass_rate:
            raise UserError(
                "--dataset.pass_rate_range needs the rates: make them with forge-env profile --out FOLDER, and give "
                "--dataset.pass_rate FOLDER"
            )
        if self.split == "test":
            raise UserError("--dataset.split is 'test', which is held out for the evaluation: train on another split")
        if self.streaming and not self.path:
            raise UserError("--dataset.streaming is true and --dataset.path is empty: name the data that is to stream")


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Known cheats are tried on training tasks before the first step."""

    tasks: Annotated[int, Ge(0), Or(-1, "for 4 where tasks have workspaces, and else none")] = -1
    """Training tasks that are attacked; 0 is none. A task that rewards a cheat in full is left out of the training. If
    all of them do, the run is refused. -1 is 4 for environments with workspaces, and 0 for others."""
    seconds: Annotated[float, Gt(0)] = 120.0
    """Time for all attacks; a task without a verdict by then is trained on."""

    def check(self) -> None:
        """Raise UserError if no part attacks tasks."""
        if self.tasks > 0 and not rows("audits"):
            raise UserError(f"--audit.tasks is {self.tasks}, and no part that attacks tasks is installed: set it to 0")


@dataclass(frozen=True, kw_only=True)
class EnvName:
    """Which environment."""

    name: Annotated[str, SEVERAL] = "code_exec"
    """A registered name, or a "module:Class"; `forge-env list` shows them. With several `--env NAME:WEIGHT` a run has
    several environments, each with its part of the sum of the weights; a weight is 1 if it is left out."""
    options: dict[str, Any] = field(default_factory=dict)
    """The environment's own options, one by one: `--env.options.level 2`; `forge-env info NAME` shows them."""


@dataclass(frozen=True, kw_only=True)
class RendererConfig:
    """How conversations become tokens: the model's own chat template decides."""

    tools: Literal["auto", "template", "text"] = "auto"
    """Who describes tools to the model: "template" is the chat template; "text" is a text in the system message, and
    calls and results are text between marks. "auto" is "text" if the chat template has no place for tools."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig(EpisodeLimits, EnvName):
    max_turns: Annotated[int, OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """-1: what the environment declares, or else 3 with a model made on the spot, and 8
    with a given one, as in `forge-env eval`."""
    max_turn_tokens: Annotated[int, OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """-1: training.seq_len, or what the environment declares, or else 32 with a
    model made on the spot, and 512 with a given one."""
    max_tokens: Annotated[int, OR_BY_CASE] = BY_CASE
    """-1: training.seq_len, or what the environment declares, or else
    512 with a model made on the spot, and 4096 with a given one; never more than the model reads."""
    compact_at: Annotated[float, OR_BY_CASE] = BY_CASE
    """-1: what the environment declares, or else 0."""
    thinking: Literal["off", "on", "template"] = "off"
    """Whether the model thinks before it answers, if its chat template has thoughts. "template" does what the template
    does by default."""
    max_thinking_tokens: Annotated[int, OR_BY_CASE] = BY_CASE
    """-1: what the environment declares, or else 0."""
    step_seconds: Annotated[float, OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """-1: what the environment declares, or else 60."""
    episode_seconds: Annotated[float, OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """-1: what the environment
    declares, or else 300 with a model made on the spot, and 600 with a given one."""
    scoring_seconds: Annotated[float, OR_BY_CASE, MAY_CHANGE] = BY_CASE
    """-1: what the environment declares, or else 120."""
    on_fault: Literal["refill", "shrink", "drop"] = "refill"
    """If an episode fails by a fault of ours, or by slow services: "refill" runs it again, "shrink" goes on with the
    rest of its group, "drop" gives the group up."""
    min_valid: Annotated[int, Ge(1)] = 2
    """Valid episodes that a group needs to be trained on."""
    group_reward: str = ""
    """A function of your own, such as own.py:best, that compares the episodes of a task and adds a number to the reward
    of each."""

    reward_scale: Annotated[float, Gt(0)] = 1.0
    """What the training rewards of the environment are multiplied with."""

    def check(self) -> None:
        """Check the budget of thinking against the limit of a turn."""
        if self.max_thinking_tokens and self.thinking == "off":
            raise UserError(
                f"--env.max_thinking_tokens is {self.max_thinking_tokens}, and --env.thinking is off, so that there is "
                "no thought to limit: set --env.thinking to on or template, or --env.max_thinking_tokens to 0"
            )
        if self.max_thinking_tokens >= self.max_turn_tokens:
            raise UserError(
                f"--env.max_thinking_tokens is {self.max_thinking_tokens}, and a turn has --env.max_turn_tokens, "
                f"{self.max_turn_tokens}, at most, which the thought and the answer share: raise "
                "--env.max_turn_tokens, or set --env.max_thinking_tokens to 0"
            )

    def fault_policy(self) -> FaultPolicy:
        return FaultPolicy(mode=self.on_fault, min_valid=self.min_valid)

    def limits(self) -> EpisodeLimits:
        """The limits of an episode, in the config of a plan: before that, they may still be -1."""
        return EpisodeLimits(**values_of(self, EpisodeLimits))


@dataclass(frozen=True, kw_only=True)
class WarmupConfig:
    """Supervised warm-up on the environment's own demonstrations. It is cut short on purpose, to leave work to do."""

    steps: Annotated[int, Ge(0), OR_BY_CASE] = BY_CASE
    """Optimizer steps at most. -1: 200 for a model made on the spot, and none for a given one."""
    until_success: Annotated[float, Ge(0)] = 0.22
    """Stop as soon as the policy solves this share of the probe tasks; 1 never stops early."""
    until_each_kind: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Go on until the policy also solves this share of the probe tasks of each kind. 0 does not look at kinds."""
    probe_every: Annotated[int, Ge(1)] = 2
    """Steps between two probes."""
    probe_tasks: Annotated[int, Ge(1)] = 96
    """Training tasks of one probe, at most half of all training tasks. No demonstration shows them."""
    demonstrations: Annotated[int, Ge(1)] = 1024
    expert: str = ""
    """A function of the messages so far that demonstrates, "module:function" or "file.py:function", since an agent
    program has no expert. Empty is the environment's expert."""
    batch_size: Annotated[int, Ge(1)] = 32
    """Demonstrations of one optimizer step."""
    balance: Literal["none", "length", "answer"] = "length"
    """"length" shows demonstrations of every common length, in tokens, equally often. "answer" does the same for the
    length of the last turn. "none" shows every demonstration equally often."""
    learning_rate: Annotated[float, Interval(ge=0, le=1), OR_BY_CASE] = BY_CASE
    """-1: by the number of parameters, from 3e-3 for half a million to 1e-5 for 8 billion and more, and ten times that
    for adapters."""
    learning_rate_warmup: Annotated[int, Ge(0)] = 50
    """Steps over which the learning rate rises from 0."""
