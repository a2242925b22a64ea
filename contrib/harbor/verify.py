"""Runs the verifier of a Harbor task in a workspace of its own, and reads the reward that it writes."""

from __future__ import annotations

import errno
import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from contrib.common.json_text import decoded
from contrib.harbor.config import Artifact, HarborTask, Step, VerifierPlace, resolved
from contrib.harbor.staging import by_bash
from contrib.workspaces.contract import WorkspaceFileError
from contrib.workspaces.env.obstacles import may_be_work, obstacle_in
from contrib.workspaces.env.output import shorten
from contrib.workspaces.env.submission import Copies, Wanted, copy_out
from contrib.workspaces.machines.snapshot import Snapshot
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.reward_value import MAX_REWARD
from forge_env.core.sandbox import ExecStatus

CONVENTION = "/logs/artifacts"
"""What an agent puts here is an artefact without being declared."""
_PROGRAMS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/boot")
_READ_AT_START = tuple(f"{home}/.*" for home in ("/root", "/home/*"))
_READ_BY_PYTEST = ("/conftest.py", "/pytest.ini", "/.pytest.ini", "/pyproject.toml", "/tox.ini", "/setup.cfg")
_OF_VERIFIERS = ("/tests", "/solution", "/logs")
_FOLDERS_OF_PROGRAMS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "NODE_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_TESTS = ["/tests"]
_LOGS = ("/logs/verifier", "/logs/agent", CONVENTION)
_REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_MAX_REWARD_BYTES = 2**24
_READ_LOGS = "head -q -c 100000 /logs/verifier/*"
_READ_SECONDS = 5.0
_SHOWN = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborVerdict:
    """What a verifier said. `rewards` is None when it wrote no valid reward, and `reason` says why."""

    rewards: Mapping[str, float] | None
    reason: str = ""
    output: str = ""
    not_counted: Sequence[str] = ()
    """Files that the agent has changed, and that a fork has from the image."""
    obstacle: str = ""
    """What it met that keeps a verifier from running."""
    seconds: float = 0.0
    """How long test.sh ran."""

    @property
    def reward(self) -> float:
        """The value of "reward", else the mean of all values; 0 without any."""
        if not self.rewards:
            return 0.0
        return self.rewards.get("reward", sum(self.rewards.values()) / len(self.rewards))


@dataclass(slots=True, kw_only=True)
class Submission:
    """What is left of an agent's workspace for the verifier: a snapshot, a fork, or copies of artefacts."""

    snapshot: Snapshot | None = None
    fork: Workspace | None = None
    not_counted: Sequence[str] = ()
    problem: str = ""
    """Why there is nothing to verify."""
    copies: Copies = field(default_factory=Copies)

    @property
    def is_untouched(self) -> bool:
        """Whether it has nothing of the agent's."""
        return self.snapshot is None and self.fork is None and not self.copies.by_path

    async def close(self) -> None:
        """Free the snapshot, close the fork, remove the copies. Idempotent."""
        if self.snapshot is not None:
            await self.snapshot.close()
        if self.fork is not None:
            await self.fork.close()
        await self.copies.close()


async def prepare_folders(
    workspace: Workspace, workdir: str, *, user: str | int | None, without: Sequence[str] = ()
) -> None:
    """Make the working directory, and Harbor's folders, owned by that user; remove what `without` names first."""
    script = 'user=$1; shift; rm -rf "$@"; mkdir -p $FOLDERS "$WORKDIR"; [ -z "$user" ] || chown -R "$user" $FOLDERS'
    owner = "" if user in (None, "", "0", 0, "root") else str(user)
    command = ["sh", "-c", script, "sh", owner, *without]
    await workspace.exec(command, user="0", cwd="/", env={"FOLDERS": " ".join(_LOGS), "WORKDIR": workdir})


async def take_work(
    fork: Workspace, agents: Workspace, artifacts: Sequence[str], workdir: str, env: Mapping[str, str]
) -> Sequence[str]:
    """Give a fresh workspace what the agent has made, but for programs and what they read at their start.

    Args:
        artifacts: their places, which count wherever they are; so does the working directory.
        env: of the image and of the verifier: the folders of programs that it names are not taken over.

    Returns: files that were changed, and that are the image's here.
    """
    work = [place for place in [workdir, *artifacts] if place.strip("/")]
    programs = _folders_of_programs(env)
    beside = [f"{PurePosixPath(folder).parent}/{name}" for folder in programs for name in ("lib/python*", "pyvenv.cfg")]
    keep = (*_PROGRAMS, *_READ_AT_START, *_READ_BY_PYTEST, *_OF_VERIFIERS, *programs, *beside)
    changes = await fork.take_over(agents, keep=[place for place in keep if place not in work], work=work)
    return [path for path in changes if not path.startswith(tuple(f"{place}/" for place in _OF_VERIFIERS))]


def _folders_of_programs(env: Mapping[str, str]) -> list[str]:
    folders = {folder for name in _FOLDERS_OF_PROGRAMS for folder in env.get(name, "").split(":")}
    return [folder.rstrip("/") for folder in sorted(folders) if folder.startswith("/") and folder.strip("/")]


async def collect_artifacts(workspace: Workspace, artifacts: Sequence[Artifact], workdir: str) -> Copies:
    """Copy artefacts out of a workspace after its processes have ended; a link or special file that is not excluded is
    a problem. CONVENTION is one of them, declared or not."""
    excludes: dict[str, list[str]] = {}
    for artifact in artifacts:
        place = str(PurePosixPath(workdir) / artifact.source)
        excludes.setdefault(place, []).extend(artifact.exclude)
    excludes = {CONVENTION: [], **excludes}
    return await copy_out(workspace, [Wanted(path=path, exclude=exclude) for path, exclude in excludes.items()])


async def run_verifier(
    workspace: Workspace,
    task: HarborTask,
    step: Step | None,
    *,
    env: Mapping[str, str],
    workdir: str,
    has_tests: bool,
    place: VerifierPlace,
) -> HarborVerdict:
    """Put the tests into a workspace that no agent acts in, run test.sh, and read the reward.

    Args:
        has_tests: the image brings /tests, unless it has no test.sh there.
        place: what of the workspace may be the agent's.
    """
    verifier = task.verifier(step)
    variables = {**env, **resolved(verifier.env, where=f"[verifier.env] of {task.name}")}
    if has_tests:
        has_tests = (await workspace.exec(["test", "-f", "/tests/test.sh"], user="0", cwd="/")).ok
    await prepare_folders(workspace, workdir, user=verifier.user, without=[*_REWARDS, *([] if has_tests else _TESTS)])
    if not has_tests:
        for tests in dict.fromkeys([task.part(None, "tests"), task.part(step, "tests")]):
            if tests.is_dir():
                await workspace.put_tree(tests, "/tests")
    await workspace.exec(["chmod", "+x", "/tests/test.sh"], user="0", cwd="/")
    result = await workspace.exec(
        by_bash("-c", "/tests/test.sh"), user=verifier.user, env=variables, cwd=workdir, timeout_s=verifier.timeout_sec
    )
    await workspace.end_processes()
    output = result.stdout + result.stderr
    if result.status is ExecStatus.TIMEOUT:
        reason = f"the verifier ran longer than {verifier.timeout_sec:g} s"
        verdict = HarborVerdict(rewards=None, reason=reason)
    else:
        verdict = await _read_reward(workspace)
        if verdict.rewards is None and result.status not in (ExecStatus.OK, ExecStatus.NONZERO):
            verdict = replace(verdict, reason=f"the verifier was ended: {result.status.value.replace('_', ' ')}")
    programs = _folders_of_programs(variables)
    counts = functools.partial(_counts, place, workdir, sources(task, step, workdir), programs)
    is_work = may_be_work(task.instruction(step), counts, path=variables.get("PATH", ""))
    obstacle = obstacle_in(output, is_work)
    if not obstacle and verdict.reward <= 0.0:  # its programs may write into a file
        logs = await workspace.exec(_READ_LOGS, user="0", cwd="/", timeout_s=_READ_SECONDS)  # one may be a pipe
        obstacle = obstacle_in(logs.stdout, is_work)
    return replace(verdict, output=shorten(output.strip(), _SHOWN), obstacle=obstacle, seconds=result.wall_s)


def _counts(
    place: VerifierPlace, workdir: str, artifacts: Sequence[str], programs: Sequence[str], path: PurePosixPath
) -> bool:
    at, work = PurePosixPath(workdir) / path, artifacts if place == "separate" else [workdir, *artifacts]
    if place == "fork" and any(at.is_relative_to(folder) for folder in programs if folder not in work):
        return False
    if place == "shared" or any(at.is_relative_to(folder) for folder in work if folder.strip("/")):
        return True
    return place == "fork" and not any(at.is_relative_to(folder) for folder in (*_PROGRAMS, *_OF_VERIFIERS))


def sources(task: HarborTask, step: Step | None, workdir: str) -> list[str]:
    return [CONVENTION, *(str(PurePosixPath(workdir) / artifact.source) for artifact in task.artifacts(step))]


async def _read_reward(workspace: Workspace) -> HarborVerdict:
    for path in _REWARDS:
        try:
            data = await workspace.get(path, max_bytes=_MAX_REWARD_BYTES)
        except WorkspaceFileError as error:
            if os.strerror(errno.ENOENT) in str(error):
                continue
            return HarborVerdict(rewards=None, reason=f"the reward cannot be read: {error}")
        try:
            return HarborVerdict(rewards=_rewards(decoded(data), is_json=path.endswith("json")))
        except (ValueError, RecursionError) as error:
            return HarborVerdict(rewards=None, reason=f"{path} is no reward: {error}")
    return HarborVerdict(rewards=None, reason="the verifier wrote no reward")


def _rewards(text: str, *, is_json: bool) -> dict[str, float]:
    """Read the rewards of a file. Raises ValueError for anything but rewards."""
    rewards = json.loads(text) if is_json else {"reward": float(text)}
    if not isinstance(rewards, dict) or not rewards:
        raise ValueError('it is no object such as {"reward": 1.0}')
    for name, number in rewards.items():
        if not isinstance(number, (int, float)) or not abs(number) <= MAX_REWARD:
            raise ValueError(f"{name} is {number!r:.40}; it is a number of a size of {MAX_REWARD:g} at most")
    return {name: float(number) for name, number in rewards.items()}


def combine(verdicts: Sequence[HarborVerdict], strategy: str) -> Mapping[str, float]:
    """Return the rewards of a task with steps, of those that were reached; one without a reward counts as 0."""
    if strategy == "final":
        return verdicts[-1].rewards or {"reward": 0.0}
    keys = {key for verdict in verdicts for key in verdict.rewards or ()} or {"reward"}
    return {key: sum((v.rewards or {}).get(key, 0.0) for v in verdicts) / len(verdicts) for key in sorted(keys)}


def passes(verdict: HarborVerdict, threshold: float | Mapping[str, float] | None) -> bool:
    """Whether a step's rewards allow the next step to begin."""
    if verdict.rewards is None or threshold is None:
        return verdict.rewards is not None
    thresholds = threshold if isinstance(threshold, Mapping) else {"reward": threshold}
    return all(verdict.rewards.get(name, -math.inf) >= least for name, least in thresholds.items())
