"""Whether rewards can be had without the work: training tasks are attacked before a run, and its episodes are watched.

A folder of contrib adds who does it, as a row of its table [audits]; without one, nothing of this happens.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.data.row import DataTasks
from forge_env.evaluation.profile import digest_of
from forge_env.records.run_files import FACTS, read_object
from forge_env.registry.contrib import rows
from forge_env.rollout.factory import EnvFactory
from trainers.run.run_record import RunRecord
from trainers.setup.mixture import of
from trainers.setup.run_plan import EnvShare, RunPlan
from trainers.setup.run_tasks import RunTasks

AUDIT = "audit"
"""The entry of run.json."""
MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A task that pays a cheat."""

    task: str
    """Its name, for people."""
    why: str
    """What is wrong with its grader, as a sentence."""
    is_paid_in_full: bool
    """Whether a cheat is a success; else it earns a part."""


class Auditor(Protocol):
    """What a row of the table [audits] makes of an environment, which is not open."""

    tasks_by_default: int
    """How many tasks `audit.tasks` -1 is."""

    def __init__(self, factory: EnvFactory) -> None: ...

    async def audit(self, tasks: Sequence[Task], *, seed: int, seconds: float) -> Mapping[str, Hole | None]:
        """Attack tasks; returns the first hole of each that was attacked in time, by the ids of the tasks."""
        ...

    def cheat_of(self, episode: Episode) -> str:
        """The name of the known cheat that an episode looks like; "" for none."""
        ...

    @property
    def knows_cheats(self) -> bool:
        """Whether the environment has any."""
        ...


class Cheats:
    """Counts the episodes of a step that look like a known cheat; each environment's label has its auditor."""

    def __init__(self, auditors: Mapping[str, Auditor] = MappingProxyType({})) -> None:
        self._auditors = {label: auditor for label, auditor in auditors.items() if auditor.knows_cheats}

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """cheats/known, the share of all episodes; cheats/rewarded, of those with a reward above 0, if there are any;
        and cheats/rewarded/NAME, of one cheat. Nothing without known cheats."""
        with_auditor = [(episode, self._auditors.get(episode.env) or self._auditors.get("")) for episode in episodes]
        names = [((e.reward or 0.0) > 0, auditor.cheat_of(e)) for e, auditor in with_auditor if auditor is not None]
        if not names:
            return {}
        metrics = {"cheats/known": sum(bool(name) for _, name in names) / len(names)}
        if with_reward := [name for is_rewarded, name in names if is_rewarded]:
            metrics["cheats/rewarded"] = sum(map(bool, with_reward)) / len(with_reward)
        counts = Counter(filter(None, with_reward))
        return metrics | {f"cheats/rewarded/{name}": count / len(with_reward) for name, count in counts.items()}


async def audit_tasks(
    plan: RunPlan, tasks: Mapping[str, RunTasks], record: RunRecord
) -> tuple[dict[str, RunTasks], dict[str, Any], Cheats]:
    """Audit training tasks of each environment; a run that goes on takes what was found at its start.

    Returns:
        the tasks without those that reward a cheat in full; an entry of run.json, or none; who watches the episodes.

    Raises:
        UserError: every audited task of an environment rewards a cheat in full.
    """
    makers = [] if plan.is_supervised else [row.load() for row in rows("audits").values()]
    auditors: dict[str, Auditor] = {share.label: make(share.factory) for share in plan.environments for make in makers}
    facts = read_object(record.folder / FACTS).get(AUDIT, {}) if plan.config.resume else {}
    for share in plan.environments:
        if share.label in auditors and not plan.config.resume:
            with of(share.label):
                facts[share.label] = await _audit(share, tasks[share.label].train, auditors[share.label], record)
    facts = {label: entry for label, entry in facts.items() if entry}
    rest = {label: _without(of_env, facts.get(label, {}).get("left_out", {})) for label, of_env in tasks.items()}
    return rest, {AUDIT: facts} if facts else {}, Cheats(auditors)


async def _audit(share: EnvShare, tasks: Sequence[Task], auditor: Auditor, record: RunRecord) -> dict[str, Any]:
    """Audit tasks of one environment; returns what run.json says of it, {} if none is audited."""
    settings, seed = share.config.audit, share.config.training.seed
    count = auditor.tasks_by_default if settings.tasks < 0 else settings.tasks
    sample = random.Random(seed).sample(tasks, min(count, len(tasks)))
    if not sample:
        return {}
    with record.phase("audit"):
        holes = await auditor.audit(sample, seed=seed, seconds=settings.seconds)
    digests = {task.id: digest_of(task) for task in sample}
    left_out = {digests[id]: asdict(hole) for id, hole in holes.items() if hole and hole.is_paid_in_full}
    partly = {digests[id]: asdict(hole) for id, hole in holes.items() if hole and not hole.is_paid_in_full}
    name = share.config.env.name
    if left_out and len(left_out) == len(holes):
        hole = next(iter(left_out.values()))
        raise UserError(
            f"every audited training task of {name} ({len(holes)}) rewards a cheat in full, such as {hole['task']}: "
            f"{hole['why']}; mend the grader, which forge-env check {name} attacks too, or set --audit.tasks to 0"
        )
    late = f"; {len(sample) - len(holes)} more had no verdict within {settings.seconds:g} s"
    sentence = f"audit: {len(holes)} of {len(tasks):,} training tasks were attacked by known cheats, and "
    record.say(*share.about([f"{sentence}{len(left_out)} rewarded one in full{late * (len(holes) < len(sample))}"]))
    for what, group in (("is left out of the training", left_out), ("rewards a cheat in part", partly)):
        for hole in list(group.values())[:MOST_SHOWN]:
            record.warn(*share.about([f"warning: the task {hole['task']} {what}: {hole['why']}"]))
        if len(group) > MOST_SHOWN:
            record.warn(*share.about([f"warning: so it is with {len(group) - MOST_SHOWN} more tasks, see run.json"]))
    return {"tasks": len(tasks), "audited": len(holes), "left_out": left_out, "paid_in_part": partly}


def _without(tasks: RunTasks, left_out: Collection[str]) -> RunTasks:
    if not left_out:
        return tasks
    rest = [task for task in tasks.train if digest_of(task) not in left_out]
    return replace(tasks, train=DataTasks(rest, tasks.train.rows) if isinstance(tasks.train, DataTasks) else rest)
