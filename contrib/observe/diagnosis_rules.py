"""The rules that find out whether a run does not learn: each looks at the metrics of the last steps.

The bounds are far from the values of a run that learns, so that a finding is worth its interruption. docs/metrics.md
lists the rules.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

WINDOW = 20
"""Steps that a rule looks at: few enough to see a change, and enough to average over."""
FEW = 5
"""Steps of the present state, where a change has to be seen soon."""
LEAST_GROUPS = 32
"""Groups, and episodes, below which nothing is concluded: a lucky step of a small batch is not a finding."""
MOST = 0.8
"""Share of groups without a signal: then a step learns from less than a fifth of its samples."""
PART = 0.25
"""Share of the groups without a signal above which failed and solved ones are both a cause."""
SOLVED = 0.9
"""Above this success little is left to learn."""
TRUNCATED = 0.5
"""Share of episodes that a limit on tokens ended: then most rewards belong to cut texts."""
CLIPPED = 0.4
"""Share of clipped tokens. GSPO, which clips most, clips 0.15 (arXiv 2507.18071, figure 2); other losses far fewer."""
LEAST_ESS = 0.5
"""Effective sample size, as a share of the tokens, below which a few tokens outweigh all others."""
COLLAPSED = 0.1
"""Share of the first entropy that counts as a collapse: a policy that hardly explores repeats what it does."""
BLOWN_UP, BLOWN_UP_BY = 3.0, 0.5
"""A blow-up is this many times the first entropy, and above it by this many nats a token."""
HALF = 0.5
"""Share of an earlier success below which the present one counts as fallen, whatever the noise."""
NEAR_LOWEST = 0.25
"""Part of the range between the lowest step and the best ones that a fallen reward is in."""
FALLEN = 4.0
"""Standard errors of a fall; the best of many steps is above its mean by chance, so that 2 would not do."""
MOVED = 2.0
"""Standard errors of a movement."""
APART = 0.2
"""How far success in training is above the interval of the held-out success if the one does not carry over."""

CHEATING = 0.05
"""Share of the rewarded episodes that look like one known cheat; training raises what is rewarded."""
CHEATS = "cheats/rewarded"

Values = Mapping[str, float]
KEPT = (
    *("loss", "skipped", "success", "tokens", "training_reward", "training_reward_std"),
    *("episodes", "entropy", "ess", "clipped_low", "clipped_high"),
)
PREFIXES = ("signal/", "ended_by/", CHEATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the sentences about a run say of its settings."""

    algorithm: str = "grpo"
    env: str = ""
    reward: str = ""
    """The function in the place of the environment's reward; "" for none."""
    loss: str = ""
    """The loss in the place of the algorithm's; "" for none."""
    learning_rate: float = 0.0
    n_samples: int = 0
    max_turn_tokens: int = 0
    max_tokens: int = 0
    sync_interval: int = 1
    staleness: int = 0
    entropy_coef: float = 0.0
    needs_siblings: bool = True
    """Whether a group with one reward for all its episodes teaches nothing."""
    resamples: bool = False
    """Whether such a group is dropped and sampled anew."""
    mismatch_bounds: str = ""
    """How far trainer and engine may be apart, for people."""
    approximations: Sequence[str] = ()
    """Settings of the engine that change its logprobs."""


class Case(NamedTuple):
    """What a rule has found."""

    kind: str
    measured: str
    cause: str
    settings: str


@dataclass
class History:
    """What the rules look at: the beginning of a run, its last steps, and its evaluations."""

    first: list[Values] = field(default_factory=list)
    recent: deque[Values] = field(default_factory=lambda: deque(maxlen=2 * WINDOW))
    evaluations: list[Values] = field(default_factory=list)
    waiting: Values = field(default_factory=dict)
    """Counts of groups that were dropped since the last step."""
    steps: int = 0
    last_step: int = 0
    is_done: bool = False
    alarms: int = 0
    """Steps in which trainer and engine were too far apart."""
    alarm: Values = field(default_factory=dict)
    """The metrics of the last step, if it is one of them."""
    best: float = -math.inf
    """The highest mean of `FEW` steps of the training reward."""
    lowest: float = math.inf
    """The training reward of the worst step."""

    def add(self, step: int, values: Values) -> None:
        record = {name: value for name, value in values.items() if name in KEPT or name.startswith(PREFIXES)}
        self.steps, self.last_step, self.waiting = self.steps + 1, step, {}
        if len(self.first) < WINDOW:
            self.first.append(record)
        self.recent.append(record)
        self.alarm = dict(values) if values.get("mismatch_alarm") else {}
        self.alarms += bool(self.alarm)
        if (reward := values.get("training_reward")) is not None:
            self.lowest = min(self.lowest, reward)
            if len(self.recent) >= FEW:
                self.best = max(self.best, _mean(self.last(FEW), "training_reward"))

    def last(self, count: int = WINDOW) -> list[Values]:
        return list(self.recent)[-count:]

    def add_evaluation(self, values: Values) -> None:
        """Add an evaluation, with the success of the training at that time."""
        now = {"training_success": _mean(self.last(FEW), "success")} if len(self.recent) >= FEW else {}
        self.evaluations.append({**values, **now})

    @property
    def has_risen(self) -> bool:
        """Whether success rose from the first steps to the last ones by more than chance."""
        (before, noise), (now, noise_now) = _estimate(self.first, "success"), _estimate(self.last(), "success")
        return now - before > MOVED * math.hypot(noise, noise_now) and now - before > 0.01

    @property
    def has_learned(self) -> bool:
        """Whether success rose by more than chance, in training or on held-out tasks."""
        first, newest = (self.evaluations or [{}])[0], (self.evaluations or [{}])[-1]
        return self.has_risen or newest.get("success_low", 0.0) > first.get("success_high", 1.0)


def cases(history: History, facts: RunFacts) -> Iterator[Case]:
    """Everything that is true of the present state. A cause that explains another finding takes its place."""
    of_rewards, of_steps = (_not_finite, _constant, _cheating, _falling, _no_signal), (_truncated, _clipped, _mismatch)
    rules = (*of_rewards, *of_steps, _entropy, _apart)
    all_cases = [case for rule in rules if (case := rule(history, facts)) is not None]
    kinds = {case.kind for case in all_cases}
    hidden = {"too_hard", "too_easy", "too_easy_and_too_hard", "no_signal"} if "rewards_constant" in kinds else set()
    hidden |= {"too_hard"} if "falling" in kinds else set()
    hidden |= kinds - {"not_finite"} if "not_finite" in kinds else set()
    yield from (case for case in all_cases if case.kind not in hidden)
    if not all_cases and (case := _not_moving(history, facts)) is not None:
        yield case


# ---- the rules ----


def _not_finite(history: History, facts: RunFacts) -> Case | None:
    steps = history.last(FEW)
    skips = [record for record in steps if record.get("skipped") and record.get("tokens")]
    if len(skips) < 2 or 2 * len(skips) < len(steps):
        return None
    of_loss = sum(not math.isfinite(record.get("loss", 0.0)) for record in skips)
    what = "the loss" if of_loss else "the gradient"
    own = f"--loss {facts.loss}"
    return Case(
        "not_finite",
        f"{len(skips)} of the last {len(steps)} steps were skipped: {what} was not finite",
        f"{own} divides by 0, or leaves the range of its numbers" if facts.loss else "the steps are too large",
        f"values of your own in {own}"
        if facts.loss
        else f"a lower --training.learning_rate (now {facts.learning_rate:g})",
    )


def _constant(history: History, facts: RunFacts) -> Case | None:
    steps = history.last()
    rewards = {round(record["training_reward"], 9) for record in steps if "training_reward" in record}
    spread = max((record.get("training_reward_std", 1.0) for record in steps), default=1.0)
    episodes = int(_sum(steps, "episodes"))
    if episodes < LEAST_GROUPS or len(rewards) != 1 or spread > 1e-9 * max(1.0, *map(abs, rewards)):
        return None
    (reward,), success = rewards, _mean(steps, "success")
    if not facts.reward and facts.needs_siblings and (success == 1 or (success == 0 and reward == 0)):
        return None  # the tasks are too easy or too hard
    evidence = f"all {episodes:,} episodes of the last {len(steps)} steps had the reward {reward:g}"
    if facts.reward:
        evidence += f", and the environment's success was {success:.2f}"
    source = f"the function --reward {facts.reward}" if facts.reward else f"the reward of {facts.env}"
    return Case(
        "rewards_constant",
        evidence,
        f"{source} does not depend on what the model does",
        "a reward that tells a good episode from a bad one; `forge-env check "
        f"{facts.env}` plays the expert and known cheats",
    )


def _cheating(history: History, facts: RunFacts) -> Case | None:
    steps = [record for record in history.last(FEW) if CHEATS in record]  # those with a rewarded episode
    names = {name for record in steps for name in record if name.startswith(f"{CHEATS}/")}
    often = [name for name in names if sum(record.get(name, 0.0) > 0 for record in steps) > 1]
    if not often or _sum(steps, "episodes") < LEAST_GROUPS:
        return None
    share, name = max((_sum(steps, name) / len(steps), name) for name in often)
    if share < CHEATING:
        return None
    first = [record for record in history.first[:FEW] if CHEATS in record]
    before = _sum(first, name) / max(1, len(first))
    return Case(
        "cheats",
        f"{share:.0%} of the rewarded episodes of the last {FEW} steps end like the cheat "
        f"{name.removeprefix(CHEATS + '/')!r}; in the first {FEW} steps it was {before:.0%}",
        "the reward can be had without the work, and the model learns that",
        f"a grader that does not reward it; `forge-env check {facts.env}` attacks the grader by this cheat",
    )


def _falling(history: History, facts: RunFacts) -> Case | None:
    evidence = _fallen_reward(history) or _fallen_success(history)
    if not evidence:
        return None
    return Case(
        "falling",
        evidence,
        "the steps are too large and undo what the model knew",
        f"a lower --training.learning_rate (now {facts.learning_rate:g}), a longer --training.warmup_steps, or "
        f"--{facts.algorithm}.beta 0.01 to hold the model near its start",
    )


def _fallen_reward(history: History) -> str:
    """The training reward fell far below its best steps, and stays near its worst one."""
    if history.steps < 3 * FEW:
        return ""
    now = _mean(history.last(FEW), "training_reward")
    # From step to step, so that a slow movement of the mean is not noise.
    rewards = [record["training_reward"] for record in history.recent if "training_reward" in record]
    noise = math.sqrt(_mean_of([(b - a) ** 2 for a, b in pairwise(rewards)]) / 2 / FEW)
    is_low = now <= history.lowest + NEAR_LOWEST * (history.best - history.lowest)
    if not (is_low and history.best - now > FALLEN * math.sqrt(2) * noise and history.best - now > 1e-9):
        return ""
    return f"the reward of the last {FEW} steps is {now:.3g}, and its best {FEW} steps had {history.best:.3g}"


def _fallen_success(history: History) -> str:
    bounds = [(e["success"], e["success_low"]) for e in history.evaluations if {"success", "success_low"} <= e.keys()]
    if not bounds:
        return ""
    best, low = max(bounds, key=lambda bound: bound[1])
    newest = history.evaluations[-1]
    if len(history.evaluations) > 1 and newest.get("success_high", 1.0) < low:
        return f"held-out success is {newest['success']:.3f}, and was {best:.3f} before"
    steps = history.last(FEW)
    if len(steps) < FEW or _sum(steps, "episodes") < LEAST_GROUPS:
        return ""
    now = _mean(steps, "success")
    # The training tasks may be harder than the held-out ones: the training itself must not have had it so low before.
    had = max((record.get("success", 0.0) for record in history.first[:1]), default=0.0)
    if now >= HALF * low or now >= HALF * had:
        return ""
    return f"success in training is {now:.3f} over the last {FEW} steps, and held-out success was {best:.3f} before"


def _no_signal(history: History, facts: RunFacts) -> Case | None:
    if not facts.needs_siblings:
        return None
    records = [*history.last(), history.waiting]
    groups, failures, successes, same = (
        int(_sum(records, f"signal/{n}")) for n in ("groups", "failed", "solved", "same")
    )
    without = failures + successes + same
    if groups < LEAST_GROUPS or without < MOST * groups:
        return None
    if successes >= failures and history.has_risen:
        return None  # it has learned them
    fate = "dropped and sampled anew" if facts.resamples else "trained on without effect"
    evidence = (
        f"{without:,} of the last {groups:,} groups had one reward for all their episodes and were {fate}: "
        f"{failures:,} without a success, {successes:,} with successes only{_by_kind(records)}"
    )
    easier = (
        f"easier tasks or a stronger model (`forge-env info {facts.env}` shows the options), a longer warm-up, more "
        f"episodes of a task (--{facts.algorithm}.n_samples, now {facts.n_samples}), or a reward for parts of the "
        f"answer; `forge-env check {facts.env}` shows whether the expert earns the reward"
    )
    harder = f"harder tasks (`forge-env info {facts.env}` shows the options), or fewer steps"
    if same > failures + successes:
        cause = "the reward gives all episodes of a task the same value"
        return Case("no_signal", evidence, cause, f"a reward that tells the episodes of a task apart; {easier}")
    if min(failures, successes) >= PART * without:
        cause = "some kinds of task are too easy for this policy, and others too hard"
        return Case("too_easy_and_too_hard", evidence, cause, f"tasks in between; for the hard ones {easier}")
    if failures >= successes:
        return Case("too_hard", evidence, "the tasks are too hard for this policy, or are never rewarded", easier)
    return Case("too_easy", evidence, "the tasks are too easy for this policy", harder)


def _by_kind(records: Sequence[Values]) -> str:
    """The kinds of task in which most groups have no signal; "" if tasks have no kinds."""
    names = dict.fromkeys(name for r in records for name in r if name.startswith("signal/groups/"))
    parts = []
    for name in names:
        kind = name.removeprefix("signal/groups/")
        groups = _sum(records, name)
        for fate in ("failed", "solved"):
            count = _sum(records, f"signal/{fate}/{kind}")
            if count >= MOST * groups:
                parts.append(f"{kind} {fate} {count:,.0f} of {groups:,.0f}")
    lines = parts[:8] + ([f"{len(parts) - 8} more kinds"] if len(parts) > 8 else [])
    return f" (by kind: {', '.join(lines)})" if lines else ""


def _truncated(history: History, facts: RunFacts) -> Case | None:
    steps = history.last()
    episodes = _sum(steps, "episodes")
    if episodes < LEAST_GROUPS:
        return None
    limits = {"max_turn_tokens": facts.max_turn_tokens, "max_tokens": facts.max_tokens}
    counts = [sum(r.get(f"ended_by/{name}", 0.0) * r.get("episodes", 0.0) for r in steps) for name in limits]
    if sum(counts) < TRUNCATED * episodes:
        return None
    counts_by_limit = {name: count for name, count in zip(limits, counts, strict=True) if count >= 0.5}
    by_limit = ", ".join(f"{count:,.0f} by {name} ({limits[name]})" for name, count in counts_by_limit.items())
    options = " or ".join(f"--env.{name}" for name in counts_by_limit)
    return Case(
        "truncated",
        f"of {episodes:,.0f} episodes of the last {len(steps)} steps a limit on tokens ended {by_limit}",
        "the model is cut off before it can answer",
        f"a higher {options}, or a prompt or a warm-up that shows short answers",
    )


def _clipped(history: History, facts: RunFacts) -> Case | None:
    steps = history.last()
    if len(steps) < FEW:
        return None
    clipped = _mean(steps, "clipped_low") + _mean(steps, "clipped_high")
    ess = _mean(steps, "ess", default=1.0)
    if clipped < CLIPPED and ess > LEAST_ESS:
        return None
    return Case(
        "clipped",
        f"over the last {len(steps)} steps {clipped:.0%} of the tokens were clipped, and the effective sample size was "
        f"{ess:.0%} of them",
        "the policy is far from the one that sampled",
        f"a lower --training.learning_rate (now {facts.learning_rate:g}), or fewer steps between sampling and "
        f"training: --training.sync_interval (now {facts.sync_interval}), --training.staleness (now {facts.staleness})",
    )


def _mismatch(history: History, facts: RunFacts) -> Case | None:
    if not history.alarm:
        return None
    difference, kl = (history.alarm.get(name, math.nan) for name in ("mean_abs_logprob_difference", "kl"))
    approximate = "".join(f"{name} of the engine, " for name in facts.approximations)
    return Case(
        "mismatch",
        f"trainer and engine disagreed on the same weights in {history.alarms:,} steps so far, now by mean |logprob "
        f"difference| {difference:.2g} and k3 {kl:.2g}, above {facts.mismatch_bounds}",
        f"{approximate}a sampling temperature that the trainer does not know of, stale weights in the engine, a chat "
        "template or tokenizer that gives the two different tokens, or an engine that computes in another dtype",
        "the engine's settings one by one (--services.generator.engine), --training.fp32_head true; "
        "--training.mismatch_alarm sets the bound",
    )


def _entropy(history: History, facts: RunFacts) -> Case | None:
    first, steps = history.first[:FEW], history.last(FEW)
    if history.steps < 2 * FEW or history.has_risen or not all("entropy" in record for record in (*first, *steps)):
        return None
    before, now = _mean(first, "entropy"), _mean(steps, "entropy")
    evidence = f"the entropy went from {before:.3g} to {now:.3g} nats a token, while success did not rise"
    if now >= BLOWN_UP * before and now >= before + BLOWN_UP_BY:
        return Case(
            "entropy_blow_up",
            evidence,
            "the policy is being taken apart",
            f"a lower --training.learning_rate (now {facts.learning_rate:g})"
            + (f", a lower --training.entropy_coef (now {facts.entropy_coef:g})" if facts.entropy_coef else "")
            + f", or --{facts.algorithm}.beta 0.01 to hold the model near its start",
        )
    if now <= COLLAPSED * before and _mean(steps, "success") < SOLVED:
        return Case(
            "entropy_collapse",
            evidence,
            "the policy repeats itself and explores nothing",
            f"--training.entropy_coef 0.001 or more (now {facts.entropy_coef:g}), a lower --training.learning_rate "
            f"(now {facts.learning_rate:g}), or --{facts.algorithm}.beta 0.01",
        )
    return None


def _apart(history: History, facts: RunFacts) -> Case | None:
    newest = (history.evaluations or [{}])[-1]
    now, high = newest.get("training_success", 0.0), newest.get("success_high", 1.0)
    if facts.resamples or now - high <= APART:  # groups that are sampled anew do not measure the tasks
        return None
    return Case(
        "held_out_apart",
        f"success in training is {now:.3f} over {FEW} steps, and {newest['success']:.3f} on held-out tasks",
        "what is learned does not carry over: the held-out tasks have numbers, words or forms that no training task "
        "has, or the training tasks are few",
        "more training tasks of more kinds (--dataset.tasks), and a test split that is drawn as the training split is",
    )


def _not_moving(history: History, facts: RunFacts) -> Case | None:
    enough = history.steps >= WINDOW if history.is_done else history.steps >= 3 * WINDOW
    if not enough or _mean(history.last(), "success") >= SOLVED:
        return None
    count = min(WINDOW, history.steps // 2)
    before, now = (_estimate(steps, "training_reward") for steps in (history.first[:count], history.last(count)))
    has_moved = abs(now[0] - before[0]) > MOVED * math.hypot(before[1], now[1])
    if has_moved or history.has_learned:
        return None
    first, newest = (history.evaluations or [{}])[0], (history.evaluations or [{}])[-1]
    held_out = ""
    if len(history.evaluations) > 1 and "success" in first.keys() & newest.keys():  # it has none if all were faults
        held_out = f", and held-out success from {first['success']:.3f} to {newest['success']:.3f}"
    return Case(
        "not_moving",
        f"in {history.steps:,} steps the reward went from {before[0]:.3g} to {now[0]:.3g}{held_out}, which may be "
        "chance",
        "the steps are too small or too few, or the groups too small",
        f"a higher --training.learning_rate (now {facts.learning_rate:g}), more --steps, or a higher "
        f"--{facts.algorithm}.n_samples (now {facts.n_samples})",
    )


# ---- figures ----


def _of(records: Iterable[Values], name: str) -> list[float]:
    return [record[name] for record in records if name in record and math.isfinite(record[name])]


def _sum(records: Iterable[Values], name: str) -> float:
    return math.fsum(_of(records, name))


def _mean(records: Iterable[Values], name: str, default: float = 0.0) -> float:
    return _mean_of(_of(records, name), default)


def _mean_of(values: Sequence[float], default: float = 0.0) -> float:
    return statistics.fmean(values) if values else default


def _estimate(records: Iterable[Values], name: str) -> tuple[float, float]:
    values = _of(records, name)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return _mean_of(values), error
