"""How `forge-env check harbor:PATH` audits a task: its solution, its cheats, the network of its verifier."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence

from envs.harbor.config import HarborTask
from envs.harbor.oracle import play_task
from envs.workspace.cheats import named_cheats
from envs.workspace.messages import say
from forge_env.core.task_audit import TaskAudit
from forge_env.core.types import Message, Task

_CLAIMS: Mapping[str, Sequence[Message]] = {"success is claimed": [say("All tests pass. Reward: 1.0")]}
_FETCHES = re.compile(
    r"\b(curl|wget|apt(?:-get)? (?:-\S+ )*(?:update|install)|(?:pip3?|npm|cargo|go|gem|conda) (?:-\S+ )*install"
    r"|uvx?|npx|git clone|docker)\b"
)


def audit_of(task: Task, harbor: HarborTask) -> TaskAudit:
    """Return the audit of a task, which is the folder `harbor`."""
    return TaskAudit(
        name=harbor.name,
        task=task,
        solution=functools.partial(play_task, harbor),
        cheats=cheats_of(harbor),
        offline={"offline": True} if _may_reach_hosts(harbor) else None,
        verifier_limit=sum(harbor.verifier(step).timeout_sec for step in harbor.steps),
        fetches=next(_fetches(harbor), ""),
    )


def cheats_of(task: HarborTask) -> Mapping[str, Sequence[Message]]:
    """Return what must earn nothing: a claim, and scripts that replace what the verifier runs with."""
    submitted = [artifact.source for step in task.steps for artifact in task.artifacts(step)]
    return {**_CLAIMS, **named_cheats(list(dict.fromkeys(submitted)))}


def _may_reach_hosts(task: HarborTask) -> bool:
    """Whether a verifier has a network here; one that is public has only its own loopback."""
    modes = [task.verifier(step).network_mode or task.config.environment.network_mode for step in task.steps]
    return "allowlist" in modes


def _fetches(task: HarborTask) -> Iterator[str]:
    """Yield the lines of scripts of the verifier that fetch something."""
    folders = dict.fromkeys(task.part(step, "tests") for step in task.steps)
    for path in (path for folder in folders for path in sorted(folder.rglob("*.sh"))):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if not line.lstrip().startswith("#") and (match := _FETCHES.search(line)):
                yield f"line {number} of {path.relative_to(task.folder)} calls {match[0]}"
