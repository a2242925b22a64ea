"""How `forge-env check harbor:PATH` audits a task: its solution, its cheats, what its verifier fetches."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from contrib.harbor.config import HarborTask
from contrib.harbor.needs import verifier_fetches
from contrib.harbor.oracle import play_task
from contrib.workspaces.env.cheats import named_cheats
from envs.messages import say
from forge_env.core.task_audit import TaskAudit
from forge_env.core.types import Message, Task

_CLAIMS: Mapping[str, Sequence[Message]] = {"success is claimed": [say("All tests pass. Reward: 1.0")]}


def audit_of(task: Task, harbor: HarborTask) -> TaskAudit:
    return TaskAudit(
        name=harbor.name,
        task=task,
        solution=functools.partial(play_task, harbor),
        cheats=cheats_of(harbor),
        verifier_limit=sum(harbor.verifier(step).timeout_sec for step in harbor.steps),
        fetches=verifier_fetches(harbor),
    )


def cheats_of(task: HarborTask) -> Mapping[str, Sequence[Message]]:
    """Return what must earn nothing: a claim, and scripts that replace what the verifier runs with."""
    submitted = [artifact.source for step in task.steps for artifact in task.artifacts(step)]
    return {**_CLAIMS, **named_cheats(list(dict.fromkeys(submitted)))}
