"""Attacks on every sandbox that isolates: nothing gets through, and nothing is left for the next one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pickle
import platform
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forge_env.core.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox, SessionFileError
from sandboxes.guest.seccomp import denied_calls
from sandboxes.settings import AUTO
from tests.helpers.processes import descendants
from tests.helpers.sandboxes import opened
from tests.sandboxes.attacks import LONG, PRELUDE, Attack, Channel, attacks, table
from tests.sandboxes.attacks.channels import ATTACKS as PAGE_CACHE
from tests.sandboxes.attacks.channels import CHANNELS, crosses
from tests.sandboxes.attacks.watching import ATTACKS as WATCHING

pytestmark = pytest.mark.asyncio(loop_scope="module")

ESCAPES = attacks("escapes")
ATTACKS = [*attacks("resources"), *ESCAPES, *attacks("leftovers"), *PAGE_CACHE, *WATCHING]
FORGERIES = {row["name"]: row["code"] for row in table("forgeries", "forgeries")}
OUTSIDE = ("/tmp/forge-env-forged-result", "/dev/shm/forge-env-forged-result")
"""Files that a forgery writes beside its folder; where nothing isolates it, they are there afterwards."""
SLOTS = 2
ROOT = Path(__file__).parents[2]
MARKER = "sandbox-attack-marker"
CASES = [(x, 2 * x) for x in (4, -3, 271_828)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=AUTO)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    async with opened(request.param, slots=SLOTS) as sandbox:
        await fill(sandbox)
        yield sandbox


async def fill(sandbox: Sandbox) -> None:
    """Use every place and the places of two sessions, so that what is kept for them is there before any
    attack."""
    await asyncio.gather(*(sandbox.run("import time; time.sleep(0.2)") for _ in range(SLOTS)))
    sessions = [await sandbox.open_session() for _ in range(2)]
    for session in sessions:
        await session.close()


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What attacks are told of this machine, so that they have something to reach for."""
    secret = tmp_path_factory.mktemp("host") / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    machine = platform.machine()
    calls = denied_calls(machine) | {
        "clone": {"x86_64": 56, "aarch64": 220}[machine],
        "ioctl": {"x86_64": 16, "aarch64": 29}[machine],
        "fcntl": {"x86_64": 72, "aarch64": 25}[machine],
        "sched_setattr": {"x86_64": 314, "aarch64": 274}[machine],
        "ioprio_set": {"x86_64": 251, "aarch64": 30}[machine],
    }
    os.environ["FORGE_ENV_TEST_MARKER"] = MARKER
    with closing(socket.create_server(("127.0.0.1", 0))) as server, closing(socket.socket(socket.AF_UNIX)) as abstract:
        abstract.bind(f"\0{MARKER}-{os.getpid()}")
        abstract.listen()
        yield {
            "secret": str(secret),
            "repository": str(ROOT),
            "port": server.getsockname()[1],
            "abstract": f"{MARKER}-{os.getpid()}",
            "pid": os.getpid(),
            "marker": MARKER,
            "calls": calls,
        }
    del os.environ["FORGE_ENV_TEST_MARKER"]


def traces() -> dict[str, Any]:
    """Return what an attack could have left on this machine."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return {
        "processes": descendants(os.getpid()),
        "mounts": Path("/proc/self/mounts").read_text().splitlines(),
        "descriptors": sorted(os.readlink(link) for link in links if os.path.lexists(link)),
        "groups": sorted(str(path) for path in own_groups()),
        "files": sorted(str(path) for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in marked(Path(folder))),
        "cores": sorted(path.name for path in (*Path.cwd().glob("core*"), *Path("/tmp").glob("core*"))),
        "memory": Path("/proc/sysvipc/shm").read_text() if os.path.exists("/proc/sysvipc/shm") else "",
    }


def own_groups() -> Iterator[Path]:
    """Yield the control groups that this process has made, and those below them."""
    for folder, _, _ in os.walk("/sys/fs/cgroup"):
        if f"-{os.getpid()}-" in folder and "/forge_env-" in folder:
            yield Path(folder)


def marked(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*") if MARKER in path.name or path.name in ("left", "result"))


async def settled(before: dict[str, Any], *, takes_helper: bool = False) -> dict[str, Any]:
    """Return the traces, as soon as they are those of before, and at the latest after a while.

    What is gone is left by no attack: the event loop of an earlier test, say, collected only now, or the mount of a
    test that another worker runs. With `takes_helper` as many other processes are the same: the kernel may have killed
    the helper of a place, and the next run has started another one, with a socket of another number.
    """

    def name(trace: str) -> str:
        return trace.partition(":[")[0] if takes_helper else trace

    for _ in range(200):
        now = traces()
        for what in ("descriptors", "mounts"):
            if not Counter(map(name, now[what])) - Counter(map(name, before[what])):
                now[what] = before[what]
        if takes_helper and len(now["processes"]) == len(before["processes"]):
            now["processes"] = before["processes"]
        if now == before:
            break
        await asyncio.sleep(0.02)
    return now


async def is_honest(sandbox: Sandbox) -> None:
    """Every place of the pool still serves honest code, correctly and in a fresh state."""
    code = """
import builtins, gc, json, math, os, re, socket
def f(x):
    with open("/tmp/own", "w") as file: file.write("x")
    socket.socket(socket.AF_UNIX).bind("\\0left")
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    return [x * 2, math.pi > 3, json.loads("[1]"), len("ab"), os.listdir("/tmp"), len(processes), "LEFT" in os.environ,
            os.listdir("/dev/shm") in ([], ["own"]), bool(re.match("a+", "aaa")), gc.get_threshold()[0] > 1]
"""
    request = ExecRequest(code=code, call=Call(function="f", args=[21]), limits=Limits(wall_s=20, cpu_s=20))
    results = await asyncio.gather(*(sandbox.run(request) for _ in range(SLOTS)))
    for result in results:
        assert result.status is ExecStatus.OK and result.value, result
        expected = [42, True, [1], 2, ["own"], 2, False, True, True, True]
        if not sandbox.capabilities.pid_namespace:
            expected[5] = json.loads(result.value)[5]
        assert json.loads(result.value) == expected


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_attack_comes_to_nothing(sandbox: Sandbox, facts: dict[str, Any], attack: Attack) -> None:
    if attack.counted and not sandbox.capabilities.memory_limit.startswith("cgroup"):
        pytest.skip(f"memory is limited per process only: {'; '.join(sandbox.capabilities.missing)}")
    before = traces()
    call = Call(function="f", args=[facts]) if attack.calls else None
    result = await sandbox.run(
        ExecRequest(code=attack.code, setup=PRELUDE, stdin="input", call=call, limits=attack.limits)
    )
    assert "got through" not in result.stdout
    if attack.takes_container and result.backend == "docker" and result.error.startswith("the container ended"):
        assert result.status is ExecStatus.SANDBOX_ERROR
    else:
        assert result.status in attack.ends, result
        assert not result.error
    if result.value is not None:
        assert attack.harmless(json.loads(result.value)), result.value
    json.dumps([result.stdout, result.stderr]).encode()
    assert len(result.stdout.encode()) <= 4 * attack.limits.output_bytes
    assert result.wall_s < attack.limits.wall_s + 5
    await is_honest(sandbox)
    assert await settled(before, takes_helper=attack.takes_container) == before


@pytest.mark.parametrize("attack", [a for a in ATTACKS if a.control], ids=lambda attack: attack.name)
async def test_the_attack_works_where_nothing_stops_it(facts: dict[str, Any], attack: Attack) -> None:
    assert attack.control is not None and attack.control(facts), "the attack proves nothing: it fails everywhere"


@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: channel.name)
async def test_a_run_finds_nothing_of_the_one_before(sandbox: Sandbox, facts: dict[str, Any], channel: Channel) -> None:
    before = traces()

    async def run(name: str) -> Any:
        call = Call(function=name, args=[facts])
        result = await sandbox.run(ExecRequest(code=channel.code, setup=PRELUDE, call=call, limits=LONG))
        assert result.status is ExecStatus.OK and result.value, result
        return json.loads(result.value)

    untouched = await run("find")
    for _ in range(3):  # one after the other takes the same place
        await run("leave")
        assert await run("find") == untouched
    await is_honest(sandbox)
    assert await settled(before) == before


@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: channel.name)
async def test_the_channel_works_where_nothing_stops_it(facts: dict[str, Any], channel: Channel) -> None:
    assert crosses(channel, facts), "the channel proves nothing: it carries nothing anywhere"


async def test_sessions_give_no_names_outside_of_their_networks(sandbox: Sandbox) -> None:
    """The socket through which a session is driven belongs to the network namespace of whoever drives it."""
    name = f"\0{MARKER}-{os.getpid()}-driver"
    sessions = [await sandbox.open_session() for _ in range(2)]
    try:
        code = f"""
import socket
driver = socket.socket(fileno=3)
try: print(driver.bind({name!r}))
except OSError as error: print(error.errno)
driver.detach()
"""
        told = [(await session.run(code)).stdout for session in sessions]
    finally:
        for session in sessions:
            await session.close()
    assert told == [f"{errno.EINVAL}\n"] * 2, "both are told that it has a name, and neither hears of the other"
    # The control: where it has none, the first gives it one, and the second sees that somebody did.
    with closing(socket.socket(socket.AF_UNIX)) as first, closing(socket.socket(socket.AF_UNIX)) as second:
        first.bind(name)
        with pytest.raises(OSError, match="in use"):
            second.bind(name)


async def test_sockets_that_a_session_sends_to_its_driver_end_with_it(sandbox: Sandbox) -> None:
    """While they wait to be read by the host nothing collects them: the place gets another network."""
    before = traces()
    code = """
import socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
    named.bind("\\0ring")
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [left.fileno(), right.fileno(), named.fileno()])
    driver = socket.socket(fileno=3)
    for _ in range(3): socket.send_fds(driver, [b"x"], [left.fileno(), right.fileno()])
"""
    for _ in range(2):
        session = await sandbox.open_session(limits=LONG)
        try:
            result = await session.run(code)
        finally:
            await session.close()
        assert result.status is ExecStatus.SIGNALED and "in use" not in result.stderr, result
    await is_honest(sandbox)
    assert await settled(before) == before


async def grade(sandbox: Sandbox, answer: str) -> bool:
    """Say whether the answer doubles numbers, as environments do: what is expected never enters the sandbox."""
    for x, expected in CASES:
        result = await sandbox.run(ExecRequest(code=answer, call=Call(function="f", args=[x]), limits=LONG))
        assert result.status is not ExecStatus.SANDBOX_ERROR, result
        if result.status is not ExecStatus.OK or result.value is None:
            return False
        got = json.loads(result.value)
        if type(got) is not type(expected) or got != expected:
            return False
    return True


def grade_in_process(answer: str) -> bool:
    """The control: how HumanEval and many after it grade. Code and tests share a process, whose own word counts."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        verdicts: list[str] = []
        try:
            os.setsid()
            # Monarch, if another test has imported it, handles a crash with threads that a fork does not have.
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            devnull = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(devnull, fd)
            os.closerange(3, write_end)
            os.closerange(write_end + 1, 256)
            tests = "\n".join(f"assert f({x}) == {expected}" for x, expected in CASES)
            exec(f"{answer}\n{tests}", {"__name__": "__main__"})
            verdicts.append("passed")
        except BaseException:
            verdicts.append("failed")
        finally:
            os.write(write_end, verdicts[0].encode() if verdicts else b"")
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as said:
        verdict = said.read()
    os.waitpid(pid, 0)
    return verdict == b"passed"


async def test_right_and_wrong_answers_are_told_apart(sandbox: Sandbox) -> None:
    assert await grade(sandbox, "def f(x): return 2 * x")
    assert not await grade(sandbox, "def f(x): return 2 * x + 1")


@pytest.mark.parametrize("name", FORGERIES)
async def test_verdict_cannot_be_forged(sandbox: Sandbox, name: str) -> None:
    before = traces()
    assert not await grade(sandbox, FORGERIES[name])
    await is_honest(sandbox)
    assert await settled(before) == before


async def test_the_control_is_fooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it not, the forgeries above would prove nothing."""
    monkeypatch.chdir(tmp_path)  # nothing isolates the control, and answers write files
    try:
        assert grade_in_process("def f(x): return 2 * x") and not grade_in_process("def f(x): return 2 * x + 1")
        fooled = {name for name, answer in FORGERIES.items() if grade_in_process(answer)}
    finally:
        written = [path for path in map(Path, OUTSIDE) if path.exists()]
        for path in written:
            path.unlink()
    assert (tmp_path / "result.json").exists() and len(written) == len(OUTSIDE), "the control writes what it likes"
    assert len(fooled) >= 4 and {"walk the stack to the grader", "an object that equals everything"} <= fooled


async def test_files_of_a_session_are_data(sandbox: Sandbox, tmp_path: Path) -> None:
    """Links, odd names, FIFOs, devices and pickles: the host follows, opens, waits for and decodes none of it."""
    before = traces()
    target = tmp_path / "secret"
    target.write_text("secret")
    session = await sandbox.open_session(limits=replace(LONG, file_bytes=2**20))
    try:
        made = await session.run(f"""
import os, pickle, socket, zipfile
os.symlink({str(target)!r}, "link"); os.symlink("/etc", "folder"); os.mkfifo("fifo"); os.symlink("loop", "loop")
socket.socket(socket.AF_UNIX).bind("socket")
os.truncate(os.open("sparse", os.O_RDWR | os.O_CREAT), 2**20)
class Evil:
    def __reduce__(self): return os.mkdir, ({str(tmp_path / "made")!r},)
open("evil", "wb").write(pickle.dumps(Evil()))
with zipfile.ZipFile("slip.zip", "w") as archive: archive.writestr("../../{MARKER}", "x")
""")
        assert made.status is ExecStatus.OK, made
        for path in (
            "link",
            "folder/passwd",
            "folder",
            "fifo",
            "loop",
            "socket",
            "absent",
            "/etc/passwd",
            "../x",
            "",
            "\0",
        ):
            with pytest.raises(SessionFileError):
                await session.get(path)
        for path in ("folder/x", "../x", "/tmp/x", "a/../../x", "a\0b", "x" * 4096, "fifo/x"):
            with pytest.raises(SessionFileError):
                await session.put(path, b"x")
        with pytest.raises(SessionFileError):
            await session.put("large", bytes(2**20 + 1))
        assert len(await session.get("sparse")) == 2**20
        assert pickle.dumps(0)[:2] == (await session.get("evil"))[:2] and not (tmp_path / "made").exists()
        assert (await session.get("slip.zip")).startswith(b"PK")
    finally:
        await session.close()
    await is_honest(sandbox)
    assert await settled(before) == before


async def test_a_session_that_patches_its_interpreter_forges_only_itself(sandbox: Sandbox) -> None:
    before = traces()
    session = await sandbox.open_session(limits=LONG)
    try:
        await session.run("""
import sys, builtins
builtins.print = lambda *a: sys.stdout.write("forged\\n")
for module in list(sys.modules.values()):
    if "guest" in str(getattr(module, "__file__", "")) and hasattr(module, "exhausted"):
        module.exhausted = lambda e: b""
""")
        assert (
            await session.run("print(1)")
        ).stdout == "forged\n"  # only what a tool shows: no verdict is taken from it
        assert await grade(sandbox, "def f(x): return 2 * x")
        assert not await grade(sandbox, "def f(x): return 0")
        other = await sandbox.open_session(limits=LONG)
        try:
            assert (await other.run("print(1)")).stdout == "1\n"
        finally:
            await other.close()
    finally:
        await session.close()
    await is_honest(sandbox)
    assert await settled(before) == before


async def test_neighbours_are_served_while_one_is_attacked(sandbox: Sandbox) -> None:
    """One place runs a bomb; the others answer within their limits, and the bomb ends at its own."""
    bomb = "import os, threading\nfor _ in range(8): threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()"
    busy = asyncio.create_task(sandbox.run(ExecRequest(code=bomb, limits=Limits(wall_s=0.5, cpu_s=20.0))))
    served: list[ExecResult] = []
    while not busy.done():
        served.append(await sandbox.run(ExecRequest(code="print(1)", limits=Limits(wall_s=20.0))))
    assert (await busy).status is ExecStatus.TIMEOUT
    assert served and all(result.stdout == "1\n" for result in served)
