"""The launcher with real processes: calls, errors, deaths, and what is left behind after every kind of ending."""

from __future__ import annotations

import asyncio
import getpass
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import EnvError, ForgeError, PolicyError, ServiceError, UserError

pytest.importorskip("monarch")

from runtime_actors import STRANGE, STRANGE_OWN, Gone, Worker

from forge_env.runtime.actor import VARIABLE, ForgeActor
from forge_env.runtime.launcher import Launcher, within
from tests.helpers.waiting import is_alive, wait_until

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
DEADLINE_S = 60.0  # for anything that must happen at all, on a busy machine


async def started(launcher: Launcher, name: str = "worker", **kwargs: Any) -> Any:
    actor = launcher.spawn(name, Worker, **kwargs)
    await launcher.start(name)
    return actor


async def test_an_actor_has_a_start_a_log_and_an_environment_of_its_own(launcher: Launcher, tmp_path: Path) -> None:
    before = time.time()
    worker = await started(launcher, environ={"CUDA_VISIBLE_DEVICES": "3"})
    phases = await within(DEADLINE_S, worker.started.call_one(), "the worker")
    after = time.time()
    (spawned, starting), (ready, seconds) = phases.pop("process"), phases.pop("start")
    assert phases == {}, "it says nothing else of itself"
    assert before - 0.05 <= spawned <= ready <= after  # the kernel counts in ticks of 10 ms
    assert spawned + starting == pytest.approx(ready) and 0 <= seconds <= after - ready

    other = await started(launcher, "other")
    await within(DEADLINE_S, worker.write.call_one(), "the worker")
    log = (tmp_path / "logs" / "worker.log").read_text()
    for line in ("a line by Python", "a line of errors", "a line past Python", "a line by a child"):
        assert line in log
    assert (tmp_path / "logs" / "other.log").read_text() == ""

    assert await within(DEADLINE_S, worker.environ.call_one("CUDA_VISIBLE_DEVICES"), "one") == "3"
    assert await within(DEADLINE_S, other.environ.call_one("CUDA_VISIBLE_DEVICES"), "two") != "3"
    # Temporary files of all actors lie in one folder, which goes with the launcher.
    temp = await within(DEADLINE_S, worker.environ.call_one("TMPDIR"), "one")
    assert temp == await within(DEADLINE_S, other.environ.call_one("TMPDIR"), "two") != tempfile.gettempdir()


async def test_what_is_compiled_outlives_the_actors(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their TMPDIR, where torch keeps it by default, goes with them."""
    monkeypatch.delenv(VARIABLE, raising=False)  # torch sets it itself where it compiles, as in this process perhaps
    home = {"HOME": str(tmp_path)}
    found = []
    for name, environ in {
        "one": home,
        "given": home | {VARIABLE: "/given"},
        "homeless": {"HOME": "/proc/nowhere"},
    }.items():
        worker = await started(launcher, name, environ={"XDG_CACHE_HOME": "", **environ})
        found.append(await within(DEADLINE_S, worker.environ.call_one(VARIABLE), name))
    kept = str(tmp_path / ".cache" / "forge_env" / "torchinductor")
    assert found == [kept, "/given", ""], "where nothing can be written, torch decides"


async def test_an_error_arrives_with_its_kind_and_the_actor_lives_on(launcher: Launcher) -> None:
    worker = await started(launcher)
    for kind in (UserError, PolicyError, ServiceError):
        with pytest.raises(ForgeError) as own:
            await within(DEADLINE_S, worker.fail.call_one(kind.__name__, "just this"), "the worker")
        assert (type(own.value), str(own.value)) == (kind, "just this")
    for name in ("ValueError", "TimeoutError", "SystemExit", "KeyboardInterrupt", "CancelledError", *STRANGE):
        with pytest.raises(ServiceError) as caught:
            await within(DEADLINE_S, worker.fail.call_one(name, "7 is not prime"), "asking the worker")
        assert str(caught.value) == f"asking the worker failed: {name}: 7 is not prime"
        assert "runtime_actors.py" in str(caught.value.__cause__)  # where in the actor it happened
        assert await within(DEADLINE_S, worker.add.call_one(1, 1), "the worker") == 2, name
    for name in STRANGE_OWN:  # our own kinds that cannot travel
        with pytest.raises(EnvError) as strange:
            await within(DEADLINE_S, worker.fail.call_one(f"own {name}", "7 is not prime"), "the worker")
        assert (type(strange.value), str(strange.value)) == (EnvError, f"{name}: 7 is not prime")
    with pytest.raises(ServiceError) as group:
        await within(DEADLINE_S, worker.fail.call_one("group", "7 is not prime"), "the worker")
    inner = "; ".join(f"{kind}: 7 is not prime" for kind in STRANGE)
    assert str(group.value) == f"the worker failed: ExceptionGroup: many ({len(STRANGE)} sub-exceptions): {inner}"
    with pytest.raises(ServiceError, match=r"NoText: \(its text cannot be read: KeyboardInterrupt\)"):
        await within(DEADLINE_S, worker.fail.call_one("no text", ""), "the worker")
    with pytest.raises(ServiceError, match=r"^the slow answer did not answer within 0\.2 s$"):
        await within(0.2, worker.hold.call_one(), "the slow answer")


@pytest.mark.usefixtures("no_grace")
async def test_guard_hands_on_the_result_the_error_and_the_cancellation_of_its_work(launcher: Launcher) -> None:
    worker = await started(launcher)
    assert await launcher.guard(within(DEADLINE_S, worker.add.call_one(1, 1), "the worker")) == 2
    with pytest.raises(UserError, match="^mine$"):
        await launcher.guard(within(DEADLINE_S, worker.fail.call_one("UserError", "mine"), "the worker"))
    with pytest.raises(ServiceError, match="^the store is empty$"):  # no process has died
        await launcher.guard(within(DEADLINE_S, worker.fail.call_one("ServiceError", "the store is empty"), "it"))
    call = asyncio.ensure_future(launcher.guard(within(60.0, worker.hold.call_one(), "the worker")))
    assert await within(DEADLINE_S, worker.add.call_one(1, 1), "the worker") == 2  # by now the other call is under way
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await within(DEADLINE_S, worker.add.call_one(1, 1), "the worker") == 2


@pytest.mark.usefixtures("no_grace")
async def test_an_error_in_on_start_reaches_the_caller(launcher: Launcher) -> None:
    launcher.spawn("own", Worker, failure="UserError")
    with pytest.raises(UserError, match="^cannot start: no weights in /nowhere$"):
        await launcher.start("own")
    launcher.spawn("other", Worker, failure="bad number")
    with pytest.raises(ServiceError, match="^starting the other failed: ValueError: bad number"):
        await launcher.start("other")


@pytest.mark.parametrize(
    ("failure", "end", "logged"),
    [
        ("exit", "ended with exit code 3", ""),
        ("SIGKILL", r"died of SIGKILL \(signal 9\)", ""),
        ("SIGSEGV", r"died of SIGSEGV \(signal 11\)", "Fatal Python error: Segmentation fault"),
        ("SIGABRT", r"died of SIGABRT \(signal 6\)", "Fatal Python error: Aborted"),
    ],
)
async def test_a_process_that_ends_while_it_starts_is_named(
    launcher: Launcher, failure: str, end: str, logged: str
) -> None:
    launcher.spawn("worker", Worker, failure=failure)
    with pytest.raises(ServiceError, match=f"^the worker process {end}; the end of its log is in .*worker.log$"):
        await asyncio.wait_for(launcher.start("worker"), DEADLINE_S)
    log = (launcher.log_dir / "worker.log").read_text()
    assert logged in log and ("most recent call first" in log) is bool(logged), "the Python stack"


async def test_a_process_that_ends_as_soon_as_it_has_answered_is_named(launcher: Launcher) -> None:
    launcher.spawn("worker", Gone)
    with pytest.raises(ServiceError, match="^the worker process died; the end of its log is in .*worker.log$"):
        await launcher.start("worker")


async def test_an_error_in_the_constructor_is_named(launcher: Launcher) -> None:
    launcher.spawn("worker", Worker, broken=True)
    with pytest.raises(ServiceError, match="(?s)^the worker process failed: .*the constructor broke"):
        await asyncio.wait_for(launcher.start("worker"), DEADLINE_S)


async def test_a_killed_actor_ends_the_pending_call_under_guard(launcher: Launcher) -> None:
    worker = await started(launcher)
    other = await started(launcher, "other")
    pid = await within(DEADLINE_S, worker.pid.call_one(), "the worker")
    call = asyncio.ensure_future(launcher.guard(within(60.0, worker.hold.call_one(), "the worker")))
    assert await within(DEADLINE_S, worker.add.call_one(1, 1), "the worker") == 2  # by now the other call is under way
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ServiceError, match="^the worker process died"):  # Monarch itself would name no process
        await asyncio.wait_for(call, DEADLINE_S)
    assert await within(DEADLINE_S, other.add.call_one(1, 1), "the other") == 2


async def test_guard_notices_a_process_that_dies_while_nobody_calls_it(launcher: Launcher) -> None:
    launcher.processes("idle", ForgeActor)
    await launcher.start("idle")
    pid = await within(DEADLINE_S, launcher["idle"].actor.pid.call_one(), "it")
    work = asyncio.ensure_future(launcher.guard(asyncio.Event().wait()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ServiceError, match="^the idle process died"):
        await asyncio.wait_for(work, DEADLINE_S)
    with pytest.raises(ServiceError, match="^the idle process died"):  # and every later guard says so at once
        await launcher.guard(asyncio.Event().wait())


async def test_a_death_that_nobody_guards_against_makes_no_noise_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Launcher(tmp_path / "logs") as launcher:
        worker = await started(launcher)
        pid = await within(DEADLINE_S, worker.pid.call_one(), "the worker")
        os.kill(pid, signal.SIGKILL)
        assert launcher._failure is not None
        await asyncio.wait({launcher._failure}, timeout=DEADLINE_S)
        assert launcher._failure.done()
    launcher._failure = None
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_two_launchers_one_after_the_other(tmp_path: Path) -> None:
    pids = set()
    for index in range(2):
        async with Launcher(tmp_path / str(index)) as launcher:
            worker = await started(launcher)
            assert await within(DEADLINE_S, worker.add.call_one(index, 1), "the worker") == index + 1
            pids.add(await within(DEADLINE_S, worker.pid.call_one(), "the worker"))
        assert not any(is_alive(pid) for pid in pids)
    assert len(pids) == 2


class Controller:
    """controller.py as a process; its paths are short, because sockets lie below them."""

    def __init__(self, ending: str, folder: Path) -> None:
        self.temp, self.logs = folder / "t", folder / "logs"
        self.temp.mkdir()
        environ = {name: value for name, value in os.environ.items() if name != "MONARCH_LOG_SUFFIX"}
        environ |= {"TMPDIR": str(self.temp), "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
        command = [sys.executable, str(HERE / "controller.py"), ending, str(self.logs)]
        self._errors = open(folder / "errors", "w+")  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            command, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.pids: list[int] = []

    def ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.pids = json.loads(line)["pids"]
        assert len(self.pids) == 3  # that they are alive, the controller has seen: it may end them at once

    def end(self) -> list[dict[str, Any]]:
        """Wait for the end; returns what it told."""
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return [json.loads(line) for line in output.splitlines()]

    def ends_with(self, code: int) -> None:
        """Wait for the end: this exit code, everything gone as soon as the block is left, and no word of it."""
        (told,) = self.end()
        assert self.process.returncode == code, self.errors()
        assert told["children"] == [] and told["temp"] == [] and "pidfd" not in told["descriptors"]
        self.assert_nothing_left()
        assert not self.errors().strip()

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def assert_nothing_left(self) -> None:
        # Those that had not answered yet end by themselves, a moment after the controller.
        wait_until(lambda: not any(is_alive(pid) for pid in self.pids), "all actors are gone")
        assert list(self.temp.iterdir()) == []
        assert not self.monarch_log().exists()

    def monarch_log(self) -> Path:
        return Path("/tmp") / getpass.getuser() / f"monarch_log_forge_{self.process.pid}.log"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._errors.close()
        self.monarch_log().unlink(missing_ok=True)


@pytest.fixture
def control() -> Iterator[Callable[[str], Controller]]:
    folder = Path(tempfile.mkdtemp(prefix="rt_", dir="/tmp"))
    opened: list[Controller] = []

    def open_controller(ending: str) -> Controller:
        opened.append(Controller(ending, folder))
        return opened[-1]

    yield open_controller
    for controller in opened:
        controller.close()
    shutil.rmtree(folder)


Control = Callable[[str], Controller]


def test_nothing_is_left_of_a_block_that_ends_by_an_error(control: Control) -> None:
    controller = control("error")
    controller.ready()
    controller.ends_with(2)


def test_a_temporary_folder_may_have_a_long_name(tmp_path: Path) -> None:
    """Sockets cannot lie in it, for their addresses are short: they go to /tmp, and are removed from there.

    The block ends as usual, and nothing is left then either.
    """
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    controller = Controller("done", folder)
    try:
        controller.ready()
        controller.ends_with(0)
    finally:
        controller.close()


@pytest.mark.slow
def test_launchers_in_a_row_do_not_add_up(control: Control) -> None:
    controller = control("again")
    controller.ready()
    told = [line for line in controller.end() if "descriptors" in line]
    assert controller.process.returncode == 0, controller.errors()
    assert len(told) == 4 and all(line["children"] == [] and line["temp"] == [] for line in told)
    first, last = told[0]["descriptors"], told[-1]["descriptors"]
    assert last["socket"] <= first["socket"] + 6, (first, last)
    assert sum(last.values()) <= sum(first.values()) + 20, (first, last)
    controller.assert_nothing_left()


def test_a_signal_before_the_actors_are_up(control: Control) -> None:
    controller = control("early")
    controller.ready()
    controller.process.send_signal(signal.SIGTERM)
    controller.end()
    assert controller.process.returncode == 143, controller.errors()
    controller.assert_nothing_left()


def test_a_signal_ends_the_run_in_order_and_a_second_one_does_not_break_off_the_cleaning(control: Control) -> None:
    controller = control("slow")
    controller.ready()
    controller.process.send_signal(signal.SIGINT)
    finishing = controller.logs / "0" / "finishing"
    wait_until(finishing.exists, "the actor frees what it holds")
    controller.process.send_signal(signal.SIGINT)
    controller.ends_with(130)
    assert finishing.with_name("finishing.done").exists()  # it was allowed to end


def test_actors_do_not_outlive_a_killed_controller(control: Control) -> None:
    controller = control("wait")
    controller.ready()
    controller.process.kill()
    controller.process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in controller.pids), "all actors are gone")


def test_an_import_alone_leaves_no_log_of_monarch(control: Control) -> None:
    """A user's mistake ends the run after the imports and before any launcher."""
    controller = control("import")
    controller.end()
    assert controller.process.returncode == 0, controller.errors()
    controller.assert_nothing_left()


async def test_a_killed_process_that_does_not_end_is_left_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a disk ends when the disk answers; the loop goes on, and so does the end of the run."""
    monkeypatch.setattr("forge_env.runtime.launcher._END_S", 0.05)
    said: list[str] = []
    launcher = Launcher(tmp_path, say=said.append)
    with subprocess.Popen(["sleep", "60"]) as lives, subprocess.Popen(["true"]) as ended:
        assert await launcher._reap([lives.pid, ended.pid]) == {lives.pid}
        lives.kill()
    assert len(said) == 1 and said[0].endswith(f"[{lives.pid}]")
