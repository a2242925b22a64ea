"""The namespace sandbox with real processes: what code does, what it may not do, and what is left behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox
from sandboxes.guest import guest_init
from sandboxes.host.namespace import NamespaceSandbox
from tests.helpers.ordinary_user import ordinary_python
from tests.helpers.processes import descendants
from tests.helpers.rows import rows
from tests.helpers.waiting import is_alive, until

if sys.platform != "linux":
    pytest.skip("the namespace sandbox needs Linux", allow_module_level=True)

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.asyncio(loop_scope="module")
PROMPT_S = 30.0  # far below the sleeps and wall limits below, far above any start-up time


async def run(sandbox: Sandbox, code: str, **fields: Any) -> ExecResult:
    return await sandbox.run(ExecRequest(code=textwrap.dedent(code), **fields))


async def call(sandbox: Sandbox, code: str, *args: Any, **fields: Any) -> ExecResult:
    return await run(sandbox, code, call=Call(function="f", args=args), **fields)


async def value(sandbox: Sandbox, code: str, *args: Any, **fields: Any) -> Any:
    result = await call(sandbox, code, *args, **fields)
    assert result.status is ExecStatus.OK and result.value is not None, result
    return json.loads(result.value)


async def test_prints_reads_stdin_and_exits(sandbox: Sandbox) -> None:
    result = await run(sandbox, "import sys; print(input().upper()); print('e', file=sys.stderr)", stdin="hällo\n")
    assert (result.status, result.exit_code, result.signal) == (ExecStatus.OK, 0, None)
    assert (result.stdout, result.stderr, result.value) == ("HÄLLO\n", "e\n", None)
    assert not result.truncated_stdout and not result.truncated_stderr
    assert result.backend == "namespace" and 0 < result.cpu_s <= result.wall_s + 0.1
    assert result.peak_memory_bytes > 2**20


MEMORY = 128 * 2**20
PRINTS = "print('x' * 200_000)"
WHOLE = {"stdout": "x" * 200_000 + "\n", "truncated_stdout": False}
KILLED = {"signal": signal.SIGKILL, "exit_code": None}
HELD_BY_A_CHILD = "import os, time\nif not os.fork(): os.setsid()\ntime.sleep(60)"
PROCESSES = "import os, signal\nwhile True:\n    if not os.fork(): signal.pause()"
THREADS = "import threading, time\nfor _ in range(9): threading.Thread(target=time.sleep, args=(60,)).start()"


@pytest.mark.parametrize(
    ("code", "limits", "status", "fields"),
    [
        ("import sys; sys.exit(3)", {}, ExecStatus.NONZERO, {"exit_code": 3, "stderr": ""}),
        ("exit(4)", {}, ExecStatus.NONZERO, {"exit_code": 4, "stderr": ""}),
        ("import sys; sys.exit('no')", {}, ExecStatus.NONZERO, {"exit_code": 1, "stderr": "no\n"}),
        ("raise SystemExit", {}, ExecStatus.OK, {"exit_code": 0, "stderr": ""}),
        ("def f(:", {}, ExecStatus.NONZERO, {"exit_code": 1}),
        ("x = '\0'", {}, ExecStatus.NONZERO, {"exit_code": 1}),
        ("x = '\ud800'", {}, ExecStatus.NONZERO, {"exit_code": 1}),
        (r"import os; os.write(1, b'a\xffb')", {}, ExecStatus.OK, {"stdout": "a\ufffdb"}),
        ("10 ** 10 ** 8", {"wall_s": 0.3}, ExecStatus.TIMEOUT, KILLED),  # holds the GIL
        (HELD_BY_A_CHILD, {"wall_s": 0.3}, ExecStatus.TIMEOUT, KILLED),
        ("print('seen', flush=True)\nwhile True: pass", {"wall_s": 1.0}, ExecStatus.TIMEOUT, {"stdout": "seen\n"}),
        ("x = bytearray(1 << 30)", {"memory_bytes": MEMORY}, ExecStatus.MEMORY, {}),
        ("x = []\nwhile True: x.append(' ' * 10**6)", {"memory_bytes": MEMORY}, ExecStatus.MEMORY, {}),
        ("try: bytearray(1 << 30)\nexcept MemoryError: pass", {"memory_bytes": MEMORY}, ExecStatus.OK, {}),
        (PROCESSES, {"processes": 5}, ExecStatus.PIDS, {}),
        (THREADS, {"processes": 5, "wall_s": PROMPT_S}, ExecStatus.PIDS, {}),
        (PRINTS, {"output_bytes": 300_000}, ExecStatus.OK, WHOLE),
        (PRINTS, {"output_bytes": 200_001}, ExecStatus.OK, WHOLE),
        (PRINTS, {"output_bytes": 50_000}, ExecStatus.OK, {"stdout": "x" * 50_000, "truncated_stdout": True}),
        # Of the pipe for values; the attacks flood the other two.
        ("import os\nwhile True: os.write(3, b'x' * 65536)", {"output_bytes": 10_000}, ExecStatus.OUTPUT_LIMIT, {}),
    ],
)
async def test_how_code_ends(
    sandbox: Sandbox, code: str, limits: dict[str, Any], status: ExecStatus, fields: dict[str, Any]
) -> None:
    result = await run(sandbox, code, limits=Limits(**limits))
    assert result.status is status, result
    assert {name: getattr(result, name) for name in fields} == fields
    assert bool(result.stderr) or result.exit_code != 1, "what is wrong with the code is said"
    assert limits.get("wall_s", 0.0) * (status is ExecStatus.TIMEOUT) <= result.wall_s < PROMPT_S
    assert "memory_bytes" not in limits or result.peak_memory_bytes < 2 * MEMORY
    assert len(result.stdout) <= limits.get("output_bytes", 2**20) and len(result.stderr) <= 10_000


async def test_traceback_shows_only_the_snippet(sandbox: Sandbox) -> None:
    code = "def f(x):\n    return apply(lambda: 1 / x)\n"
    result = await call(sandbox, code, 0, setup="def apply(g):\n    return g()\n")
    assert (result.status, result.exit_code) == (ExecStatus.NONZERO, 1)
    assert result.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
    assert 'File "<snippet>", line 2' in result.stderr and "1 / x" in result.stderr
    assert "<setup>" not in result.stderr and "guest" not in result.stderr


async def test_broken_setup_is_our_fault(sandbox: Sandbox) -> None:
    result = await run(sandbox, "print('never')", setup="1 / 0")
    assert result.status is ExecStatus.SANDBOX_ERROR and "ZeroDivisionError" in result.error and not result.stdout


async def test_call_returns_plain_json(sandbox: Sandbox) -> None:
    code = "print(__name__)\ndef f(*args): return [args, (1, 2), {'k': None, 3: 1.5}, True, 'ü']"
    assert await value(sandbox, code, [1], "a") == [[[1], "a"], [1, 2], {"k": None, "3": 1.5}, True, "ü"]
    result = await call(sandbox, code)
    assert result.stdout == "__main__\n"


async def test_common_modules_and_threads_work(sandbox: Sandbox) -> None:
    code = """
    import asyncio, concurrent.futures, dataclasses, multiprocessing, pickle, sqlite3, subprocess, tempfile, threading

    @dataclasses.dataclass
    class Point:
        x: int

    def f():
        threading.Thread(target=lambda: print("late")).start()
        with concurrent.futures.ThreadPoolExecutor(2) as pool, tempfile.TemporaryFile() as file:
            file.write(b"x")
            squares = list(pool.map(lambda x: x * x, range(4)))
        queue = multiprocessing.get_context("fork").Queue()
        child = multiprocessing.get_context("fork").Process(target=queue.put, args=(5,))
        child.start()
        got = queue.get()
        child.join()
        shell = subprocess.run(["/bin/sh", "-c", "echo $((6*7))"], capture_output=True, text=True).stdout
        return [squares, got, shell, pickle.loads(pickle.dumps(Point(1))).x, asyncio.run(asyncio.sleep(0, 9))]
    """
    assert await value(sandbox, code) == [[0, 1, 4, 9], 5, "42\n", 1, 9]


async def test_runs_and_their_forks_have_numbers_of_their_own_and_no_threads_of_others(sandbox: Sandbox) -> None:
    code = """
    import os, random, threading, time
    def f():
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        read_end, write_end = os.pipe()
        if not os.fork():
            os.write(write_end, f"{random.random()} {threading.active_count()}".encode())
            os._exit(0)
        os.wait()
        number, threads = os.read(read_end, 99).split()
        return [random.random(), float(number)], threading.active_count(), int(threads)
    """
    (first, *counts), (second, *_) = [await value(sandbox, code) for _ in range(2)]
    assert len({*first, *second}) == 4 and counts == [2, 1]


async def test_many_at_once(sandbox: Sandbox) -> None:
    code = "def f(x): return x * x"
    got = await asyncio.gather(*(value(sandbox, code, number) for number in range(32)))
    assert got == [number**2 for number in range(32)]


async def test_waiting_for_a_slot_is_not_wall_time() -> None:
    async with open_sandbox("namespace", slots=1) as sandbox:
        begin = time.monotonic()
        results = await asyncio.gather(*(run(sandbox, "import time; time.sleep(0.2)") for _ in range(2)))
        seconds = time.monotonic() - begin
    # One after another; with the waiting, the second would have had some of it twice.
    assert 0.4 <= sum(result.wall_s for result in results) <= seconds


async def test_there_are_two_slots_for_each_cpu_that_the_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        async with open_sandbox("namespace") as sandbox:
            assert isinstance(sandbox, NamespaceSandbox)
            assert sandbox.slot_stats.idle == 2, "all of them are warm, as they are fewer than 8"
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    "ignore",
    ["", pytest.param("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n", marks=pytest.mark.slow)],
)
async def test_cpu_limit_kills(sandbox: Sandbox, ignore: str) -> None:
    result = await run(sandbox, ignore + "while True: pass", limits=Limits(wall_s=30, cpu_s=1))
    assert result.status is ExecStatus.TIMEOUT and 0.8 <= result.cpu_s < 3 and result.wall_s < 25
    assert result.signal == (signal.SIGKILL if ignore else signal.SIGXCPU)


async def test_code_has_as_many_processes_as_its_limit_says(sandbox: Sandbox) -> None:
    code = """
    import os, signal
    def f():
        children = 0
        try:
            while os.fork(): children += 1
            signal.pause()
        except OSError:
            return children
    """
    assert await value(sandbox, code, limits=Limits(processes=10)) == 9


async def test_concurrent_runs_cannot_meet(sandbox: Sandbox) -> None:
    """Abstract sockets belong to the network namespace: a name bound by one run is unknown to the other."""
    bind = "import os, socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0x')\ns.listen()\n"
    idle = len(descendants(os.getpid()))
    server = asyncio.create_task(run(sandbox, bind + "os.fork(); time.sleep(60)", limits=Limits(wall_s=30)))
    await until(lambda: len(descendants(os.getpid())) == idle + 3)  # it forked, so it listens
    code = "import socket\ndef f():\n  s = socket.socket(socket.AF_UNIX)\n  return s.connect_ex('\\0x')"
    assert await value(sandbox, code) == errno.ECONNREFUSED
    assert (await run(sandbox, bind)).status is ExecStatus.OK
    server.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server


async def test_code_has_three_variables_a_folder_and_the_standard_library(sandbox: Sandbox) -> None:
    """The attacks read what is hidden."""
    code = "import os, sys\ndef f(): return sorted(os.environ), os.listdir('/tmp'), os.getcwd(), sorted(sys.path)"
    names, tmp, cwd, path = await value(sandbox, code)
    assert (names, tmp, cwd) == (["HOME", "LANG", "PATH"], [], "/tmp")
    assert not any("site-packages" in entry or str(ROOT) in entry for entry in path)


async def test_capabilities_are_what_the_kernel_says(sandbox: Sandbox) -> None:
    code = "def f(): return dict(l.split(':', 1) for l in open('/proc/self/status').read().splitlines() if ':' in l)"
    status = {name: text.split() for name, text in (await value(sandbox, code)).items()}
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    assert [int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert sandbox.capabilities.seccomp and sandbox.capabilities.capabilities_dropped
    assert sandbox.capabilities.host_watch_denied
    assert sandbox.capabilities.uid_drop == (os.geteuid() == 0)
    assert "0" not in status["Uid"] and "0" not in status["Gid"]


async def test_calls_beside_those_of_the_attacks_are_denied(sandbox: Sandbox) -> None:
    code = """
    import ctypes, errno, os
    libc = ctypes.CDLL(None, use_errno=True)
    def attempt(result):
        return errno.errorcode[ctypes.get_errno()] if result < 0 else "done"
    def f():
        calls = [attempt(libc.memfd_create(b"x", 0)), attempt(libc.syscall(999)), attempt(libc.setuid(0))]
        return calls, [path for path in ("/", "/usr", "/etc", "/dev") if os.access(path, os.W_OK)]
    """
    (memfd, unknown, setuid), writable = await value(sandbox, code)
    assert (memfd, unknown, writable) == ("EPERM", "ENOSYS", [])
    assert setuid in ("EPERM", "EINVAL")  # EINVAL: there is no such uid in its user namespace


async def test_code_may_raise_its_stack_up_to_its_memory_and_give_threads_large_ones(sandbox: Sandbox) -> None:
    code = """
import resource, sys, threading
def f():
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (2**27, hard))
    sys.setrecursionlimit(10**6)
    def depth(n): return n and 1 + depth(n - 1)
    threading.stack_size(2**25)
    deep = []
    thread = threading.Thread(target=lambda: deep.append(depth(20_000)))
    thread.start(); thread.join()
    return [soft <= 2**23, hard, depth(50_000), deep]
"""
    limits = Limits(wall_s=20, cpu_s=20)
    result = await sandbox.run(ExecRequest(code=code, call=Call(function="f"), limits=limits))
    assert result.value is not None, result
    assert json.loads(result.value) == [True, limits.memory_bytes, 50_000, [20_000]]


@pytest.mark.parametrize(("code",), rows(__file__, "no_value.tsv"))
async def test_no_value_no_pass(sandbox: Sandbox, code: str) -> None:
    result = await call(sandbox, code)
    assert result.status in (ExecStatus.NONZERO, ExecStatus.SIGNALED) and result.value is None, result


async def test_code_cannot_claim_our_fault_or_another_exit(sandbox: Sandbox) -> None:
    for code in ("import os; os.write(3, b'E forged'); os._exit(1)", "import os; os.write(3, b'M'); os._exit(0)"):
        result = await run(sandbox, code)
        assert result.status is (ExecStatus.NONZERO if "_exit(1)" in code else ExecStatus.OK) and not result.error


async def test_forked_copies_do_not_answer(sandbox: Sandbox) -> None:
    assert await value(sandbox, "import os\npid = os.fork()\ndef f(): return pid > 0") is True


async def test_patched_library_is_the_codes_own_problem(sandbox: Sandbox) -> None:
    result = await call(sandbox, "import json\njson.dumps = lambda value: '[\"forged\"]'\ndef f(): return 1")
    assert result.status is ExecStatus.OK and json.loads(result.value or "") == ["forged"]  # a wrong answer, no more
    assert await value(sandbox, "def f(): return 1") == 1


async def test_cancelling_kills_the_snippet(sandbox: Sandbox) -> None:
    idle = len(descendants(os.getpid()))
    task = asyncio.create_task(run(sandbox, "import time; time.sleep(60)", limits=Limits(wall_s=60)))
    await until(lambda: len(descendants(os.getpid())) == idle + 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(descendants(os.getpid())) == idle
    assert (await run(sandbox, "print(1)")).stdout == "1\n"


def processes(memory_limit: str, *, runs: int) -> int:
    """Return how many processes a sandbox with `runs` slots has while all of them run code that forked once."""
    helpers = runs if memory_limit.startswith("cgroup") else 0
    return 2 + helpers + 3 * runs


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["starter", "zygote", "helper"])
async def test_killed_zygote_is_replaced(victim: int) -> None:
    idle = descendants(os.getpid())
    async with open_sandbox("namespace", slots=2) as sandbox:
        family = sorted(descendants(os.getpid()) - idle)
        if victim == len(family):
            pytest.skip("without control groups there are no helpers")
        code = "import os, time; os.fork(); time.sleep(60)"  # two forked, so two have started
        all_run = processes(sandbox.capabilities.memory_limit, runs=2)
        busy = [asyncio.create_task(run(sandbox, code, limits=Limits(wall_s=60))) for _ in range(2)]
        await until(lambda: len(descendants(os.getpid()) - idle) == all_run)
        snippets = descendants(os.getpid()) - idle - set(family)
        os.kill(family[victim], signal.SIGKILL)
        if victim == 2:
            done, others = await asyncio.wait(busy, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            results = [task.result() for task in done]
            assert len(others) == 1  # the neighbour goes on
            others.pop().cancel()
        else:
            results = await asyncio.wait_for(asyncio.gather(*busy), 20)
            assert len(results) == 2
        assert {result.status for result in results} == {ExecStatus.SANDBOX_ERROR}
        assert all(result.error and result.exit_code is None for result in results)
        await asyncio.wait(busy)
        if victim < 2:
            await until(lambda: not any(is_alive(pid) for pid in snippets))
        again = await asyncio.gather(*(run(sandbox, "print(1)") for _ in range(4)))
        assert [result.stdout for result in again] == ["1\n"] * 4
    assert descendants(os.getpid()) == idle


def stop_starters(idle: set[int]) -> list[int]:
    """Stop what starts runs, in a sandbox opened after `idle`; return the zygote and the helpers."""
    _, *starters = sorted(descendants(os.getpid()) - idle)
    for pid in starters:
        os.kill(pid, signal.SIGSTOP)
    return starters


@pytest.mark.parametrize("killed", [True, False], ids=["dies", "hangs"])
async def test_run_that_never_started_is_tried_again(killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.host.execution._GRACE_S", 0.2)
    monkeypatch.setattr("sandboxes.host.execution._READY_S", 0.2)
    idle = descendants(os.getpid())
    async with open_sandbox("namespace") as sandbox:
        zygote = stop_starters(idle)[0]
        task = asyncio.create_task(run(sandbox, "print(1)", limits=Limits(wall_s=0.6)))
        if killed:
            await asyncio.sleep(0)  # one turn of the loop: the request is sent
            os.kill(zygote, signal.SIGKILL)
        assert (await asyncio.wait_for(task, 20)).stdout == "1\n"
    assert descendants(os.getpid()) == idle


async def test_a_start_that_takes_longer_than_the_limit_takes_no_time_from_the_code() -> None:
    idle = descendants(os.getpid())
    async with open_sandbox("namespace") as sandbox:
        starters = stop_starters(idle)
        limits = Limits(wall_s=0.5)
        task = asyncio.create_task(run(sandbox, "import time; time.sleep(0.1); print(1)", limits=limits))
        for pid in starters:
            asyncio.get_running_loop().call_later(1.5 * limits.wall_s, os.kill, pid, signal.SIGCONT)
        result = await asyncio.wait_for(task, 20)
        assert (result.status, result.stdout) == (ExecStatus.OK, "1\n")


async def test_nothing_is_left_after_close() -> None:
    def traces() -> tuple[list[str], list[int]]:
        links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        fds = sorted(os.readlink(link) for link in links if os.path.lexists(link))  # not that of listdir itself
        return fds, descendants(os.getpid())

    def shared() -> set[str]:
        """Mounts, and files of sandboxes: other tests that run at the same time have some for a while."""
        canaries = {
            name for name in os.listdir("/tmp") if name.startswith(("forge-env-canary-", "forge-env-insecure-"))
        }
        return canaries | set(Path("/proc/self/mounts").read_text().splitlines())

    before, shared_before = traces(), shared()
    async with open_sandbox("namespace") as sandbox:
        assert traces()[1] != before[1]
        await run(sandbox, "import os\nif not os.fork(): os.setsid(); __import__('time').sleep(60)")
        await run(sandbox, "1 / 0")
        busy = asyncio.create_task(run(sandbox, "import time; time.sleep(60)", limits=Limits(wall_s=60)))
        await until(lambda: len(descendants(os.getpid())) >= len(before[1]) + 4)
    (ended,) = await asyncio.gather(busy, return_exceptions=True)
    assert isinstance(ended, SandboxError) or ended.status is ExecStatus.SANDBOX_ERROR
    assert traces() == before
    await until(lambda: not shared() - shared_before, "nothing is left that others could see")
    await sandbox.close()
    with pytest.raises(SandboxError):
        await run(sandbox, "print(1)")


OWNER = """
import asyncio
from forge_env.core.sandbox import ExecRequest, Limits
from sandboxes import open_sandbox
from sandboxes.guest import guest_init

async def main():
    async with open_sandbox("namespace", slots=2) as sandbox:
        print(sandbox.capabilities.uid_drop, sandbox.capabilities.memory_limit, flush=True)
        code = "import os, time; os.fork() or os.setsid(); time.sleep(60)"
        limits = Limits(wall_s=60)
        await asyncio.gather(*(sandbox.run(ExecRequest(code=code, limits=limits)) for _ in range(2)))

asyncio.run(main())
"""


@pytest.mark.parametrize("is_ordinary", [False, True], ids=["this user", "an ordinary user"])
async def test_nothing_outlives_a_killed_owner(is_ordinary: bool) -> None:
    command, environ = [sys.executable], os.environ | {"PYTHONPATH": str(ROOT)}
    if is_ordinary:
        ordinary = ordinary_python()
        command, environ = ordinary.command, ordinary.environ
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "-c", OWNER], cwd="/", env=environ, text=True, stdout=pipe, stderr=pipe) as owner:
        assert owner.stdout is not None and owner.stderr is not None
        said = owner.stdout.readline().split()
        if not said and "SandboxUnavailable" in (error := owner.stderr.read()):
            pytest.skip(error.strip().rpartition("\n")[2])
        assert said[0] == str(not is_ordinary and os.geteuid() == 0)  # else confined by a user namespace
        await until(lambda: len(descendants(owner.pid)) == processes(said[1], runs=2))
        family = descendants(owner.pid)
        owner.send_signal(signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in family))


async def test_set_order_is_the_same_in_every_sandbox(sandbox: Sandbox) -> None:
    code = "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})"
    async with open_sandbox("namespace") as other:
        assert await value(sandbox, code) == await value(other, code)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("namespce", {}, "Did you mean namespace"),
        ("namespace", {"slotz": 1}, "slotz"),
        ("namespace", {"slots": 0}, "slots"),
    ],
)
async def test_unknown_names_and_settings_are_user_errors(name: str, settings: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        async with open_sandbox(name, **settings):
            pass


async def test_arguments_that_are_no_json_raise_at_once(sandbox: Sandbox) -> None:
    with pytest.raises(TypeError):
        await call(sandbox, "def f(x): return x", object())


async def test_init_is_a_small_program_that_leaves_no_dead_processes(sandbox: Sandbox) -> None:
    code = """
        import os
        def f():
            with open("/proc/1/status") as lines:
                status = dict(line.split(":", 1) for line in lines)
            if not (child := os.fork()):
                os.fork()  # an orphan; the kernel reaps it for init, which ignores SIGCHLD
                os._exit(0)
            os.waitpid(child, 0)
            while sum(name.isdigit() for name in os.listdir("/proc")) > 2:
                pass
            with open("/proc/1/cmdline") as line:
                return line.read(), int(status["SigIgn"], 16) >> 16 & 1, int(status["VmRSS"].split()[0])
    """
    name, ignores_ends, resident_kib = await value(sandbox, code)
    assert (name, ignores_ends) == ("init\0", 1)
    assert resident_kib < 1024  # a fork of the zygote has several MiB


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="there is no program for this processor")
async def test_the_program_of_init_closes_every_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "init"
    path.write_bytes(guest_init.executable())
    path.chmod(0o755)
    read_end, write_end = os.pipe()
    with subprocess.Popen([path], pass_fds=[write_end]) as init:
        os.close(write_end)
        try:
            assert os.read(read_end, 1) == b""  # it has closed the other end
            assert os.listdir(f"/proc/{init.pid}/fd") == []
            assert init.poll() is None
        finally:
            os.close(read_end)
            init.kill()
