"""The attacks on sandboxes, from inside a workspace: as its root, and as another user.

An attack that gets through here what a snippet may not do, but a workspace may, is in BOTH or ROOT, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
import pytest_asyncio

from contrib.workspaces.contract import CommandResult, UnpackedImage, WorkspaceCapabilities, WorkspaceLimits
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.tests.machines.conftest import opened_or_skipped
from forge_env.core.sandbox import ExecStatus
from tests.sandboxes.attacks import LONG, PRELUDE, Attack
from tests.sandboxes.test_attacks import ATTACKS, ESCAPES, facts, settled, traces

__all__ = ["facts"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = WorkspaceLimits(
    memory_bytes=96 * 2**20, processes=32, disk_bytes=8 * 2**20, files=4000, output_bytes=LONG.output_bytes
)
AT_ONCE = 4
START_S = 0.6
"""Of an interpreter, beside other attacks: it is in the time of a command."""
HARNESS = """
import json
print("\\n" + json.dumps(f(json.loads({facts!r}))))
"""

BOTH = {
    # The files are those of the image, and the process that looks is its own.
    "read files of the host": {"/etc/passwd", "/home"},
    "read environments and command lines": {"own/cmdline"},
    # The working directory is on the path of `python -c`; images start Python as they like.
    "files that Python would load by itself": {"path"},
    # Its ipc namespace is its own, and a control group counts the memory.
    "shared memory and message queues": {"memory", "semaphores", "messages"},
    # They bound what a program gains by a file, and belong to a user namespace of the workspace's own.
    "gain capabilities by running a program": {"CapBnd"},
    # The file is a copy of the image's, on the workspace's own disk.
    "write to what it runs from": {"link"},
}
ROOT = {
    # Root is root of the workspace: it changes the image's copy, and becomes any of its users.
    "write to what it runs from": {"/", "/usr", "/usr/bin", "/etc", "/var", "LIBRARY", "own"},
    "become another user": {"uid", "gid", "groups", "res", "su", "setuid"},
    "files that Python would load by itself": {"library", "cache"},
    "gain capabilities by running a program": {"CapPrm", "CapEff"},
    # Pid 1 is of the same user; it only becomes slower.
    "kill and change init by descriptor": {"nice"},
}
SAME_ROOT = {
    # Where root has the user id of the machine's root: how many descriptors pid 1 has, not what they are.
    "trace and read other processes": {"fds"},
}
NO_QUOTA = {
    # It goes on until its time is over, file by file.
    "fill /tmp, with bytes and with empty files": {ExecStatus.TIMEOUT},
}
ENDS = {
    # Nothing limits the memory of one process before it is used.
    "one large allocation": {ExecStatus.OK},
    "sixty threads and a better priority": {ExecStatus.PIDS, ExecStatus.SIGNALED},
    "another program in its place": {ExecStatus.OK},
    # So many interpreters need more memory than there is, if they come to use it.
    "fork bomb": {ExecStatus.MEMORY},
    "fork bomb that never gives up": {ExecStatus.MEMORY},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["namespace", "docker"])
async def workspaces(request: pytest.FixtureRequest) -> AsyncIterator[Workspaces]:
    """Without spares: the traces on this machine then tell only of attacks."""
    async with opened_or_skipped(request.param, **({"spares": 0} if request.param == "namespace" else {})) as opened:
        yield opened


def program(attack: Attack, facts: dict[str, Any]) -> str:
    return PRELUDE + attack.code + (HARNESS.format(facts=json.dumps(facts)) if attack.calls else "")


async def run(workspace: Workspace, facts: dict[str, Any], attack: Attack, user: str) -> tuple[bool, str]:
    """Run an attack; the workspace must serve honest commands afterwards unless it has ended.

    Returns: whether another attack finds the workspace as it was; and what came of this one.
    """
    command = ["python3", "-c", program(attack, facts)]
    timeout_s = attack.limits.wall_s + START_S
    result = await workspace.exec(command, user=user, stdin="input", timeout_s=timeout_s, cwd="/tmp")
    came = judge(attack, result, user, workspace.capabilities)
    if result.state_lost:
        return False, came
    await workspace.end_processes()
    assert (await workspace.exec("echo honest")).stdout == "honest\n"
    return attack in ESCAPES and attack.name not in ROOT, came


def judge(attack: Attack, result: CommandResult, user: str, capabilities: WorkspaceCapabilities) -> str:
    """Return what came of an attack that was allowed to have it: "nothing", how it ended, or what it may have."""
    assert "got through" not in result.stdout, (attack.name, result)
    ends = {*attack.ends, *ENDS.get(attack.name, ())}
    ends |= set() if capabilities.disk_limit else NO_QUOTA.get(attack.name, set())
    assert result.status in ends, (attack.name, result)
    assert len(result.stdout.encode()) <= 4 * attack.limits.output_bytes
    assert result.wall_s < attack.limits.wall_s + 5
    last = result.stdout.rstrip().rpartition("\n")[2]
    if not (attack.calls and result.ok and last):
        return "nothing" if result.ok else f"ended: {result.status.value.replace('_', ' ')}"
    got = json.loads(last)
    allowed = BOTH.get(attack.name, set()) | (ROOT.get(attack.name, set()) if user == "root" else set())
    if user == "root" and not capabilities.root_is_unprivileged:
        allowed |= SAME_ROOT.get(attack.name, set())
    if attack.name == "read environments and command lines":
        assert len(got) <= 1, (attack.name, got)
        got = [re.sub(r"^\d+/", "own/", name) for name in got]
    if attack.name == "write to what it runs from" and user == "root":
        got = ["LIBRARY" if "/lib/python" in path else path for path in got]
    if allowed:
        assert set(got) <= allowed, (attack.name, got)
    else:
        assert attack.harmless(got), (attack.name, got)
        return "nothing"
    return f"its own: {', '.join(sorted(set(got)))}" if got else "nothing"


async def attack_all(
    workspaces: Workspaces, image: UnpackedImage, facts: dict[str, Any], attacks: Iterable[Attack], user: str
) -> dict[str, str]:
    """Run attacks, some of them at once, and compare the traces on this machine before and after all of them.

    Returns: what came of each.
    """
    if workspaces.capabilities.memory_limit == "rlimit":
        attacks = [attack for attack in attacks if not attack.counted]
    before, left, failures = traces(), iter(attacks), []
    came: dict[str, str] = {}

    async def attack_some() -> None:
        workspace: Workspace | None = None
        for attack in left:
            workspace = workspace or await workspaces.open(image, limits=LIMITS)
            try:
                as_it_was, came[attack.name] = await run(workspace, facts, attack, user)
            except Exception as error:
                failures.append(error)
                as_it_was = False
            if not as_it_was:
                await workspace.close()
                workspace = None
        if workspace is not None:
            await workspace.close()

    await asyncio.gather(*(attack_some() for _ in range(AT_ONCE)))
    if failures:
        raise ExceptionGroup("attacks", failures)
    assert await settled(before) == before
    return came


async def test_nothing_gets_out(workspaces: Workspaces, python_image: UnpackedImage, facts: dict[str, Any]) -> None:
    await attack_all(workspaces, python_image, facts, ESCAPES, "root")


@pytest.mark.slow
@pytest.mark.parametrize("user", ["root", "agent"])
async def test_no_attack_gets_through(
    workspaces: Workspaces,
    python_image: UnpackedImage,
    facts: dict[str, Any],
    user: str,
    record_property: Callable[[str, object], None],
) -> None:
    """What came of each attack is a property of the test, of which `contrib.workspaces.benchmarks.workspace_attacks`
    makes a table."""
    if user != "root" and not workspaces.capabilities.users:
        pytest.skip("only root")
    came = await attack_all(workspaces, python_image, facts, ATTACKS, user)
    record_property(f"{workspaces.capabilities.backend}, as {user}", json.dumps(came))
