"""The docker sandbox with a real engine, or skipped with the reason why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from contrib.docker.backend import DockerSandbox, open_docker_sandbox
from contrib.docker.engine import Engine
from contrib.docker.image import build_context, ensure_image
from contrib.docker.owner import LABEL, labels, reap, remove
from contrib.docker.pool import Pool
from contrib.docker.recipe import Recipe
from contrib.workspaces.tests.machines.conftest import why_no_engine
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.core.sandbox import (
    Call,
    Capabilities,
    ExecRequest,
    ExecResult,
    ExecStatus,
    Limits,
    Session,
    SessionFileError,
)
from forge_env.utils.deadlines import Deadline

ROOT = Path(__file__).parents[3]
PROMPT_S = 30.0  # far below the sleeps of the snippets, far above what an answer takes on a busy machine


NO_ENGINE = why_no_engine()
pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_engine = pytest.mark.skipif(bool(NO_ENGINE), reason=NO_ENGINE)


async def opened(**settings: Any) -> DockerSandbox:
    if NO_ENGINE:
        pytest.skip(NO_ENGINE)
    try:
        return await open_docker_sandbox(slots=2, max_sessions=4, **settings)
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[DockerSandbox]:
    opened_one = await opened()
    yield opened_one
    await opened_one.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[DockerSandbox]:
    """As on an engine that forbids namespaces in its containers."""
    opened_one = await opened(pid_namespace=False)
    yield opened_one
    await opened_one.close()


@pytest.fixture(params=["sandbox", "plain"])
def each(request: pytest.FixtureRequest) -> DockerSandbox:
    """Either."""
    found: DockerSandbox = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture(loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    if NO_ENGINE:
        pytest.skip(NO_ENGINE)
    connected = await Engine.connect()
    yield connected
    connected.close()


@pytest_asyncio.fixture(loop_scope="module")
async def session(sandbox: DockerSandbox) -> AsyncIterator[Session]:
    one = await sandbox.open_session(setup="t = 7")
    yield one
    await one.close()


async def run(sandbox: DockerSandbox, code: str, **fields: Any) -> ExecResult:
    return await sandbox.run(ExecRequest(code=textwrap.dedent(code), **fields))


async def value(sandbox: DockerSandbox, code: str, *args: Any, **fields: Any) -> Any:
    result = await run(sandbox, code, call=Call(function="f", args=args), **fields)
    assert result.status is ExecStatus.OK and result.value is not None, result
    return json.loads(result.value)


async def printed(session: Session, code: str, **fields: Any) -> str:
    result = await session.run(textwrap.dedent(code), **fields)
    assert (result.status, result.exit_code, result.stderr) == (ExecStatus.OK, 0, ""), result
    return result.stdout


async def containers(engine: Engine, label: str = f"{LABEL}.pid={os.getpid()}") -> set[str]:
    """Return the containers of the docker sandboxes of this process, running or not.

    Other processes, as another worker of pytest, make and remove their own at the same engine at any time.
    """
    listed = await engine.call(engine.client.api.containers, all=True, filters={"label": label})
    return {container["Id"] for container in listed}


async def until(condition: Callable[[], Any], deadline_s: float = PROMPT_S) -> None:
    end = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.02)


# --- verdicts ---

VERDICTS = {
    "ok": ("print('done')", ExecStatus.OK, 0, None, {}),
    "nonzero": ("import sys; sys.exit(3)", ExecStatus.NONZERO, 3, None, {}),
    "signaled": ("import os; os.kill(os.getpid(), 11)", ExecStatus.SIGNALED, None, signal.SIGSEGV, {}),
    "timeout": ("import time; time.sleep(60)", ExecStatus.TIMEOUT, None, signal.SIGKILL, {"wall_s": 0.5}),
    "memory": ("x = bytearray(1 << 30)", ExecStatus.MEMORY, 1, None, {"memory_bytes": 2**27}),
    "pids": ("import os, time\nfor _ in range(20):\n  if not os.fork(): time.sleep(60)", ExecStatus.PIDS, 1, None,
             {"processes": 8}),
    "output_limit": ("while True: print('x' * 10**5)", ExecStatus.OUTPUT_LIMIT, None, signal.SIGKILL, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
async def test_verdicts(each: DockerSandbox, name: str) -> None:
    code, status, exit_code, number, limits = VERDICTS[name]
    result = await run(each, code, limits=Limits(**limits))
    assert (result.status, result.exit_code, result.signal) == (status, exit_code, number), result
    assert result.backend == "docker" and 0 < result.wall_s < PROMPT_S
    if each.capabilities.pid_namespace:  # else it gets another container, which is slow to start
        assert (await run(each, "print(1)")).stdout == "1\n"


async def test_memory_of_all_processes_together_is_limited(each: DockerSandbox) -> None:
    code = """
    import os, time
    for _ in range(6):
        if not os.fork():
            held = bytearray(90 * 2**20)
            time.sleep(60)
    raise SystemExit(os.waitpid(-1, 0)[1] != 0)
    """
    limits = Limits(memory_bytes=128 * 2**20, wall_s=20, cpu_s=20)
    result = await run(each, code, limits=limits)
    assert result.status is ExecStatus.MEMORY, result


async def test_streams_stdin_calls_and_setup(sandbox: DockerSandbox) -> None:
    result = await run(sandbox, "import sys; print(input().upper()); print('e', file=sys.stderr)", stdin="hällo\n")
    assert (result.stdout, result.stderr, result.value) == ("HÄLLO\n", "e\n", None)
    assert result.cpu_s > 0 and result.peak_memory_bytes > 2**20
    code = "def f(*args): return [args, g(), {'k': None, 3: 1.5}, 'ü']"
    assert await value(sandbox, code, [1], "a", setup="def g(): return 5") == [
        [[1], "a"],
        5,
        {"k": None, "3": 1.5},
        "ü",
    ]
    broken = await run(sandbox, "print('never')", setup="1 / 0")
    assert broken.status is ExecStatus.SANDBOX_ERROR and "ZeroDivisionError" in broken.error and not broken.stdout


async def test_output_is_intact_or_capped(sandbox: DockerSandbox) -> None:
    result = await run(sandbox, "print('ab' * 100_000)", limits=Limits(output_bytes=300_000))
    assert (result.status, result.stdout) == (ExecStatus.OK, "ab" * 100_000 + "\n")
    result = await run(sandbox, "print('x' * 3000)", limits=Limits(output_bytes=1000))
    assert (result.status, result.stdout, result.truncated_stdout) == (ExecStatus.OK, "x" * 1000, True)
    result = await run(sandbox, r"import os; os.write(1, b'\xff' * 1000)", limits=Limits(output_bytes=1000))
    assert result.stdout == "\ufffd" * 1000


async def test_arguments_that_are_no_json_raise_at_once(sandbox: DockerSandbox) -> None:
    with pytest.raises(TypeError):
        await run(sandbox, "", call=Call(function="f", args=[object()]))
    assert (await sandbox.run("print(1)")).stdout == "1\n"


async def test_many_clients(sandbox: DockerSandbox, engine: Engine) -> None:
    before = await containers(engine)
    code = "def f(x): return x * x"
    got = await asyncio.gather(*(value(sandbox, code, number) for number in range(24)))
    assert got == [number**2 for number in range(24)]
    assert len(await containers(engine) - before) <= 2, "requests wait for a container, they do not get one each"


# --- isolation ---

LOOK = """
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)

def attempt(result):
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "done"

def family(number):
    try:
        socket.socket(number, socket.SOCK_DGRAM).close()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "opened"

def f():
    x86 = platform.machine() == "x86_64"
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
    return {
        "calls": [
            attempt(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None)),
            attempt(libc.unshare(0x10000000)),
            attempt(libc.syscall(56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)),
            attempt(libc.ptrace(16, 1, 0, 0)),
            attempt(libc.syscall(425, 1, 0)),
            attempt(libc.syscall(321 if x86 else 280, 0, 0, 0)),
            attempt(libc.syscall(250 if x86 else 219, 0, 0, 0)),
            attempt(libc.memfd_create(b"x", 0)),
            attempt(libc.setuid(0)),
        ],
        "families": [family(number) for number in (16, 17, 38, 40)],
        "connect": errno.errorcode[socket.socket().connect_ex(("127.0.0.1", 9))],
        "outside": errno.errorcode[socket.socket().connect_ex(("192.0.2.1", 9))],
        "caps": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
        "locks": [status["NoNewPrivs"].strip(), status["Seccomp"].strip()],
        "root": "0" in status["Uid"].split() + status["Gid"].split(),
        "environ": sorted(os.environ),
        "files": [p for p in ("/var/run/docker.sock", "/run/docker.sock", "/.dockerenv") if os.path.exists(p)],
        "shadow": os.access("/etc/shadow", os.R_OK),
        "writable": [p for p in ("/", "/usr", "/etc", "/opt", "/opt/forge-env", "/dev") if os.access(p, os.W_OK)],
        "processes": [name for name in os.listdir("/proc") if name.isdigit()],
        "readable": [n for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getpid()
                     and os.access(f"/proc/{n}/environ", os.R_OK)],
        "fds": sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)),
        "tmp": os.listdir("/tmp"),
        "kill_agent": [attempt(libc.kill(n, 9)) for n in (1, 7) if n != os.getpid()],
    }
"""


async def test_the_snippet_is_confined_within_its_container(sandbox: DockerSandbox) -> None:
    if not sandbox.capabilities.pid_namespace:
        pytest.skip(sandbox.capabilities.missing[0])
    seen = await value(sandbox, LOOK)
    assert seen["processes"] == ["1", "2"] and seen["files"] == [] and seen["readable"] in ([], ["1"])
    check_confined(seen)


async def test_the_snippet_is_confined_by_its_container_alone(plain: DockerSandbox) -> None:
    assert not plain.capabilities.pid_namespace and "no pid namespace" in plain.capabilities.missing[0]
    seen = await value(plain, LOOK)
    assert seen["readable"] == [] and set(seen["kill_agent"]) <= {"EPERM", "ESRCH"}
    check_confined(seen)


def check_confined(seen: dict[str, Any]) -> None:
    *calls, setuid = seen["calls"]
    assert calls == ["EPERM"] * 8 and setuid in ("EPERM", "EINVAL")
    assert seen["families"] == ["EAFNOSUPPORT"] * 4
    assert {seen["connect"], seen["outside"]} <= {"ENETUNREACH", "ECONNREFUSED"} and seen["outside"] == "ENETUNREACH"
    assert seen["caps"] == [0] * 4 and seen["locks"] == ["1", "2"] and not seen["root"]
    assert seen["environ"] == ["HOME", "LANG", "PATH"] and seen["tmp"] == [] and set(seen["fds"]) <= {0, 1, 2, 3}
    assert "/var/run/docker.sock" not in seen["files"] and not seen["shadow"] and seen["writable"] == []


async def test_the_engine_was_asked_for_a_hardened_container(sandbox: DockerSandbox, engine: Engine) -> None:
    listed = await engine.call(engine.client.api.containers, filters={"label": f"{LABEL}.pid={os.getpid()}"})
    container = next(
        one["Id"] for one in listed if "namespace" in one["Command"] or not sandbox.capabilities.pid_namespace
    )
    found = await engine.call(engine.client.api.inspect_container, container)
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none" and host["ReadonlyRootfs"] and host["AutoRemove"] and host["Init"]
    assert host["CapDrop"] == ["ALL"] and not host["Privileged"] and not host["Binds"]
    assert host["CapAdd"] in (None, [], ["SETUID", "SETGID", "SETPCAP", "KILL"])
    assert "no-new-privileges" in host["SecurityOpt"] and any("seccomp=" in text for text in host["SecurityOpt"])
    assert host["Memory"] == host["MemorySwap"] > 0 and host["PidsLimit"] > 0 and host["NanoCpus"] == 10**9
    assert "noexec" in host["Tmpfs"]["/tmp"] and found["Config"]["StdinOnce"] and not found["Config"]["Tty"]


async def test_nothing_of_a_snippet_is_there_for_the_next(sandbox: DockerSandbox, plain: DockerSandbox) -> None:
    leave = "import os, math\nmath.pi = 3\nopen('/tmp/left', 'w')\nif not os.fork(): __import__('time').sleep(60)"
    look = "import os, math; print(math.pi > 3, os.listdir('/tmp'), os.listdir('/dev/shm'))"
    for one in (sandbox, sandbox, plain):
        await run(one, leave)
        assert (await run(one, look)).stdout == "True [] []\n"


async def test_capabilities_say_what_is_enforced(sandbox: DockerSandbox) -> None:
    found = sandbox.capabilities
    assert found.backend == "docker" and found.seccomp and found.network_namespace
    assert found.memory_limit in ("cgroup_v1", "cgroup_v2") and found.cpu_share
    assert found.capabilities_dropped and found.host_watch_denied and {"stack", "rtprio"} <= set(found.limits)


# --- sessions ---


async def test_a_session_keeps_its_state(session: Session) -> None:
    assert await printed(session, "x = 20\nopen('left', 'w').write('file')\ndef f(y): return x + y + t") == ""
    assert await printed(session, "print(f(22), open('left').read(), input())", stdin="in") == "49 file in\n"
    result = await session.run("1 / 0")
    assert (result.status, result.state_lost) == (ExecStatus.NONZERO, False) and "1 / 0" in result.stderr
    assert await printed(session, "print(x)") == "20\n"
    await session.reset()
    assert await printed(session, "import os; print('x' in globals(), os.listdir(), t)") == "False [] 7\n"


async def test_the_end_of_the_interpreter_is_told(each: DockerSandbox) -> None:
    session = await each.open_session(setup="t = 7", limits=Limits(wall_s=0.5))
    try:
        background = "if not os.fork(): os.setsid(); time.sleep(60)"
        await printed(session, f"import os, time\nx = 1\nopen('file', 'w').write('x')\n{background}")
        result = await session.run("while True: pass")
        assert (result.status, result.signal, result.state_lost) == (ExecStatus.TIMEOUT, signal.SIGKILL, True)
        look = "import os; print('x' in globals(), os.listdir(), t, sum(map(str.isdigit, os.listdir('/proc'))) < 6)"
        fresh = await session.run(look)
        assert (fresh.stdout, fresh.state_lost) == ("False [] 7 True\n", False), fresh
    finally:
        await session.close()


async def test_put_and_get(session: Session) -> None:
    everything = bytes(range(256)) * 1000
    await session.put("deep/er/data.bin", everything)
    assert await printed(session, "print(len(open('deep/er/data.bin', 'rb').read()))") == "256000\n"
    assert await session.get("deep/./er//data.bin") == everything
    await printed(session, "import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('fifo')")
    for path in ("", "/etc/passwd", "../x", "a/../../x", "x\0y", "n" * 4096, "\ud800", "link", "fifo", "nowhere"):
        with pytest.raises(SessionFileError):
            await session.get(path)
    with pytest.raises(SessionFileError, match="file_bytes"):
        await session.put("big", b"x" * (Limits().file_bytes + 1))


async def test_sessions_do_not_meet_and_are_capped(sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.host.session.SESSION_WAIT_S", 0.1)
    sessions = await asyncio.gather(*(sandbox.open_session() for _ in range(4)))
    try:
        await asyncio.gather(*(session.run(f"x = {n}") for n, session in enumerate(sessions)))
        said = await asyncio.gather(*(session.run("print(x)") for session in sessions))
        assert [result.stdout for result in said] == [f"{n}\n" for n in range(4)]
        with pytest.raises(SandboxError, match="4 sessions are open"):
            await sandbox.open_session()
    finally:
        await asyncio.gather(*(session.close() for session in sessions))
    with pytest.raises(SandboxError, match="closed"):
        await sessions[0].run("1")
    with pytest.raises(SandboxError, match="ZeroDivisionError"):
        await sandbox.open_session(setup="1 / 0")


async def test_closing_a_session_ends_its_cell(sandbox: DockerSandbox) -> None:
    session = await sandbox.open_session(limits=Limits(wall_s=60))
    await printed(session, "import time")
    busy = asyncio.create_task(session.run("time.sleep(60)"))
    await asyncio.sleep(0)  # one turn of the loop: it has its turn
    await asyncio.wait_for(asyncio.gather(session.close(), session.close()), PROMPT_S)
    result = await busy
    assert (result.status, result.error) == (ExecStatus.SANDBOX_ERROR, "the session was closed")


# --- life and death ---


async def test_cancelling_kills_the_snippet_and_keeps_the_container(engine: Engine) -> None:
    others = await containers(engine)
    sandbox = await opened()
    try:
        mine = await containers(engine) - others
        await run(sandbox, "pass", limits=Limits(wall_s=60))
        assert len(mine) == 1
        idle = await processes(engine, *mine)
        task = asyncio.create_task(run(sandbox, "import time; time.sleep(60)", limits=Limits(wall_s=60)))
        await until(lambda: _busy(engine, mine, idle))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, PROMPT_S)
        if sandbox.capabilities.pid_namespace:
            assert await containers(engine) - others == mine
            assert await processes(engine, *mine) == idle
        assert (await run(sandbox, "print(1)")).stdout == "1\n"
    finally:
        await sandbox.close()


async def processes(engine: Engine, container: str) -> int:
    return len((await engine.call(engine.client.api.top, container))["Processes"])


async def _busy(engine: Engine, mine: set[str], idle: int) -> bool:
    return await processes(engine, *mine) > idle


async def test_a_killed_container_is_our_fault_and_is_replaced(engine: Engine) -> None:
    others = await containers(engine)
    sandbox = await opened()
    try:
        session = await sandbox.open_session(limits=Limits(wall_s=60))
        await printed(session, "x = 1; import time")
        mine = await containers(engine) - others
        assert len(mine) == 1
        busy = asyncio.create_task(session.run("time.sleep(60)"))
        await engine.call(engine.client.api.kill, *mine)
        result = await asyncio.wait_for(busy, PROMPT_S)
        assert (result.status, result.state_lost) == (ExecStatus.SANDBOX_ERROR, True) and result.error
        assert await printed(session, "print('x' in globals())") == "False\n"
        assert (await run(sandbox, "print(1)")).stdout == "1\n"
    finally:
        await sandbox.close()


async def test_nothing_is_left_after_close(engine: Engine) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    await (await opened()).close()  # threads of the loop have started
    before, open_files = await containers(engine), descriptors()
    sandbox = await opened()
    session = await sandbox.open_session(limits=Limits(wall_s=60))
    cell = asyncio.create_task(session.run("import time; time.sleep(60)"))
    busy = asyncio.create_task(run(sandbox, "import time; time.sleep(60)", limits=Limits(wall_s=60)))
    waiting = [asyncio.create_task(sandbox.run("1")) for _ in range(4)]
    await until(lambda: _enough(engine, before))
    await asyncio.wait_for(sandbox.close(), PROMPT_S)
    assert await containers(engine) <= before
    for ended in await asyncio.gather(cell, busy, *waiting, return_exceptions=True):
        ours = isinstance(ended, ExecResult) and ended.status is ExecStatus.SANDBOX_ERROR
        assert ours or (isinstance(ended, SandboxError) and "closed" in str(ended)), ended
    assert descriptors() <= open_files
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("1")
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.open_session()


async def _enough(engine: Engine, before: set[str]) -> bool:
    return len(await containers(engine) - before) >= 2


OWNER = """
import asyncio
from forge_env.core.sandbox import ExecRequest, Limits
from contrib.docker.backend import open_docker_sandbox

async def main():
    sandbox = await open_docker_sandbox(slots=1)
    session = await sandbox.open_session(limits=Limits(wall_s=60))
    await session.run("import os, time\\nif not os.fork(): os.setsid(); time.sleep(60)")
    await sandbox.run("pass")
    print("ready", flush=True)
    await sandbox.run(ExecRequest(code="import time; time.sleep(60)", limits=Limits(wall_s=60)))

asyncio.run(main())
"""


@needs_engine
async def test_no_container_outlives_a_killed_owner(sandbox: DockerSandbox, engine: Engine) -> None:
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if "site-packages" in entry)])
    command = [sys.executable, "-c", OWNER]
    environ = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, cwd="/", env=environ, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert await asyncio.to_thread(owner.stdout.readline) == "ready\n"
        assert len(await containers(engine, f"{LABEL}.pid={owner.pid}")) == 2
        owner.send_signal(signal.SIGKILL)
    await until(lambda: _gone(engine, owner.pid))


async def _gone(engine: Engine, pid: int) -> bool:
    return not await containers(engine, f"{LABEL}.pid={pid}")


async def test_the_reaper_removes_what_dead_owners_left_and_nothing_else(engine: Engine) -> None:
    image = await ensure_image(engine)
    api = engine.client.api
    dead = subprocess.Popen(["true"])
    dead.wait()

    async def left(start: bool, **changed: str) -> str:
        named = labels() | {f"{LABEL}.{name.replace('_', '-')}": text for name, text in changed.items()}
        command = ["-c", "import time; time.sleep(60)"]
        made = await engine.call(api.create_container, image, command, entrypoint="python3", labels=named)
        if start:
            await engine.call(api.start, made["Id"])
        return str(made["Id"])

    orphans = {
        await left(False, pid=str(dead.pid)),
        await left(False, start_time="1"),  # another process has our number now
        await left(False, pid="rubbish"),
    }
    others = {await left(False), await left(False, machine="another", pid=str(dead.pid))}
    try:
        await reap(engine)  # unless another process that opens a sandbox has done it meanwhile
        present = await containers(engine, LABEL)
        assert not orphans & present and others <= present
    finally:
        for container in orphans | others:
            await remove(engine, container)


# --- agents that are no longer ours ---

HOSTILE = r"""
import json, os, struct, sys
prefix = struct.Struct("<III")
stdin, out = sys.stdin.buffer, 1
def send(number, header, body=b""):
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = prefix.pack(number, len(data), len(body)) + data + body
    while data:
        data = data[os.write(out, data):]
send(0, {})
result = dict(status="ok", backend="x", exit_code=0, signal=None, truncated_stdout=False, truncated_stderr=False,
              wall_s=1e9, cpu_s=0.0, peak_memory_bytes=0, state_lost=False, error="", sizes=[2, 0, None])
while True:
    number, header_bytes, body_bytes = prefix.unpack(stdin.read(prefix.size))
    message = json.loads(stdin.read(header_bytes))
    stdin.read(body_bytes)
    exec(message.get("code", ""))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hostile(sandbox: DockerSandbox) -> AsyncIterator[DockerSandbox]:
    """A sandbox whose agent does on the host's wire whatever the "snippet" says."""
    engine = await Engine.connect()
    image = await ensure_image(engine)
    lines = [f"FROM {image}", "COPY hostile.py /hostile.py", 'ENTRYPOINT ["python3", "/hostile.py"]']
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, text in (("Dockerfile", "\n".join(lines)), ("hostile.py", HOSTILE)):
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    context.seek(0)
    build = {"fileobj": context, "custom_context": True, "tag": "forge-env-sandbox-hostile:test", "rm": True}
    await engine.call(engine.client.images.build, **build)
    proved = sandbox.capabilities
    recipe = Recipe(image=str(build["tag"]), namespaces=True, cpus=1.0, runtime=None, capabilities=proved)
    pool = Pool(engine, recipe, max_idle=2)
    yield DockerSandbox(engine, pool, proved, slots=2, max_sessions=2)
    await pool.close()
    await engine.call(engine.client.images.remove, recipe.image)
    engine.close()


@pytest.mark.parametrize(
    ("mischief", "said"),
    [
        ("os.write(out, b'x' * 10**6)", "protocol"),
        ("send(number, b'{' * 100)", "protocol"),
        ("send(number, {}, b'')", "protocol"),
        ("send(number, result, b'ok' * 10**6)", "too large"),
        ("send(number, result | {'sizes': [9, 0, None]}, b'ok')", "protocol"),
        ("send(number, result | {'status': 'superb'}, b'ok')", "protocol"),
        ("send(number + 1, result, b'ok')", "an answer without a request"),
        ("os.write(out, struct.pack('<III', number, 2**32 - 1, 2**32 - 1))", "too large"),
        ("os._exit(0)", "ended"),
        ("os.close(0); os.close(1); os._exit(1)", "ended"),
        ("os.write(2, b'last words\\n' * 10**5); os._exit(1)", "last words"),
        ("os.write(out, struct.pack('<III', number, 100, 0)); import time; time.sleep(60)", "in time"),
        ("import time; time.sleep(60)", "in time"),
        ("import threading\nwhile True: os.write(2, b'x' * 65536)", "in time"),
    ],
)
async def test_a_hostile_agent_neither_hangs_nor_floods_the_host(
    hostile: DockerSandbox, mischief: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits()
    if said == "in time":
        monkeypatch.setattr("contrib.docker.container._GRACE_S", 0.2)
        limits = Limits(wall_s=0.1)
    begin = time.monotonic()
    result = await hostile.run(ExecRequest(code=mischief, limits=limits))
    assert result.status is ExecStatus.SANDBOX_ERROR and said in result.error, result
    assert time.monotonic() - begin < PROMPT_S


async def test_a_hostile_agent_can_lie_about_its_own_snippet_only(hostile: DockerSandbox) -> None:
    result = await hostile.run("send(number, result, b'ok')")
    assert (result.status, result.stdout, result.backend) == (ExecStatus.OK, "ok", "docker")
    assert result.wall_s < PROMPT_S, "the host's clock has the last word"


# --- opening ---


async def test_the_image_is_built_once_for_the_same_content(engine: Engine) -> None:
    first = await ensure_image(engine)
    made = (await engine.call(engine.client.images.get, first)).attrs["Created"]
    assert await ensure_image(engine) == first
    assert (await engine.call(engine.client.images.get, first)).attrs["Created"] == made
    assert first.startswith("forge-env-sandbox:") and build_context()


async def test_a_base_image_that_is_nowhere_is_named(engine: Engine) -> None:
    with pytest.raises(SandboxUnavailable, match="no image 'forge-env-nowhere:none'.*FORGE_ENV_SANDBOX_BASE_IMAGE"):
        await ensure_image(engine, "forge-env-nowhere:none")


async def test_settings_out_of_range_are_user_errors() -> None:
    for settings in ({"slots": 0}, {"max_sessions": 0}, {"cpus": 0.0}):
        with pytest.raises(UserError, match=next(iter(settings))):
            await open_docker_sandbox(**settings)  # type: ignore[arg-type]


async def test_no_engine_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(SandboxUnavailable, match="no Docker engine answers .*DOCKER_HOST"):
        await open_docker_sandbox()


async def test_a_missing_sdk_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(SandboxUnavailable, match=r"pip install 'forge-env\[docker\]'"):
        await open_docker_sandbox()


@pytest.mark.parametrize("waits_for", ["_slots", "_session_slots"])
async def test_waiting_for_a_place_is_not_the_episodes_time(waits_for: str) -> None:
    """The engine is never asked: the sandbox is closed by the time that the place is free."""
    engine = cast(Engine, None)
    sandbox = DockerSandbox(engine, cast(Pool, None), cast(Capabilities, None), slots=0, max_sessions=0)

    def free() -> None:
        sandbox._is_closed = True
        getattr(sandbox, waits_for).release()

    asyncio.get_running_loop().call_later(0.1, free)
    work = sandbox.run("1") if waits_for == "_slots" else sandbox._take_session_slot()
    with contextlib.suppress(SandboxError):
        await Deadline(0.05).run(work)  # type: ignore[arg-type]
