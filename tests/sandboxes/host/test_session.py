"""Sessions of the namespace sandbox with real processes: what stays, what ends it, and what hostile cells cannot do."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import ExecResult, ExecStatus, Limits, Sandbox, Session, SessionFileError
from sandboxes import open_sandbox
from sandboxes.host import interpreter
from tests.helpers.processes import descendants, descriptors, without_descriptors
from tests.helpers.sandboxes import owner_of, said_by
from tests.helpers.waiting import is_alive, until

if sys.platform != "linux":
    pytest.skip("the namespace sandbox needs Linux", allow_module_level=True)

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHORT = Limits(wall_s=0.5)
PROMPT_S = 30.0  # far below the sleeps of the cells

Opener = Callable[..., Awaitable[Session]]


@pytest_asyncio.fixture(loop_scope="module")
async def opened(sandbox: Sandbox) -> AsyncIterator[Opener]:
    """Opens sessions and closes them after the test."""
    sessions: list[Session] = []

    async def open_one(**settings: Any) -> Session:
        sessions.append(await sandbox.open_session(**settings))
        return sessions[-1]

    yield open_one
    for session in sessions:
        await session.close()


async def run(session: Session, code: str, **fields: Any) -> ExecResult:
    return await session.run(textwrap.dedent(code), **fields)


async def printed(session: Session, code: str, **fields: Any) -> str:
    result = await run(session, code, **fields)
    assert (result.status, result.exit_code, result.stderr) == (ExecStatus.OK, 0, ""), result
    return result.stdout


async def test_variables_imports_functions_and_files_stay(opened: Opener) -> None:
    session = await opened()
    assert await printed(session, "import math\nx = 20\ndef f(y): return x + y\nprint(math.floor(1.5))") == "1\n"
    assert await printed(session, "open('left', 'w').write('file'); import os; os.mkdir('d'); os.chdir('d')") == ""
    result = await run(session, "print(f(22), math.pi > 3, open('../left').read(), os.getcwd(), __name__)")
    assert result.stdout == "42 True file /tmp/d __main__\n"
    assert (result.status, result.state_lost, result.backend) == (ExecStatus.OK, False, "namespace")
    assert 0 <= result.cpu_s <= result.wall_s + 0.1 and result.peak_memory_bytes > 2**20


async def test_setup_runs_first_and_stays_out_of_tracebacks(opened: Opener) -> None:
    session = await opened(setup="t = [1, 2]\ndef apply(g): return g()")
    result = await run(session, "print(t)\napply(lambda: 1 / 0)")
    assert (result.stdout, result.status, result.exit_code) == ("[1, 2]\n", ExecStatus.NONZERO, 1)
    assert "1 / 0" in result.stderr and "<setup>" not in result.stderr and "guest" not in result.stderr


async def test_broken_setup_is_our_fault(sandbox: Sandbox) -> None:
    before = descendants(os.getpid())
    with pytest.raises(SandboxError, match="ZeroDivisionError"):
        await sandbox.open_session(setup="1 / 0")
    assert descendants(os.getpid()) == before


async def test_echo_prints_the_last_expression(opened: Opener) -> None:
    session = await opened(echo=True)
    cells = ["x = 5", "x", "x; 'a\\n'", "None", "1\nx += 1", "_ + '!'", "", "# nothing", "print(x)", "def f(): 1"]
    assert [await printed(session, cell) for cell in cells] == [
        "",
        "5\n",
        "'a\\n'\n",
        "",
        "",
        "'a\\n!'\n",
        "",
        "",
        "6\n",
        "",
    ]
    silent = await opened()
    assert await printed(silent, "5") == ""


async def test_exceptions_and_exit_keep_the_state(opened: Opener) -> None:
    session = await opened(echo=True)
    await printed(session, "x = 1\ndef f(y):\n    return 1 / y\n")
    for code, exit_code, said in (
        ("f(0)", 1, "    return 1 / y"),  # a line of an earlier cell
        ("def f(:", 1, "SyntaxError"),
        ("x = '\ud800'", 1, "UnicodeEncodeError"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
        ("exit(3)", 3, ""),
        ("import sys; sys.exit('bye')", 1, "bye"),
    ):
        result = await run(session, code)
        assert (result.status, result.exit_code, result.state_lost) == (ExecStatus.NONZERO, exit_code, False), result
        assert said in result.stderr and "guest" not in result.stderr and "ast.py" not in result.stderr
    assert (await run(session, "exit()")).status is ExecStatus.OK
    assert await printed(session, "x") == "1\n"


async def test_stdin_is_of_one_cell(opened: Opener) -> None:
    session = await opened()
    assert await printed(session, "print(input())", stdin="ä\nb\n") == "ä\n"
    assert "EOFError" in (await run(session, "input()")).stderr
    assert await printed(session, "import sys; print(sys.stdin.read())", stdin="c") == "c\n"


async def test_background_work_goes_on_and_ends_with_the_session(opened: Opener) -> None:
    session = await opened()
    idle = descendants(os.getpid())
    shell = "['/bin/sh', '-c', 'read x; echo heard $x; sleep 60']"
    await printed(session, f"import os, subprocess, time; p = subprocess.Popen({shell}, stdin=subprocess.PIPE)")
    assert len(descendants(os.getpid()) - idle) == 1
    said = await printed(session, "p.stdin.write(b'it\\n'); p.stdin.flush()")
    said += await printed(session, "if not os.fork():\n  os.setsid()\n  os.fork() or time.sleep(60)\n  os._exit(0)")
    end = time.monotonic() + PROMPT_S
    while said != "heard it\n" and time.monotonic() < end:
        said += await printed(session, "time.sleep(0.01)")
    assert said == "heard it\n"
    await session.close()
    assert descendants(os.getpid()) < idle


async def test_forked_copies_of_the_interpreter_do_not_answer(opened: Opener) -> None:
    session = await opened()
    assert await printed(session, "import os\npid = os.fork()\nif pid: os.wait()") == ""
    assert await printed(session, "print(pid > 0)") == "True\n"


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "number"),
    [
        ("10 ** 10 ** 8", ExecStatus.TIMEOUT, None, signal.SIGKILL),
        ("import os\nwhile True:\n  try: os.wait3()\n  except BaseException: pass", ExecStatus.TIMEOUT, None, 9),
        ("while True: print('x' * 1000)", ExecStatus.OUTPUT_LIMIT, None, signal.SIGKILL),
        ("import os\nif not os.fork():\n  while True: os.write(2, b'x' * 9999)", ExecStatus.OUTPUT_LIMIT, None, 9),
        ("import os; os._exit(4)", ExecStatus.NONZERO, 4, None),
        ("import os; os._exit(0)", ExecStatus.OK, 0, None),
        ("import os; os.kill(os.getpid(), 9)", ExecStatus.SIGNALED, None, signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", ExecStatus.SIGNALED, None, signal.SIGSEGV),
        ("import os; os.execv('/bin/true', ['true'])", ExecStatus.OK, 0, None),
        ("import os; os.closerange(0, 99)", None, None, None),
        ("import os\nwhile True: os.write(3, b'x' * 99)", None, None, None),
        ("import socket; socket.send_fds(socket.socket(fileno=3), [b'x'], [1, 1, 1])", None, None, None),
        ("import os, struct; os.write(3, struct.pack('<IBcdq', 1, 0, b'?', float('nan'), 1))", None, None, None),
    ],
)  # fmt: skip
async def test_end_is_told_and_the_next_cell_starts_afresh(
    opened: Opener, code: str, status: ExecStatus | None, exit_code: int | None, number: int | None
) -> None:
    session = await opened(
        setup="print('never shown')\nt = 7", limits=SHORT if status is ExecStatus.TIMEOUT else Limits()
    )
    idle, open_files = len(descendants(os.getpid())), len(descriptors())
    await printed(session, "x = 1; open('file', 'w').write('x')")
    if "fork" in code:  # it floods from a child, which the cell itself does not wait for
        code += "\nimport time; time.sleep(60)"
    result = await run(session, code)
    assert result.state_lost and result.wall_s < PROMPT_S
    if status is not None:
        assert (result.status, result.exit_code, result.signal) == (status, exit_code, number), result
    assert result.status is not ExecStatus.SANDBOX_ERROR
    fresh = await run(session, "import os; print('x' in globals(), os.listdir(), t)")
    assert (fresh.stdout, fresh.state_lost) == ("False [] 7\n", False)
    assert (len(descendants(os.getpid())), len(descriptors())) == (idle, open_files)


async def test_cpu_limit_is_per_cell(opened: Opener) -> None:
    session = await opened(limits=Limits(wall_s=30, cpu_s=1))
    limit = "import resource, time; print(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    assert await printed(session, limit) == "2\n", "of the process, in whole seconds"
    await printed(session, "while time.process_time() < 1.01: pass")
    assert await printed(session, limit) == "3\n"
    result = await run(session, "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)")  # as the kernel does then
    assert (result.status, result.signal, result.state_lost) == (ExecStatus.TIMEOUT, signal.SIGXCPU, True)


async def test_memory_limit(opened: Opener) -> None:
    session = await opened(limits=Limits(memory_bytes=128 * 2**20, wall_s=10))
    await printed(session, "kept = 1")
    for code in ("x = bytearray(1 << 30)", "x = []\nwhile True: x.append(' ' * 10**6)"):
        result = await run(session, code)
        assert result.status is ExecStatus.MEMORY and result.peak_memory_bytes < 2**28, result
    assert await printed(session, "del x; print(kept)") == "1\n"


async def test_process_limit_is_of_the_whole_session(opened: Opener) -> None:
    session = await opened(limits=Limits(processes=6))
    fork = "import os, time\nfor _ in range(3):\n  if not os.fork(): time.sleep(60)"
    await printed(session, fork)
    result = await run(session, fork)
    assert (result.status, result.state_lost) == (ExecStatus.PIDS, False)
    other = await opened(limits=Limits(processes=6))
    await printed(other, fork)  # of another user, so it has processes of its own to use up


async def test_a_cell_that_holds_every_descriptor_leaves_no_room_for_the_next(opened: Opener) -> None:
    session = await opened()
    await run(session, "held = []\nwhile True: held.append(open('/dev/null'))")
    for _ in range(2):
        result = await run(session, "print('never')", stdin="x")
        assert (result.status, result.stdout, result.state_lost) == (ExecStatus.NONZERO, "", False)
        assert "Too many open files" in result.stderr
    with pytest.raises(SessionFileError, match="Too many open files"):
        await session.put("file", b"x")
    await session.reset()
    assert await printed(session, "print('on')") == "on\n"


async def test_fork_bomb_is_gone_after_close(opened: Opener) -> None:
    session = await opened(limits=Limits(wall_s=0.3, processes=10))
    before = descendants(os.getpid())
    result = await run(session, "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass")
    assert result.status in (ExecStatus.TIMEOUT, ExecStatus.OUTPUT_LIMIT) and result.state_lost
    await session.close()
    assert descendants(os.getpid()) < before


async def test_files_are_limited(opened: Opener) -> None:
    session = await opened(limits=Limits(file_bytes=2**20, tmp_bytes=2 * 2**20))
    assert "File too large" in (await run(session, "open('a', 'wb').write(b'x' * 2**21)")).stderr
    code = "for i in range(4): open(f'b{i}', 'wb').write(b'x' * 2**20)"
    assert "No space left" in (await run(session, code)).stderr


async def test_output_is_capped_per_cell(opened: Opener) -> None:
    session = await opened(limits=Limits(output_bytes=1000))
    for _ in range(30):  # together far more than a flood
        result = await run(session, "print('x' * 3000)")
        assert (result.status, result.stdout, result.truncated_stdout) == (ExecStatus.OK, "x" * 1000, True)
    whole = await opened(limits=Limits(output_bytes=300_000))
    assert await printed(whole, "print('x' * 200_000)") == "x" * 200_000 + "\n"


async def test_death_between_cells_is_told_by_the_next(opened: Opener) -> None:
    session = await opened()
    before = len(descendants(os.getpid()))
    await printed(session, "x = 1\nimport os, threading, time\ndef end(): time.sleep(0.05); os._exit(0)")
    await printed(session, "threading.Thread(target=end).start()")
    await until(lambda: len(descendants(os.getpid())) < before)
    result = await run(session, "print('x' in globals())")
    assert (result.status, result.stdout, result.state_lost) == (ExecStatus.OK, "False\n", True)
    assert not (await run(session, "")).state_lost


async def test_reset_starts_afresh(opened: Opener) -> None:
    session = await opened(setup="t = 1")
    before = len(descendants(os.getpid()))
    await printed(session, "t = x = 2; open('f', 'w'); import os, time\nif not os.fork(): time.sleep(60)")
    await session.reset()
    assert len(descendants(os.getpid())) == before
    result = await run(session, "import os; print(t, 'x' in globals(), os.listdir())")
    assert (result.stdout, result.state_lost) == ("1 False []\n", False)


async def test_put_and_get(opened: Opener) -> None:
    session = await opened()
    everything = bytes(range(256)) * 1000
    await session.put("deep/er/data.bin", everything)
    assert await printed(session, "print(len(open('deep/er/data.bin', 'rb').read()))") == "256000\n"
    assert await session.get("deep/./er//data.bin") == everything
    await session.put("deep/er/data.bin", b"")
    assert await session.get("deep/er/data.bin") == b""
    await printed(session, "import os; os.chdir('deep'); open('ü', 'w').write('x')")
    assert await session.get("deep/ü") == b"x"
    assert await printed(session, "print(os.listdir('er'))") == "['data.bin']\n"


async def test_paths_that_lead_outside_are_refused_and_the_state_is_kept(opened: Opener) -> None:
    session = await opened()
    await session.run("state = []")
    for path in ("", ".", "/", "/etc/passwd", "..", "../x", "a/../../x", "x\0y", "n" * 4096, "a/" * 3000, "\ud800"):
        with pytest.raises(SessionFileError):
            await session.put(path, b"x")
        with pytest.raises(SessionFileError):
            await session.get(path)
        assert await printed(session, "import os; print(state + os.listdir())") == "[]\n", path


async def test_sizes_are_capped(opened: Opener) -> None:
    session = await opened(limits=Limits(file_bytes=2**20, tmp_bytes=2**20 + 2**16))
    with pytest.raises(SessionFileError, match="1048577 bytes"):
        await session.put("big", b"x" * (2**20 + 1))
    await session.put("big", b"x" * 2**20)
    assert await session.get("big") == b"x" * 2**20
    with pytest.raises(SessionFileError, match="full"):
        await session.put("more", b"x" * 2**19)
    assert await printed(session, "import os; print(os.listdir())") == "['big']\n"


MISCHIEF = """
import os, socket
os.mkfifo("fifo")
os.symlink("/etc/ld.so.cache", "link")
os.symlink("/etc", "folder_link")
os.symlink("/dev/zero", "device_link")
os.symlink("loop", "loop")
os.mkdir("folder")
server = socket.socket(socket.AF_UNIX)
server.bind("socket")
try: os.mknod("device", 0o20666, os.makedev(1, 5))
except OSError: pass
open("file", "w").write("x")
"""


async def test_hostile_files_neither_hang_nor_leak(opened: Opener) -> None:
    session = await opened()
    await printed(session, MISCHIEF)
    for path, said in {
        "fifo": "regular",
        "link": "symbolic link",
        "folder_link/ld.so.cache": "not a folder",
        "device_link": "symbolic link",
        "loop": "symbolic link",
        "folder": "is a folder",
        "socket": "regular",
        "device": "no such file",
        "file/x": "not a folder",
        "nowhere/x": "no such file",
    }.items():
        with pytest.raises(SessionFileError, match=said):
            await session.get(path)
    for path in ("fifo", "link", "device_link", "loop", "socket", "file"):
        await session.put(path, b"mine")  # takes the place of what was there
        assert await session.get(path) == b"mine"
    for path in ("folder", "folder_link/x", "file/x"):
        with pytest.raises(SessionFileError):
            await session.put(path, b"mine")
    assert await printed(session, "print(sorted(set(os.listdir()) - {'folder'}), os.path.islink('link'))") == (
        "['device_link', 'fifo', 'file', 'folder_link', 'link', 'loop', 'socket'] False\n"
    )


@pytest.mark.parametrize(
    "patch",
    [
        "lambda path, target, cap: time.sleep(60)",
        "lambda path, target, cap: [os.write(target, b'x' * 9999) for _ in range(10**9)]",
        "lambda path, target, cap: os._exit(0)",
        "lambda path, target, cap: os.write(3, b'nonsense')",
        "lambda path, target, cap: [os.fork() or time.sleep(60), os._exit(0)]",
    ],
)
async def test_patched_interpreter_cannot_hang_or_flood_the_host(opened: Opener, patch: str) -> None:
    session = await opened(limits=Limits(wall_s=0.5, file_bytes=100_000))
    await printed(session, f"import os, sys, time; open('f', 'w'); sys.modules['guest_files'].get = {patch}")
    with pytest.raises(SessionFileError, match="its state is lost"):
        await asyncio.wait_for(session.get("f"), PROMPT_S)
    result = await run(session, "import os; print(os.listdir())")
    assert (result.stdout, result.state_lost) == ("[]\n", True)


async def test_forged_answers_are_plain_values_of_this_session(opened: Opener) -> None:
    """A cell can lie about itself, with values that are in range; the next session does not notice."""
    session, other = await opened(), await opened()
    forged = "import os, struct; os.write(3, struct.pack('<IBcdq', {}, 7, b'M', 1e9, 2**63 - 1)); os.close(1)"
    result = await run(session, forged.format(1))
    assert (result.status, result.exit_code, result.cpu_s) == (ExecStatus.MEMORY, 7, 1e9)
    assert (await run(session, "")).state_lost  # the true answer comes late, out of turn
    assert await printed(other, "print(1)") == "1\n"


async def test_two_hundred_sessions_do_not_meet(sandbox: Sandbox) -> None:
    before, open_files = descendants(os.getpid()), descriptors()
    limits = Limits(wall_s=60, cpu_s=60)
    sessions = await asyncio.gather(*(sandbox.open_session(limits=limits) for _ in range(200)))
    first = "import socket; x = {0}; open('f', 'w').write('{0}'); s = socket.socket(1); s.bind('\\0name')"
    done = await asyncio.gather(*(session.run(first.format(n)) for n, session in enumerate(sessions)))
    assert [result.status for result in done] == [ExecStatus.OK] * 200
    look = "import os; print(x, open('f').read(), os.listdir(), [n for n in os.listdir('/proc') if n.isdigit()])"
    seen = await asyncio.gather(*(session.run(look) for session in sessions))
    assert [result.stdout for result in seen] == [f"{n} {n} ['f'] ['1', '2']\n" for n in range(200)]
    await asyncio.gather(*(session.close() for session in sessions))
    assert (descendants(os.getpid()), descriptors()) == (before, open_files)


async def test_requests_of_one_session_follow_each_other(opened: Opener) -> None:
    session = await opened()
    await printed(session, "seen = []")
    await asyncio.gather(*(session.run(f"seen.append({n})") for n in range(20)))
    assert await printed(session, "print(seen == list(range(20)))") == "True\n"


async def test_open_sessions_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.host.session.SESSION_WAIT_S", 0.1)
    async with open_sandbox("namespace", slots=1, max_sessions=2) as sandbox:
        first, second = await sandbox.open_session(), await sandbox.open_session()
        with pytest.raises(SandboxError, match="2 sessions are open"):
            await sandbox.open_session()
        assert (await sandbox.run("print(1)")).stdout == "1\n"  # they keep no slot
        monkeypatch.setattr("sandboxes.host.session.SESSION_WAIT_S", 30.0)
        third = asyncio.create_task(sandbox.open_session())
        await printed(second, "x = 2")
        await first.close()
        assert await printed(await third, "print('x' in globals())") == "False\n"
        assert await printed(second, "print(x)") == "2\n"
    with pytest.raises(UserError, match="max_sessions"):
        async with open_sandbox("namespace", max_sessions=0):
            pass


async def test_cancelling_a_cell_leaves_nothing(opened: Opener) -> None:
    session = await opened(limits=Limits(wall_s=60))
    before, open_files = descendants(os.getpid()), len(descriptors())
    task = asyncio.create_task(run(session, "import os, time; os.fork(); time.sleep(60)"))
    await until(lambda: len(descendants(os.getpid()) - before) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert descendants(os.getpid()) < before and len(descriptors()) == open_files - 3
    result = await run(session, "print(1)")
    assert (result.stdout, result.state_lost) == ("1\n", True)


async def test_cancelling_an_opening_leaves_nothing(sandbox: Sandbox) -> None:
    before, open_files = descendants(os.getpid()), descriptors()
    task = asyncio.create_task(sandbox.open_session(setup="import os, time; os.fork(); time.sleep(60)"))
    await until(lambda: len(descendants(os.getpid()) - before) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (descendants(os.getpid()), descriptors()) == (before, open_files)


async def test_close_ends_a_cell_in_flight_and_is_idempotent(sandbox: Sandbox) -> None:
    before, open_files = descendants(os.getpid()), descriptors()
    session = await sandbox.open_session(limits=Limits(wall_s=60))
    busy = asyncio.create_task(run(session, "import os, time; os.fork(); time.sleep(60)"))
    waiting = asyncio.create_task(run(session, "print(1)"))
    await until(lambda: len(descendants(os.getpid()) - before) == 3)
    await asyncio.gather(session.close(), session.close())
    result = await busy
    assert (result.status, result.error) == (ExecStatus.SANDBOX_ERROR, "the session was closed")
    with pytest.raises(SandboxError, match="closed"):
        await waiting
    await session.close()
    for request in (session.run("1"), session.put("x", b""), session.get("x"), session.reset()):
        with pytest.raises(SandboxError, match="closed"):
            await request
    assert (descendants(os.getpid()), descriptors()) == (before, open_files)


async def test_closing_the_sandbox_closes_its_sessions() -> None:
    before, open_files = descendants(os.getpid()), descriptors()
    async with open_sandbox("namespace") as sandbox:
        sessions = [await sandbox.open_session(limits=Limits(wall_s=60)) for _ in range(3)]
        idle = len(descendants(os.getpid()))
        busy = asyncio.create_task(run(sessions[0], "import os, time; os.fork(); time.sleep(60)"))
        await until(lambda: len(descendants(os.getpid())) == idle + 1)
    assert (await busy).status is ExecStatus.SANDBOX_ERROR
    assert (descendants(os.getpid()), descriptors()) == (before, open_files)
    with pytest.raises(SandboxError, match="closed"):
        await sessions[1].run("1")
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.open_session()


async def test_sessions_survive_the_death_of_the_zygote() -> None:
    before = descendants(os.getpid())
    async with open_sandbox("namespace") as sandbox:
        _, zygote, *_ = sorted(descendants(os.getpid()) - before)
        first, second = [await sandbox.open_session(setup="t = 1", limits=Limits(wall_s=60)) for _ in range(2)]
        idle = len(descendants(os.getpid()))
        busy = asyncio.create_task(run(first, "import os, time; os.fork(); time.sleep(60)"))
        await until(lambda: len(descendants(os.getpid())) == idle + 1)
        os.kill(zygote, signal.SIGKILL)
        result = await asyncio.wait_for(busy, 20)
        assert (result.status, result.state_lost) == (ExecStatus.SANDBOX_ERROR, True) and result.error
        again = await asyncio.gather(run(first, "print(t)"), run(second, "print(t)"))
        assert [(result.stdout, result.state_lost) for result in again] == [("1\n", False), ("1\n", True)]
    assert descendants(os.getpid()) == before


OWNER = """
import asyncio
from forge_env.core.sandbox import Limits
from sandboxes import open_sandbox

async def main():
    async with open_sandbox("namespace", slots=1) as sandbox:
        sessions = [await sandbox.open_session(limits=Limits(wall_s=60)) for _ in range(3)]
        code = "import os, time\\nif not os.fork(): os.setsid(); time.sleep(60)\\n"
        await sessions[0].run(code)
        print("ready", flush=True)
        await sessions[1].run(code + "time.sleep(60)")

asyncio.run(main())
"""


async def test_nothing_outlives_a_killed_owner(sandbox: Sandbox) -> None:
    with owner_of(OWNER) as owner:
        assert said_by(owner) == "ready\n"
        helper = sandbox.capabilities.memory_limit.startswith("cgroup")  # of the only slot
        await until(lambda: len(descendants(owner.pid)) == 2 + 3 * 2 + 2 + helper)
        left = descendants(owner.pid)
        owner.send_signal(signal.SIGKILL)
        await until(lambda: not any(map(is_alive, left)))


async def test_a_session_has_the_same_ring_as_a_run(opened: Opener, sandbox: Sandbox) -> None:
    code = """
    import ctypes, json, os, socket
    libc = ctypes.CDLL(None, use_errno=True)
    fields = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    kept = "Seccomp", "NoNewPrivs", "CapEff", "CapPrm", "CapAmb"
    print(json.dumps({
        "status": [fields[name].strip() for name in kept],
        "root": "0" in fields["Uid"].split(),
        "processes": [name for name in os.listdir("/proc") if name.isdigit()],
        "files": [path for path in ("/etc/shadow", "/etc/passwd", "/root", "/home") if os.path.lexists(path)],
        "writable": [path for path in ("/", "/usr", "/etc", "/dev") if os.access(path, os.W_OK)],
        "environ": sorted(os.environ),
        "mount": libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None),
        "network": socket.socket().connect_ex(("127.0.0.1", 9)),
        "descriptors": [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)],
    }))
    """
    once = await sandbox.run(textwrap.dedent(code))
    assert once.status is ExecStatus.OK and '"mount": -1' in once.stdout
    assert await printed(await opened(), code) == once.stdout


async def test_what_a_session_leaves_is_not_in_its_places_next_session() -> None:
    """The network namespace and the user are the same again."""
    async with open_sandbox("namespace", max_sessions=1) as sandbox:
        code = "import os, socket; s = socket.socket(1); s.bind('\\0name'); print(os.listdir('/tmp')); open('f', 'w')"
        for _ in range(2):
            session = await sandbox.open_session()
            assert await printed(session, code + "\nimport time\nif not os.fork(): time.sleep(60)") == "[]\n"
            await session.close()


@pytest.mark.parametrize(
    ("number", "cpu_s", "peak", "is_taken"),
    [
        (3, 0.5, 2**20, True),
        (2, 0.5, 2**20, False),  # an answer to another request
        (3, -0.5, 2**20, False),
        (3, float("nan"), 2**20, False),
        (3, float("inf"), 2**20, False),
        (3, 0.5, -1, False),
    ],
)
async def test_an_answer_out_of_range_is_none(number: int, cpu_s: float, peak: int, is_taken: bool) -> None:
    frame = interpreter._ANSWER.pack(number, 0, b"M", cpu_s, peak)
    assert (interpreter._parse(frame, 3) is not None) is is_taken
    assert interpreter._parse(frame + b"x", 3) is None


async def test_what_the_machine_refuses_is_a_fault(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await opened()
    await run(session, "x = 7")
    for attempt in (lambda: session.run("x"), lambda: session.put("f", b"1"), lambda: session.get("f")):
        with pytest.raises(SandboxError, match="needs: Too many open files"), without_descriptors():
            await attempt()
    assert await printed(session, "print(x)") == "7\n"
    send, refusals = socket.send_fds, [OSError(errno.ETOOMANYREFS, "too many references")]

    def refuse_one(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return send(*arguments)

    monkeypatch.setattr(socket, "send_fds", refuse_one)
    result = await session.run("x")
    assert (
        result.status is ExecStatus.SANDBOX_ERROR and result.error == "the session cannot be told: too many references"
    )
