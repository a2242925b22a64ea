"""Trains a recorded optimizer step again, on a CPU in float32, and measures what each of its episodes did.

The groups are those on the disk, and the samples are made of them by the run's objective. The weights are those of the
checkpoint before the step, or the nearest one. The learning rate is 0, so that they stay as they are.

A loss is a sum over episodes, divided by one number that is counted over the whole step (`LossCall.units`). So the step
of an episode alone, times its share of that number, is its part of the loss and of the gradient.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from contrib.records.trained import TRAINED, Trained, read_trained
from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.records.run_files import metrics_of, steps_of
from forge_env.utils.settings import with_values
from trainers.algorithm import find_algorithm
from trainers.batching.batch import MicroBatch, Sample
from trainers.checkpoints import Checkpoint, find
from trainers.controller.sample_maker import SampleMaker
from trainers.objective.credit import target_logprobs, turn_values
from trainers.objective.loss_call import LossCall
from trainers.objective.objective import Objective
from trainers.setup.checks.resume_checks import REFERENCE, REFERENCE_ADAPTER
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import plan_settings
from trainers.setup.run_plan import RunPlan

COMPARED = ("loss", "tokens", "grad_norm", "training_reward", "mean_abs_logprob_difference")
"""Metrics that the step must have again, if the weights and the precision are the same."""
TRAIN = Path("episodes") / "train.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    episode: str
    env: str
    reward: float
    training_reward: float
    """What advantages are taken of: the reward with its additions and scale."""
    advantages: Sequence[float]
    """One for each turn."""
    tokens: int
    """Tokens that are trained on."""
    all_tokens: int
    masks: Sequence[Sequence[tuple[bool, int]]]
    """Of each row of the model: whether tokens are trained on, and how many of them follow each other."""
    batches: Sequence[int]
    """The micro-batches with its rows; empty if the loss needs nothing of it."""
    difference: float
    """Mean of |logprob now - recorded logprob| over the trained tokens, in nats."""
    loss: float
    """Its part of the loss of the step."""
    grad_norm: float
    """Norm of its part of the gradient, before clipping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAgain:
    step: int
    weights_step: int
    """The optimizer steps of the weights; the step itself began with those of `step` - 1."""
    weights: str
    """The folder of the weights."""
    rows: Sequence[StepRow]
    batches: Sequence[Mapping[str, int]]
    """Of each micro-batch: its sequences, the tokens of each with padding, and the trained tokens."""
    now: Mapping[str, float]
    recorded: Mapping[str, float]
    """Metrics of the step from metrics.jsonl; {} if it has none."""
    advantage_difference: float
    """The largest difference of an advantage to the one in trained.jsonl."""
    notes: Sequence[str] = field(default_factory=tuple)


async def train_again(run: Path, step: int) -> StepAgain:
    """Train a step again.

    Raises:
        UserError: the run has no such step, its episodes or weights are not on the disk, or a teacher took part.
    """
    run = run.expanduser()
    rows_of_step = _lines_of_step(run, step)
    groups = _groups(run, step, [line.episode for line in rows_of_step])
    checkpoint, weights_step = _nearest(run, step)
    plan = _plan(run, checkpoint)
    objective = plan.objective
    if objective is None or objective.distillation is not None:
        raise UserError(
            f"step {step} of {run} learned from a teacher or from demonstrations: only rewards are trained again"
        )
    groups = [objective.with_verdicts(group) for group in groups]
    with _trainer(run, plan, checkpoint, weights_step) as trainer:
        references = _references(run, plan, trainer)
        samples, rewards, sample_metrics = await SampleMaker(objective=objective, reference=references)(groups)
        episodes = [episode for group in groups for episode in group.valid]
        reward_of = dict(zip((e.id for e in episodes), (r for of_group in rewards for r in of_group), strict=True))
        learners = [episode for episode in episodes if objective.learns_from(episode)]
        measures = _Measured(plan, objective, trainer, samples)
        rows = [measures.row(i, episode, reward_of[episode.id]) for i, episode in enumerate(learners)]
        now = {**sample_metrics, **measures.step()}
        metrics_then = next((m for m in reversed(metrics_of(run, "train")) if m.get("step") == step), {})
        return StepAgain(
            step=step,
            weights_step=weights_step,
            weights=str(checkpoint.path if weights_step else _model(run, plan)),
            rows=rows,
            batches=measures.batches,
            now=now,
            recorded={name: metrics_then[name] for name in COMPARED if name in metrics_then},
            advantage_difference=_largest_difference(rows, rows_of_step),
            notes=[*_notes(plan, step, weights_step), *_missing(rows, rows_of_step)],
        )


def _lines_of_step(run: Path, step: int) -> list[Trained]:
    steps, lines = set[int](), list[Trained]()
    for line in read_trained(run):
        steps.add(line.step)
        if line.step == step:
            lines.append(line)
    if not steps:
        raise UserError(
            f"{run} has no step to train again: it has no {TRAINED}, which a run that learns from rewards writes"
        )
    if not lines:
        raise UserError(f"{run} has no step {step}: it has the steps {min(steps)} to {max(steps)}")
    return lines


def _groups(run: Path, step: int, ids: Sequence[str]) -> list[Group]:
    """The groups of a step in the order of its batch, with the siblings that were not trained on."""
    places, group_of = dict[str, list[int]](), dict[str, str]()
    file = run / TRAIN
    if not file.is_file():
        raise UserError(f"the episodes of step {step} are not recorded: there is no {file}")
    with file.open("rb") as lines:
        start = 0
        for line in lines:
            try:
                data = json.loads(line)
                group_of[data["id"]] = data["group_id"]
                places.setdefault(data["group_id"], []).append(start)
            except (ValueError, KeyError, TypeError):
                pass  # half of a last line, or a line that forge-env audit names
            start += len(line)
        missing = [episode for episode in ids if episode not in group_of]
        if missing:
            raise UserError(
                f"{len(missing)} of the {len(ids)} episodes of step {step} are not in {file}, as {missing[0]}"
            )
        return [
            _group(name, [Episode.from_json(_line_at(lines, start)) for start in places[name]])
            for name in dict.fromkeys(group_of[id_] for id_ in ids)
        ]


def _line_at(lines: Any, start: int) -> str:
    lines.seek(start)
    return str(lines.readline(), "utf-8")


def _group(name: str, attempts: Sequence[Episode]) -> Group:
    """The last attempt of each episode of a group; what was run again has no reward."""
    last = {episode.id: episode for episode in sorted(attempts, key=lambda episode: episode.outcome.is_valid)}
    episodes = tuple(last[id_] for id_ in dict.fromkeys(episode.id for episode in attempts))
    return Group(task=episodes[0].task, episodes=episodes, id=name)


def _nearest(run: Path, step: int) -> tuple[Checkpoint, int]:
    """The checkpoint whose weights are nearest to those that the step began with, an older one of two equals; and their
    step, which is 0 for the model that the run began with."""
    steps = steps_of(run)
    if not steps:
        raise UserError(f"{run} holds no checkpoint, whose weights step {step} needs: train with --checkpoint.interval")
    newest = find(run)
    checkpoints = {*steps, *([] if newest.extra["warmup_steps"] else [0])}
    nearest = min(checkpoints, key=lambda other: (abs(other - (step - 1)), other))
    return (find(run, nearest) if nearest else newest), nearest


def _plan(run: Path, checkpoint: Checkpoint) -> RunPlan:
    """The plan of the run by the settings that its checkpoint records."""
    command, name = str(checkpoint.extra["command"]), str(checkpoint.extra["algorithm"])
    algorithm = find_algorithm(command.partition(" ")[2] or f"{command}:{name.upper()}")
    options = ["--output", str(run), "--resume", "true", "--checkpoint.step", str(checkpoint.step)]
    config = read_config(algorithm.config, options)
    return plan_settings(with_values(config, {"output": "", "resume": False, "checkpoint.step": 0}), algorithm)


def _model(run: Path, plan: RunPlan) -> Path:
    from agents.model_folder import INITIAL, find_model

    own = run / INITIAL
    return own if own.is_dir() else find_model(plan.config.model.path)


@contextmanager
def _trainer(run: Path, plan: RunPlan, checkpoint: Checkpoint, weights_step: int) -> Iterator[Any]:
    from trainers.titan.checkpoint import load_weights
    from trainers.titan.settings import TitanSettings
    from trainers.titan.trainer import TitanTrainer

    settings = TitanSettings(
        dtype="float32",
        learning_rate=0.0,
        max_grad_norm=plan.trainer.max_grad_norm,
        max_tokens_per_micro_batch=plan.trainer.max_tokens_per_micro_batch,
        replay=plan.trainer.replay,
        lora=plan.lora,
        seed=plan.trainer.seed,
    )
    with closing(TitanTrainer(_model(run, plan), settings)) as trainer:
        if plan.lora and (run / REFERENCE_ADAPTER).is_dir():
            trainer.keep_reference(run / REFERENCE_ADAPTER, is_written=True)
        if weights_step:
            load_weights(trainer.model, checkpoint.path)
        yield trainer


def _references(run: Path, plan: RunPlan, trainer: Any) -> Any:
    """What gives the logprobs of the reference model; None if the run has none."""
    from trainers.titan.trainer import TitanTrainer

    if plan.objective is None or plan.objective.kl_reference != "model":
        return None

    async def ask(samples: Sequence[Sample]) -> list[np.ndarray]:
        if plan.lora:
            logprobs: list[np.ndarray] = trainer.reference_logprobs(samples, plan.temperature)
            return logprobs
        with closing(TitanTrainer(_model(run, plan), trainer.settings, is_frozen=True)) as frozen:
            if (run / REFERENCE).is_file():
                frozen.read_weights(run / REFERENCE)
            return frozen.logprobs(samples, plan.temperature)

    return ask


class _Measured:
    """Measures the samples of a step, one by one and together."""

    def __init__(self, plan: RunPlan, objective: Objective, trainer: Any, samples: Sequence[Sample]) -> None:
        self._objective, self._trainer, self._samples = objective, trainer, samples
        self._call = LossCall(objective.loss)
        self._options = {"temperature": plan.temperature, "old_is_present": plan.old_logprobs == "trainer"}
        self._units = self._units_of(samples)
        self._learners = [i for i, s in enumerate(samples) if not (self._call.skips_idle and s.is_idle)]
        self._logprobs = trainer.logprobs(samples, plan.temperature)
        self._packed = _pack([samples[i] for i in self._learners], trainer)

    @property
    def batches(self) -> list[dict[str, int]]:
        """See `StepAgain.batches`."""
        shapes = [(*batch.tokens.shape, batch.units[0]) for batch in self._packed]
        return [dict(zip(("sequences", "length", "trained"), shape, strict=True)) for shape in shapes]

    def step(self) -> dict[str, float]:
        metrics: dict[str, float] = self._trainer.train_step(self._samples, self._objective.loss, **self._options)
        return metrics

    def row(self, index: int, episode: Episode, training_reward: float) -> StepRow:
        sample = self._samples[index]
        differences = np.abs(self._logprobs[index].astype(np.float64) - target_logprobs(episode))
        loss = grad_norm = 0.0
        units = self._units_of([sample])
        place = self._learners.index(index) if index in self._learners else -1  # its number in the micro-batches
        if place >= 0 and units:
            share = units / self._units
            alone = self._trainer.train_step([sample], self._objective.loss, **self._options)
            loss, grad_norm = alone["loss"] * share, alone["grad_norm"] * share
        return StepRow(
            episode=episode.id,
            env=episode.env,
            reward=episode.reward or 0.0,
            training_reward=training_reward,
            advantages=turn_values(sample.advantage, episode),
            tokens=sample.units[0],
            all_tokens=sum(len(row.token_ids) for row in sample.rows),
            masks=[[(bool(on), len([*run])) for on, run in groupby(row.loss_mask.tolist())] for row in sample.rows],
            batches=[n for n, batch in enumerate(self._packed) if place in batch.samples],
            difference=float(np.mean(differences[np.isfinite(differences)])) if sample.units[0] else 0.0,
            loss=loss,
            grad_norm=grad_norm,
        )

    def _units_of(self, samples: Sequence[Sample]) -> int:
        tokens, episodes = (sum(units) for units in zip((0, 0), *(sample.units for sample in samples), strict=True))
        return self._call.units(tokens, episodes)


def _pack(samples: Sequence[Sample], trainer: Any) -> list[MicroBatch]:
    """The micro-batches of one process, as the trainer makes them."""
    from trainers.batching.batch import pack
    from trainers.batching.packing import flops_crossover

    settings, crossover = trainer.settings, flops_crossover(trainer.model.shape)
    limits = {"max_tokens": settings.max_tokens_per_micro_batch, "pack_length": settings.pack_length}
    return pack(samples, pad_id=0, crossover=crossover, **limits)


def _largest_difference(rows: Sequence[StepRow], rows_then: Sequence[Trained]) -> float:
    advantages_then = {line.episode: line.advantages for line in rows_then}
    pairs = (zip(row.advantages, advantages_then.get(row.episode, ()), strict=False) for row in rows)
    return max((abs(a - b) for both in pairs for a, b in both), default=0.0)


def _missing(rows: Sequence[StepRow], lines: Sequence[Trained]) -> Iterator[str]:
    """Yield a note if other episodes are trained on than were."""
    now, then = [row.episode for row in rows], [line.episode for line in lines]
    if set(now) != set(then):
        missing, others = {*then} - {*now}, {*now} - {*then}
        yield f"{len(missing)} episodes of the step are not trained on now, and {len(others)} others are"


def _notes(plan: RunPlan, step: int, weights_step: int) -> Iterator[str]:
    """Yield why the figures may differ from the recorded ones."""
    if weights_step != step - 1:
        yield f"the weights are of step {weights_step}, and step {step} began with those of step {step - 1}"
    if plan.trainer_dtype != "float32":
        yield f"the run trained in {plan.trainer_dtype}, and this is float32"
    if (step - 1) % plan.window:
        yield "the old logprobs are the present ones, and those of the run were of the first step of the window"


def parts_of(result: StepAgain) -> dict[str, tuple[float, float | None]]:
    """By name: a figure of the step now, and as it was recorded; None if it was not."""
    parts = {name: (result.now[name], result.recorded.get(name)) for name in COMPARED if name in result.now}
    return {**parts, "sum of the rows' losses": (math.fsum(row.loss for row in result.rows), parts["loss"][1])}
