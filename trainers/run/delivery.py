"""Delivery: whether the engines generate from the weights that the trainer has published.

After every update the trainer and each engine score one fixed prompt. What an engine scored at its start, and what the
trainer scored with the same folder, is the start of both. After it, an engine must move as the trainer moves:

    moved = trainer now - trainer at the newest update that this engine has proved, or at the start
    rest  = engine now - engine then - moved

Moves add up until they are clearly larger than rounding: until then, the newest proved update stays the same. An engine
that keeps older weights, or the model of the start, leaves the whole move as a rest. Medians over the tokens, so that
a few tokens at which rounding is amplified, by a choice of other experts for example, decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agents.generator.engine_args import approximations
from agents.generator.policy import Scored
from forge_env.core.errors import ServiceError
from trainers.setup.run_plan import RunPlan

PROMPT = tuple(3 + 7 * place % 61 for place in range(16))
"""Token ids that every vocabulary has."""
UPDATES = 2
"""If an engine has not moved for this many updates in a row, the run stops."""
NOISE = {"float32": 1e-5, "bfloat16": 1e-2}
"""Of a logprob, at least: models that are peaked more than the first one round more."""
CLEAR = 3.0
"""A move is judged if its largest allowed rest is at least this many times the noise."""
MOST_MISSING = {True: 1 / 3, False: 3 / 4}
"""Of a move, by whether the engine's rounding is the trainer's. A coarser engine may lose half of a small update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proved:
    """An engine, and both answers to the prompt at the newest update that it has proved."""

    version: int
    engine: np.ndarray
    trainer: np.ndarray
    noise: float
    failures: frozenset[int] = frozenset()
    """Updates since then after which its answer was not the trainer's; an engine may pull one twice."""
    failure: str = ""
    """The last of them, as a clause."""


class Delivery:
    """Compares the answers to the prompt, update by update.

    Args:
        precision: what the coarser of trainer and engine computes in.
        is_exact: whether an engine rounds as the trainer does, so that equal weights give equal answers but for noise.
        context: the most tokens that an engine reads.
    """

    def __init__(self, *, precision: str = "float32", is_exact: bool = True, context: int = 1024) -> None:
        self.prompt = PROMPT[: context - 1]
        self._floor, self._is_exact = NOISE[precision], is_exact
        self._trainer: dict[int, np.ndarray] = {}  # by version; -1 is the model's folder
        self._starts: dict[str, np.ndarray] = {}  # engines that nothing was judged of
        self._engines: dict[str, _Proved] = {}

    def note_update(self, version: int, trainer: np.ndarray) -> None:
        """Note what the trainer scores with the weights of a version; -1 is the model's folder."""
        self._trainer = {older: value for older, value in self._trainer.items() if older in (-1, version - 1)}
        self._trainer[version] = np.asarray(trainer, dtype=np.float64)

    def note_start(self, score: Scored) -> None:
        """Note what a new engine scores with the model's folder, before any update."""
        self._engines.pop(score.engine, None)
        self._starts.pop(score.engine, None)
        if score.logprobs:
            self._starts[score.engine] = np.array(score.logprobs)

    def check(self, version: int, scores: Sequence[Scored]) -> dict[str, float]:
        """Judge what engines score after they have taken a version over.

        Returns:
            delivery/difference, the largest of any engine; and delivery/missing, if a move could be judged. Neither for
            a version that two later ones have replaced.
        """
        if (trainer := self._trainer.get(version)) is None:
            return {}  # they came while a new engine took it over, which takes the newest over next
        differences, missing = [], []
        for name, logprobs in scores:
            if not logprobs:
                continue  # it was too busy
            engine = np.array(logprobs)
            differences.append(_size(engine - trainer))
            if (before := self._last_proof(name)) is None:
                continue
            change = trainer - before.trainer
            size, by_engine, rest = _size(change), _size(engine - before.engine), _size(engine - before.engine - change)
            # Bits that are the same are clearer than any difference: an update changes some, however small it is.
            is_same = self._is_exact and bool(np.array_equal(engine, before.engine))
            most = MOST_MISSING[self._is_exact] * size
            if not (size > self._floor / 10 if is_same else most > CLEAR * before.noise):
                # Noise grows with a model that becomes more peaked. An engine that stands still shows none.
                self._engines[name] = replace(before, noise=max(before.noise, min(by_engine, rest)))
                continue
            missing.append(rest / size)
            if rest <= most:
                noise = max(self._floor, rest, before.noise / 2)  # a rest may be small by chance
                self._engines[name] = _Proved(version=version, engine=engine, trainer=trainer, noise=noise)
            else:
                failure = _failure(before, version, size, by_engine, rest)
                self._engines[name] = replace(before, failures=before.failures | {version}, failure=failure)
        by_metric = {"delivery/difference": differences, "delivery/missing": missing}
        return {metric: max(values) for metric, values in by_metric.items() if values}

    def refuse(self) -> None:
        """Stop the run if an engine has not moved for `UPDATES` updates."""
        for name, engine in self._engines.items():
            if len(engine.failures) >= UPDATES:
                raise ServiceError(
                    f"the engine {name} does not generate from the trainer's weights, after {len(engine.failures)} "
                    f"updates in a row: {engine.failure}. Leave settings of --services.generator.engine out, try "
                    f"another --lora.publish if adapters are trained, and see logs/{name}.log of the run"
                )

    def _last_proof(self, name: str) -> _Proved | None:
        """The newest update that an engine has proved; of a new one that is its start."""
        start = self._trainer.get(-1)
        if name not in self._engines and name in self._starts and start is not None:
            engine = self._starts[name]
            noise = max(self._floor, _size(engine - start))
            self._engines[name] = _Proved(version=-1, engine=engine, trainer=start, noise=noise)
        return self._engines.get(name)


def make_delivery(plan: RunPlan) -> Delivery:
    """The comparison of a run, for the dtypes of its trainer and its engines."""
    return Delivery(precision=plan.precision, is_exact=_is_exact(plan), context=plan.engine.max_model_len)


def _is_exact(plan: RunPlan) -> bool:
    trained_in, lora, shape = plan.trainer_dtype, plan.lora, plan.model.shape
    if plan.engine.dtype != trained_in or approximations(plan.engine.engine_args) or shape is None or shape.num_experts:
        return False
    is_rounded_alike = plan.trainer.head_dtype(trained_in) == trained_in and not (lora and lora.publish == "merged")
    return trained_in == "float32" or is_rounded_alike


def _failure(before: _Proved, version: int, trainer: float, engine: float, rest: float) -> str:
    since = "the start" if before.version < 0 else f"update {before.version}"
    as_what = "the model of the start" if before.version < 0 else "before"
    sentence = (
        f"at update {version} the trainer's logprobs of a fixed prompt have moved by {trainer:.2g} since {since}, the "
        f"engine's by {engine:.2g}, and {rest:.2g} is between the two moves"
    )
    return f"{sentence}: it answers as {as_what}" if engine < trainer / 4 else sentence


def _size(difference: Any) -> float:
    """The median absolute value, in nats a token."""
    return float(np.median(np.abs(difference)))
