"""The warm-up: supervised steps on an environment's own demonstrations, before reinforcement learning."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from forge_env.core.episode import Episode
from forge_env.core.errors import NothingTrained, UserError
from forge_env.core.reward_value import reaches
from forge_env.core.types import EpisodeLimits, Task
from forge_env.evaluation.evaluate import Evaluation, evaluate, is_success
from forge_env.evaluation.kinds import Kinds
from forge_env.evaluation.metrics import reward_part_metrics
from forge_env.rollout.rollout import GroupSpec
from trainers.batching.batch import Sample
from trainers.objective.plain_losses import SFTLoss
from trainers.run.rollouts import Rollouts
from trainers.run.run import Run
from trainers.settings.tasks import WarmupConfig
from trainers.setup.run_plan import EnvShare

LEAST_EXPECTED = 5
"""Tasks of a kind: with so many expected, less than one in a hundred runs has none of them by chance."""


def tasks_after_warmup(warmup: WarmupConfig, tasks: Sequence[Task]) -> Sequence[Task]:
    """The training tasks in the order of their first pass; those that the warm-up demonstrated come last.

    The model has memorised tasks that were demonstrated several times; training on them would reward memorisation.
    """
    shown = tasks_to_demonstrate(tasks, warmup) if warmup.steps else ()
    return [*tasks[len(shown) :], *shown] if shown else tasks


def kinds_left_out(warmup: WarmupConfig, tasks: Sequence[Task], count: int) -> list[str]:
    """Kinds of the demonstrated tasks that the first `count` tasks after the warm-up lack: a policy may forget them.

    A kind that is so rare that fewer than `LEAST_EXPECTED` tasks were to be expected is not named.
    """
    kinds = Counter(task.kind for task in tasks_to_demonstrate(tasks, warmup))
    kinds_after = {task.kind for task in tasks_after_warmup(warmup, tasks)[:count]}
    least = LEAST_EXPECTED / count * kinds.total()
    return sorted(kind for kind, number in kinds.items() if kind not in kinds_after and number >= least)


async def warm_up(
    run: Run, steps: int, *, around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
) -> int:
    """At most `steps` steps on the expert's episodes, which teach the format of a call; returns their number.

    Stops early, at a probe that succeeds often enough.
    """
    warmup = run.plan.config.warmup
    demonstrations, run.demonstrations = run.demonstrations, ()
    sft_batches = batches(demonstrations, warmup.batch_size, seed=run.plan.config.training.seed, balance=warmup.balance)
    loss, probe = SFTLoss(), Evaluation(episodes=())  # the last one
    names, now = ("loss", "success"), time.perf_counter()
    run.record.follow("warmup", title="warm-up, at most", total=steps, names=names, since=now)
    counts = SkippedSteps(phase="the warm-up", rate="warmup.learning_rate", most=run.plan.config.training.signal_error)
    for step in range(1, steps + 1):
        async with around():
            metrics = await run.trainer.step([Sample(rows=e.rows) for e in next(sft_batches)], loss)
        counts.add(metrics)
        is_enough = False
        if step % warmup.probe_every == 0 and warmup.until_success < 1:
            probe = await _probe(run, step)
            metrics |= (
                {"success": probe.success_rate} | reward_part_metrics(probe.parts) | run.kinds.evaluation_metrics(probe)
            )
            is_enough = learned_enough(warmup, probe, run.kinds)
        run.record.metrics("warmup", step, metrics)
        run.caller.check()
        if is_enough:
            break
    counts.check(metrics)
    success = f", success on probe tasks {probe.success_rate:.3f}" if probe.attempts else ""
    run.record.say(f"warm-up of {step} steps: loss {metrics['loss']:.3f}{success}")
    if (text := overshoot(warmup, probe)) and not run.kinds.environments:  # else one may have waited for another
        run.record.warn(text)
    return step


def overshoot(warmup: WarmupConfig, probe: Evaluation) -> str:
    """A warning if the last probe is above the goal by more than chance; "" otherwise."""
    goal, success = warmup.until_success, probe.success_rate
    if not probe.attempts or warmup.until_each_kind or probe.interval[0] <= goal:
        return ""
    sooner = " --warmup.probe_every 1 or" if warmup.probe_every > 1 else ""
    return (
        f"warning: the warm-up overshot its goal: success on probe tasks is {success:.3f}, {success - goal:.3f} above "
        f"--warmup.until_success {goal:g}, so that less is left to learn by reward: try{sooner} a lower "
        f"--warmup.learning_rate (now {warmup.learning_rate:g})"
    )


def learned_enough(warmup: WarmupConfig, probe: Evaluation, kinds: Kinds) -> bool:
    """Whether a probe shows the success at which the warm-up stops, over all its tasks, in each of several
    environments, and in each kind that it has."""
    goals = dict.fromkeys(kinds.environments, warmup.until_success)
    rates = {name: part.success_rate for name, part in kinds.split(probe.episodes).items() if part.attempts}
    return reaches(probe.success_rate, warmup.until_success) and all(
        reaches(rate, goals.get(name, warmup.until_each_kind)) for name, rate in rates.items()
    )


def tasks_to_demonstrate(tasks: Sequence[Task], warmup: WarmupConfig) -> Sequence[Task]:
    """The training tasks that the expert shows: the first ones, but none of the probe's."""
    return tasks[: max(1, len(tasks) - len(tasks_to_probe(tasks, warmup)))][: warmup.demonstrations]


def tasks_to_probe(tasks: Sequence[Task], warmup: WarmupConfig) -> Sequence[Task]:
    """The training tasks of a probe: the last ones, but at most half of all. None if nothing is probed."""
    is_probed = warmup.until_success < 1
    return tasks[-min(warmup.probe_tasks, max(1, len(tasks) // 2)) :] if is_probed else ()


async def demonstrate(rollouts: Rollouts, train_tasks: Mapping[str, Sequence[Task]]) -> list[Episode]:
    """Let the experts of the environments solve training tasks; returns full successes within the limits of each. It
    needs no engine."""
    with rollouts.record.phase("demonstrations"):
        return [e for share in rollouts.plan.environments for e in await _demonstrate(rollouts, share, train_tasks)]


async def _demonstrate(rollouts: Rollouts, share: EnvShare, train_tasks: Mapping[str, Sequence[Task]]) -> list[Episode]:
    start_time, plan, record = time.perf_counter(), rollouts.plan, rollouts.record
    phase, warmup, env = "demonstrations", share.config.warmup, share.config.env
    can_demonstrate = share.factory.env_class.can_demonstrate
    candidates = tasks_to_demonstrate(train_tasks[share.label], warmup)
    tasks = [task for task in candidates if warmup.expert or can_demonstrate(task)]
    if not share.weight:
        return []
    async with rollouts.moving(phase):
        result = await evaluate(
            lambda task, i: rollouts.run_group(rollouts.spec(phase, i, task, env=share.label, agent="expert")),
            tasks,
            concurrency=plan.episodes_at_once,
            on_done=lambda number: record.progress(phase, number, len(tasks), {}, since=start_time),
        )
    record.episodes(phase, result.episodes)
    successes = [episode for episode in result.valid if is_success(episode)]
    if not successes:
        reason = next((f": {episode.error}" for episode in result.episodes if episode.error), "")
        limits = (f", for --env.{limit} ended {count} of its episodes" for limit, count in result.ended_by.items())
        reason = reason or "".join(limits)
        raise UserError(f"the expert of {env.name} solved none of its own tasks; the warm-up has no data{reason}")
    if result.faults:
        record.warn(faults_of(result))
    within = within_limits(env.name, successes, env.limits())
    if len(within) < len(successes):
        left_out = f"{len(successes) - len(within)} of {len(successes)} demonstrations"
        record.warn(f"warning: {left_out} are left out: they are longer than --env.max_turn_tokens or --env.max_tokens")
    return within


def faults_of(demonstrations: Evaluation) -> str:
    """A warning of the faults that ended demonstrations, with the most frequent error."""
    errors = Counter(e.error or "no error was given" for e in demonstrations.episodes if not e.outcome.is_attempt)
    (error, count), *others = errors.most_common()
    which = f"{count:,} of them" if others else "all of them"
    return (
        f"warning: faults ended {demonstrations.faults:,} of {len(demonstrations.episodes):,} demonstrations, and the "
        f"warm-up does not have them; {which}: {error}"
    )


def within_limits(env: str, episodes: Sequence[Episode], limits: EpisodeLimits) -> list[Episode]:
    """The episodes that a policy can play: nothing limits the tokens of an expert."""

    def turn(episode: Episode) -> int:
        return max(len(turn.token_ids) for turn in episode.turns)

    def row(episode: Episode) -> int:
        return max(len(row.token_ids) for row in episode.rows)

    for name, where, size in (("max_turn_tokens", "in a turn", turn), ("max_tokens", "in an episode", row)):
        limit, sizes = getattr(limits, name), [size(episode) for episode in episodes]
        episodes = [episode for episode, tokens in zip(episodes, sizes, strict=True) if tokens <= limit]
        if not episodes:
            need = f"the expert of {env} needs {min(sizes)} to {max(sizes)} tokens {where}"
            raise UserError(f"{need}, and --env.{name} is {limit}: set it to {max(sizes)} or more")
    return list(episodes)


def first_part(until_success: float) -> int:
    """Probe tasks of which a policy at the goal fails all in one probe of a hundred: (1 - goal)^tasks is 0.01."""
    return math.ceil(math.log(0.01) / math.log1p(-until_success)) if 0 < until_success < 1 else 1


async def _probe(run: Run, step: int) -> Evaluation:
    """Measure the present weights on training tasks that no demonstration shows.

    A probe ends after its first part if no task of it is solved: so a model that can do nothing yet costs little.
    """
    await run.weights.sync(steps=0)
    first, rest, part = list[GroupSpec](), list[GroupSpec](), first_part(run.plan.config.warmup.until_success)
    for share in (share for share in run.plan.environments if share.weight):
        specs = [
            run.rollouts.spec(f"probe/{step}", i, task, env=share.label, agent="policy", is_measured=True)
            for i, task in enumerate(tasks_to_probe(run.train_tasks[share.label], share.config.warmup))
        ]
        first, rest = [*first, *specs[:part]], [*rest, *specs[part:]]
    probe = await run.rollouts.measure(first)
    if not probe.successes or not rest:
        return probe
    return Evaluation(episodes=probe.episodes + (await run.rollouts.measure(rest)).episodes)


_LENGTHS: Mapping[str, Callable[[Episode], int]] = {
    "none": lambda episode: 0,
    "length": lambda episode: sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in episode.turns),
    "answer": lambda episode: len(episode.turns[-1].token_ids),
}
"""Value of `WarmupConfig.balance` -> the length of a demonstration, in tokens, that it looks at."""


def batches(
    episodes: Sequence[Episode], size: int, *, seed: int, balance: Literal["none", "length", "answer"]
) -> Iterator[list[Episode]]:
    """Go through the demonstrations again and again, in a new order each time.

    With balance "length" or "answer" this is done for each length by itself, and a batch draws the lengths. A length
    weighs as many demonstrations as it has, at most `size`: so common lengths come equally often, and none that is rare
    is repeated without end. A small model copies numbers from a fixed distance. If nearly all demonstrations have one
    length, it solves that length alone, and reinforcement learning gets no signal from the others.

    Args:
        balance: see `WarmupConfig.balance`.
    """
    rng, draws = random.Random(seed), random.Random(f"lengths/{seed}")
    by_length: dict[int, list[Episode]] = {}
    for episode in episodes:
        by_length.setdefault(_LENGTHS[balance](episode), []).append(episode)
    orders = [_again_and_again(members, rng) for members in by_length.values()]
    weights = [min(len(members), size) for members in by_length.values()]
    while True:
        yield [next(order) for order in draws.choices(orders, weights, k=size)]


def _again_and_again(episodes: Sequence[Episode], rng: random.Random) -> Iterator[Episode]:
    while True:
        yield from rng.sample(episodes, len(episodes))


@dataclass(slots=True, kw_only=True)
class SkippedSteps:
    phase: str
    """Its name, such as "the warm-up"."""
    rate: str
    """The option of its learning rate."""
    most: int
    """Of the first steps that may be skipped before the phase ends; 0 is without end."""
    taken: int = 0
    skipped: int = 0

    def add(self, metrics: Mapping[str, float]) -> None:
        self.taken, self.skipped = self.taken + (not metrics["skipped"]), self.skipped + bool(metrics["skipped"])
        if self.skipped == self.most:
            self.check(metrics)

    def check(self, metrics: Mapping[str, float]) -> None:
        if not self.taken and self.skipped:
            why = (
                f"loss or gradient was not finite: lower --{self.rate}" if metrics["tokens"] else "no token was learned"
            )
            raise NothingTrained(f"{self.phase} trained nothing: none of its {self.skipped} steps was taken, as {why}")
