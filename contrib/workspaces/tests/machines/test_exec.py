"""Commands and shells of a workspace: how they end, as whom they run, and what is killed with them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from contrib.workspaces.contract import UnpackedImage, WorkspaceLimits
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.tests.machines.conftest import files_of, open_one
from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import ExecStatus
from tests.helpers.waiting import DEADLINE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
OK, NONZERO, SIGNALED, TIMEOUT = ExecStatus.OK, ExecStatus.NONZERO, ExecStatus.SIGNALED, ExecStatus.TIMEOUT
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's workspace has only root")
LONG = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(workspaces: Workspaces, small_image: UnpackedImage) -> AsyncIterator[Workspace]:
    async with open_one(workspaces, small_image) as workspace:
        yield workspace


@pytest_asyncio.fixture(loop_scope="module")
async def workspace(shared: Workspace) -> AsyncIterator[Workspace]:
    """One for all tests, which finds no processes of the test before."""
    yield shared
    await shared.end_processes()


async def test_how_a_command_ends(workspace: Workspace) -> None:
    ends: tuple[tuple[str | list[str], ExecStatus, int | None, int | None], ...] = (
        ("true", OK, 0, None),
        ("exit 3", NONZERO, 3, None),
        (["false"], NONZERO, 1, None),
        (["no-such-program"], NONZERO, 127, None),
        (["/etc/passwd"], NONZERO, 126, None),
        ("kill -9 $$", SIGNALED, None, 9),
        ("kill -TERM $$", SIGNALED, None, 15),
    )
    for command, *end in ends:
        result = await workspace.exec(command)
        assert [result.status, result.exit_code, result.signal] == end, command
        assert not result.state_lost and result.wall_s > 0
        assert result.started is (command not in (["no-such-program"], ["/etc/passwd"]))


async def test_a_long_command_runs_and_a_long_argument_does_not_start(workspace: Workspace) -> None:
    """A program gets at most 128 KiB in one argument, and 2 MiB in all."""
    long = f"# {'é' * 100_000}\nread line; echo $line; cat <&3 2>/dev/null; exit 3"
    for user in ("root", "agent") if os.geteuid() == 0 else ("root",):
        result = await workspace.exec(long, stdin="in\n", user=user)
        assert (result.exit_code, result.stdout, result.started) == (3, "in\n", True), result
    many = {f"A{number}": "x" * 130_000 for number in range(20)}
    for command, env in ((["cat", "x" * 200_000], {}), (f"{long}\0", {}), ("\ud800" * 50_000, {}), ("true", many)):
        result = await workspace.exec(command, env=env)
        assert (result.exit_code, result.started) == (126, False), result


async def test_output_input_environment_and_folder(workspace: Workspace) -> None:
    result = await workspace.exec(
        "cat; echo $MADE_BY $MORE $HOME; pwd; echo no >&2", env={"MORE": "more"}, stdin="in\n"
    )
    assert result.stdout == "in\ntests more /root\n/\n" and result.stderr == "no\n"
    assert (await workspace.exec("pwd", cwd="/tmp")).stdout == "/tmp\n"
    assert (await workspace.exec(["cat"])).stdout == ""
    assert (await workspace.exec(["cat"], stdin=b"\xff\x00")).stdout == "\ufffd\x00"
    assert (await workspace.exec("env", env={"LARGE": "x" * 100_000})).stdout_bytes > 100_000
    with pytest.raises(UserError, match="/nowhere"):
        await workspace.exec("pwd", cwd="/nowhere")
    for env in ({"A=B": "c"}, {"LARGE": "x" * 131_066}):
        with pytest.raises(UserError, match="environment variable"):
            await workspace.exec("pwd", env=env)


async def test_a_command_ignores_no_signal(workspace: Workspace) -> None:
    """Python ignores some; a program that inherits that does not end with the reader of its pipe."""
    status = (await workspace.exec(["cat", "/proc/self/status"])).stdout
    signals = {
        line.split(":")[0]: int(line.split()[1], 16) for line in status.splitlines() if line[:4] in ("SigI", "SigB")
    }
    of_libc = 0b11 << 31  # signals 32 and 33 belong to the C library: no program sets or resets them
    assert {name: value & ~of_libc for name, value in signals.items()} == {"SigIgn": 0, "SigBlk": 0}
    assert (await workspace.exec("seq 1000000 | head -n 1")).stdout == "1\n"


async def test_the_folder_of_an_image_is_made(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    async with open_one(workspaces, replace(small_image, workdir="/project/inner", env={"A": "b"})) as workspace:
        assert (await workspace.exec("pwd; echo $A; cd ..; pwd")).stdout == "/project/inner\nb\n/project\n"
        assert (await workspace.exec("pwd", cwd="..")).stdout == "/project\n"
        await workspace.put("file", b"x")
        assert await workspace.get("/project/inner/file") == b"x"


@AS_ROOT
async def test_users(workspace: Workspace) -> None:
    for user, shown in (
        ("agent", "uid=1000(agent) gid=1000(agent) groups=1000(agent),2000(extra)\n/home/agent\n"),
        (1000, "uid=1000(agent) gid=1000(agent) groups=1000(agent),2000(extra)\n/home/agent\n"),
        ("agent:root", "uid=1000(agent) gid=0(root) groups=0(root)\n/home/agent\n"),
        (4711, "uid=4711 gid=4711 groups=4711\n/\n"),
        ("root", "uid=0(root) gid=0(root) groups=0(root)\n/root\n"),
    ):
        assert (await workspace.exec("id; echo $HOME", user=user)).stdout == shown
    assert (await workspace.exec("echo x > /etc/passwd", user="agent")).exit_code != 0
    assert (await workspace.exec("echo x > /home/agent/x && stat -c %u /home/agent/x", user="agent")).stdout == "1000\n"
    for user in ("nobody-here", "agent:nobody-here", 70_000, -1):
        with pytest.raises(UserError):
            await workspace.exec("id", user=user)


@AS_ROOT
async def test_root_inside_is_nobody_outside(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    before = files_of(small_image.root)
    workspace = await workspaces.open(small_image)
    done = await workspace.exec("echo x > /etc/passwd; rm -r /bin/df /home; chmod 777 /etc; mkdir /new; echo $?")
    assert done.stdout.strip() == "0", done
    assert files_of(small_image.root) == before
    result = await workspace.exec("cat /proc/self/uid_map; echo 1 > /proc/sys/kernel/hostname")
    assert result.exit_code != 0
    if workspace.capabilities.root_is_unprivileged:
        inside, outside, count = map(int, result.stdout.split())
        assert inside == 0 and outside >= 0x20000000 and count == 65536
    await workspace.close()


async def test_output_is_capped_counted_and_a_flood_is_ended(
    workspaces: Workspaces, small_image: UnpackedImage
) -> None:
    async with open_one(workspaces, small_image, limits=WorkspaceLimits(output_bytes=1000)) as workspace:
        result = await workspace.exec("seq 5000")
        assert result.ok and result.truncated_stdout and len(result.stdout) == 1000 and result.stdout_bytes == 23_893
        flood = await workspace.exec("seq 99999999", timeout_s=LONG)
        assert flood.status is ExecStatus.OUTPUT_LIMIT and flood.truncated_stdout and not flood.truncated_stderr
        seen: list[int] = []
        taken = await workspace.exec("seq 50000", on_output=lambda _, data: seen.append(len(data)))
        assert taken.ok and taken.stdout_bytes == sum(seen) == 288_894 and len(taken.stdout) == 1000
        assert (await workspace.exec("echo on")).stdout == "on\n"


async def test_output_is_reported_as_it_comes(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    first = asyncio.Event()

    def note(name: str, data: bytes) -> None:
        seen[name] += data
        first.set()

    async with open_one(workspaces, small_image, limits=WorkspaceLimits(output_bytes=4)) as workspace:
        command = "echo begun; echo wrong >&2; read line < /go; echo $line"
        assert (await workspace.exec("mkfifo /go")).ok
        running = asyncio.create_task(workspace.exec(command, on_output=note))
        await first.wait()
        assert not running.done()
        await workspace.exec("echo on > /go")
        result = await running
    assert seen == {"stdout": b"begun\non\n", "stderr": b"wrong\n"}
    assert result.stdout == "begu" and result.truncated_stdout


async def running(workspace: Workspace) -> int:
    """Return how many processes sleep in a workspace."""
    count = 'n=0; for f in /proc/[0-9]*/comm; do read c < $f; [ "$c" = sleep ] && n=$((n+1)); done; echo $n'
    return int((await workspace.exec(count)).stdout)


async def until_running(workspace: Workspace, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await running(workspace) != count:
            await asyncio.sleep(0.01)


async def test_a_time_limit_kills_everything_below_the_command(workspace: Workspace) -> None:
    result = await workspace.exec("trap '' TERM INT; sleep 600 & (sleep 600 & sleep 600); sleep 600", timeout_s=0.3)
    assert result.status is TIMEOUT and result.exit_code is None and 0.3 <= result.wall_s < LONG
    assert await running(workspace) == 0


async def test_a_killed_command_does_not_go_on_to_its_next_part(workspace: Workspace) -> None:
    parts = "sleep 600; touch /tmp/went-on"
    await asyncio.gather(*(workspace.exec(f"({parts}); {parts}", timeout_s=0.3) for _ in range(20)))
    assert (await workspace.exec("ls /tmp/went-on")).exit_code != 0


async def test_a_cancelled_command_is_killed(workspace: Workspace) -> None:
    task = asyncio.create_task(workspace.exec("sleep 600"))
    await until_running(workspace, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await running(workspace) == 0


async def test_background_processes_live_until_they_are_ended(workspace: Workspace) -> None:
    assert (await workspace.exec("sleep 600 & setsid sleep 600 & echo started")).stdout == "started\n"
    await until_running(workspace, 2)
    await workspace.end_processes()
    assert await running(workspace) == 0


async def test_commands_run_at_once(workspace: Workspace) -> None:
    meet = "touch /tmp/{0}; until [ -e /tmp/{1} ]; do sleep 0.01; done; echo {0}"  # each waits for the next
    results = await asyncio.gather(*(workspace.exec(meet.format(n, (n + 1) % 10)) for n in range(10)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(10)]


async def test_the_users_are_the_lines_of_their_file(workspace: Workspace) -> None:
    """A name may hold a character that ends a line for Python only."""
    await workspace.put("/etc/passwd", "root:x:0:0:a\u2028b\fc:/root:/bin/sh\n".encode())
    assert (await workspace.exec("echo $HOME", user="root")).stdout == "/root\n"
    with pytest.raises(UserError, match="no user 'ghost'"):
        await workspace.put("/etc/passwd", b"root:x:0:0:\fghost:x:0:0::/:sh\n")
        await workspace.exec("true", user="ghost")


async def test_a_shell_keeps_its_state(workspace: Workspace) -> None:
    shell = await workspace.open_shell(env={"GIVEN": "given"})
    assert (await shell.run("cd /tmp; x=1; f() { echo f$1; }")).ok
    result = await shell.run("pwd; f $x; echo $GIVEN\nfor i in 1 2; do\n  echo $i\ndone; echo 'quo\"ted'; (exit 7)")
    assert result.stdout == '/tmp\nf1\ngiven\n1\n2\nquo"ted\n' and result.exit_code == 7
    assert result.status is NONZERO and not result.state_lost
    assert (await shell.run("cat; printf unfinished")).stdout == "unfinished"
    assert (await shell.run("printf x >&2")).stderr == "x"
    assert (await shell.run("echo " + "y" * 300_000)).stdout_bytes == 300_001
    heredoc = await shell.run("cat <<'END'\n$x 'a' \"b\"\nEND\n# comment")
    assert heredoc.stdout == "$x 'a' \"b\"\n"
    assert (await shell.run("echo 'open")).exit_code not in (0, None)
    # The pipe of reports is closed for commands; what they write to the number does not count as an end.
    forgery = await shell.run("echo forged 0 >&3; echo next; false")
    assert (forgery.stdout, forgery.exit_code) == ("next\n", 1)
    await shell.close()
    with pytest.raises(SandboxError):
        await shell.run("true")


async def test_a_time_limit_leaves_the_shell(workspace: Workspace) -> None:
    shell = await workspace.open_shell()
    await shell.run("x=kept; cd /tmp")
    result = await shell.run("echo before; (trap '' TERM; sleep 600); echo after", timeout_s=1.0)
    assert result.status is TIMEOUT and result.stdout.startswith("before\n") and not result.state_lost
    assert (await shell.run("echo $x; pwd")).stdout == "kept\n/tmp\n"
    hung = await shell.run("while :; do :; done", timeout_s=0.3)
    assert hung.status is TIMEOUT and hung.state_lost
    fresh = await shell.run("echo $x; pwd")
    assert fresh.stdout == "\n/\n" and fresh.state_lost and not (await shell.run("true")).state_lost


async def test_a_shell_that_ends_says_so_and_starts_again(workspace: Workspace) -> None:
    shell = await workspace.open_shell()
    ended = await shell.run("echo bye; exit 4")
    assert (ended.status, ended.exit_code, ended.stdout, ended.state_lost) == (NONZERO, 4, "bye\n", True)
    assert not ended.in_new_shell
    killed = await shell.run("kill -9 $$")
    assert killed.status is SIGNALED and killed.signal == 9 and killed.state_lost
    assert killed.in_new_shell
    assert (await shell.run("exec sleep 0")).state_lost
    await workspace.end_processes()
    assert (await shell.run("echo again")).stdout == "again\n"


async def test_what_has_no_bytes_is_no_command_and_leaves_the_shell(workspace: Workspace) -> None:
    shell = await workspace.open_shell()
    await shell.run("x=kept")
    command = "echo '\ud800'"
    for result in (await shell.run(command), await workspace.exec(command)):
        assert (result.status, result.exit_code, result.state_lost) == (NONZERO, 126, False)
        assert "surrogates not allowed" in result.stderr
    assert (await shell.run("echo $x")).stdout == "kept\n"
    assert (await workspace.exec("cat", stdin="a\ud800")).stdout == "a?"


async def test_after_a_cancelled_command_a_new_shell_begins(workspace: Workspace) -> None:
    shell = await workspace.open_shell()
    task = asyncio.create_task(shell.run("x=old; sleep 600"))
    await until_running(workspace, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await shell.run("echo $x; echo ran >> /tmp/ran; cat /tmp/ran")
    assert (result.status, result.stdout, result.state_lost) == (OK, "\nran\n", True)
    assert await running(workspace) == 0


async def test_shells_and_commands_of_a_closed_workspace_raise(
    workspaces: Workspaces, small_image: UnpackedImage
) -> None:
    workspace = await workspaces.open(small_image)
    shell = await workspace.open_shell()
    task = asyncio.create_task(workspace.exec("sleep 600"))
    await until_running(workspace, 1)
    await workspace.close()
    await workspace.close()
    get, snapshot = workspace.get("/etc/passwd"), workspace.snapshot()
    for attempt in (task, shell.run("true"), workspace.exec("true"), get, snapshot):
        with pytest.raises(SandboxError):
            await attempt
    await shell.close()


async def test_limits_of_memory_processes_and_disk(workspaces: Workspaces, small_image: UnpackedImage) -> None:
    if workspaces.capabilities.memory_limit == "rlimit":
        pytest.skip("no control groups")
    limits = WorkspaceLimits(memory_bytes=32 * 2**20, processes=20, disk_bytes=8 * 2**20, files=200)
    async with open_one(workspaces, small_image, limits=limits) as workspace:
        full = await workspace.exec("dd if=/dev/zero of=/tmp/x bs=1M count=64 2>&1; stat -c %s /tmp/x; rm /tmp/x")
        assert int(full.stdout.split()[-1]) <= limits.disk_bytes + 2**20
        if workspaces.capabilities.disk_limit:
            assert "No space left" in full.stdout and int(full.stdout.split()[-1]) <= limits.disk_bytes
        if workspaces.capabilities.disk_in_memory:
            fill = "i=0; while touch /tmp/$i 2>/dev/null; do i=$((i+1)); done; echo $i; rm /tmp/*"
            assert int((await workspace.exec(fill)).stdout) <= limits.files
        bomb = await workspace.exec("f() { f | f & f; }; f", timeout_s=LONG)
        assert bomb.status in (ExecStatus.PIDS, TIMEOUT), bomb
        await workspace.end_processes()
        large = await workspace.exec("x=x; while :; do x=$x$x; done", timeout_s=LONG)
        assert large.status is ExecStatus.MEMORY, large
        shell = await workspace.open_shell()
        assert (await shell.run("(x=x; while :; do x=$x$x; done)", timeout_s=LONG)).status is ExecStatus.MEMORY
        assert (await workspace.exec("echo on")).stdout == "on\n"


async def test_bad_input_gets_one_sentence(workspaces: Workspaces, small_image: UnpackedImage, tmp_path: Path) -> None:
    absent = UnpackedImage(root=tmp_path / "absent")
    with pytest.raises(UserError, match="absent' is not there"):
        await workspaces.open(absent)
    with pytest.raises(UserError, match="is for riscv64, but this machine"):
        await workspaces.open(replace(small_image, architecture="riscv64"))
    for limits in ({"memory_bytes": 1}, {"processes": 0}, {"cpus": 0}, {"disk_bytes": 10}, {"wall_s": 0}):
        with pytest.raises(UserError, match="of a workspace is"):
            await workspaces.open(small_image, limits=WorkspaceLimits(**limits))  # type: ignore[arg-type]


async def test_a_command_reads_what_is_written_while_it_runs(shared: Workspace) -> None:
    ours, theirs = socket.socketpair()

    def answer(name: str, data: bytes) -> None:
        if data == b"name?\n":
            ours.sendall(b"Ada\n")
            ours.shutdown(socket.SHUT_WR)

    with ours, theirs:
        result = await shared.exec("echo name?; cat", stdin=theirs.fileno(), on_output=answer)
    assert (result.ok, result.stdout) == (True, "name?\nAda\n")
