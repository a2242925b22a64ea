"""What dies, hangs or fills up under a run, for real: rollouts are replaced, and what cannot be says so and resumes.

docs/reliability.md has the table. The controller's death and two runs on one folder are in test_resume.py and
tests/trainers/test_checkpoints.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agents.generator.settings import EngineSettings
from forge_env.core.episode import read_jsonl
from forge_env.core.types import Outcome, Sampling
from forge_env.records.run_files import steps_of
from forge_env.rollout.lockstep import Request
from tests.helpers.pages import OBSERVED
from tests.helpers.runs import DEADLINE, Start, Started, records, steps_taken
from tests.helpers.waiting import wait_until
from trainers.checkpoints import read_manifest

GROUPS, SIBLINGS = 4, 4
SMALL = (
    "--warmup.steps", "0", "--dataset.held_out", "4", "--dataset.tasks", "64", "--training.batch_size", str(GROUPS),
    "--grpo.n_samples", str(SIBLINGS), "--checkpoint.interval", "1",
    "--training.entropy_coef", "0.01",  # so that each step trains, whatever its rewards
)  # fmt: skip
ASYNC = ("--env", "math", "--training.staleness", "1", "--steps", "100000", *SMALL)


class Console:
    """Reads what a run says, with the time of each line."""

    def __init__(self, run: Started) -> None:
        self._run = run
        self.lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._run.process.stdout is not None
        for line in self._run.process.stdout:
            self.lines.append((time.monotonic(), line))

    def when(self, text: str, count: int) -> float:
        """Wait until so many lines hold `text`; returns when the last of them came."""
        wait_until(lambda: len(self._times(text)) >= count or self._run.process.poll() is not None, seconds=DEADLINE)
        assert len(self._times(text)) >= count, f"{text!r} never came; the run said:\n{self.text}"
        return self._times(text)[count - 1]

    def end(self) -> str:
        """Wait for the end of the run; returns all that it said."""
        self._run.process.wait(DEADLINE)
        self._thread.join(DEADLINE)
        return self.text

    @property
    def text(self) -> str:
        return "".join(line for _, line in self.lines)

    def _times(self, text: str) -> list[float]:
        return [at for at, line in self.lines if text in line]


class Faults:
    """Does something to the processes of a run, and waits until it trains again."""

    def __init__(self, run: Started) -> None:
        self.run = run
        self.console = Console(run)
        self.count: Counter[str] = Counter()
        self.advance(2)

    def pid(self, name: str) -> int:
        def find() -> int:
            try:
                return int(json.loads((self.run.output / "logs" / "pids.json").read_text())[name][0])
            except (OSError, ValueError, LookupError):  # it is being written
                return 0

        wait_until(find, seconds=DEADLINE)
        return find()

    def advance(self, steps: int) -> None:
        """Wait for so many further steps."""
        last = len(steps_taken(self.run.output))
        wait_until(
            lambda: len(steps_taken(self.run.output)) >= last + steps or self.run.process.poll() is not None,
            seconds=DEADLINE,
        )
        assert self.run.process.poll() is None, self.console.end()

    def do(self, what: str, name: str, act: Callable[[], None]) -> None:
        """Do something that ends `name`, and see that it is replaced and that training goes on."""
        act()
        at = time.monotonic()
        self.count[name] += 1
        noticed = self.console.when("another one is started", self.count.total()) - at
        recovered = self.console.when(f"{name} is up again after", self.count[name]) - at
        assert noticed < 15.0
        self.advance(3)
        print(f"{what}: noticed after {noticed:.2f} s, up again after {recovered:.1f} s, of {os.getloadavg()[0]:.1f}")

    def send(self, name: str, number: signal.Signals) -> None:
        os.kill(self.pid(name), number)

    def stop_in_the_middle(self, name: str) -> int:
        """Stop a process until training waits for the groups that are under way in it; returns its process id.

        At most two steps' groups can be ready by then; after those two steps, the next groups have begun.
        """
        pid, last = self.pid(name), len(steps_taken(self.run.output))
        os.kill(pid, signal.SIGSTOP)
        patience = time.monotonic() + 4.0
        while len(steps_taken(self.run.output)) < last + 2 and time.monotonic() < patience:
            time.sleep(0.02)
        return pid

    def stop_generator_before_a_pull(self) -> int:
        """Stop the generator so that weights are published which it cannot pull; returns its process id."""
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            pid, before = self.pid("generator"), self._commits()
            os.kill(pid, signal.SIGSTOP)
            patience = time.monotonic() + 3.0  # of no consequence: without a step under way, it is tried again
            while time.monotonic() < patience:
                if self._commits() > before:
                    return pid
                time.sleep(0.01)
            os.kill(pid, signal.SIGCONT)
            self.advance(1)
        raise AssertionError("no weights were published while the generator was stopped")

    def _commits(self) -> int:
        return (self.run.output / "trace.json").read_text().count('"commit"')

    def end(self) -> None:
        """End the run by SIGTERM; nothing is left, and the books are right."""
        self.run.process.terminate()
        output = self.console.end()
        assert self.run.process.returncode == 143, output
        assert "Traceback" not in output
        self.run.assert_nothing_left()
        check_books(self.run.output)


def check_books(output: Path) -> None:
    """Every prompt up to the newest checkpoint was trained exactly once, or is still open."""
    step, folder = list(steps_of(output).items())[-1]
    extra = read_manifest(folder)["extra"]
    ledger = extra["place"]["ledger"]
    written = (output / "episodes" / "train.jsonl").read_bytes()[: extra["report"]["bytes"]["episodes/train.jsonl"]]
    groups = Counter(json.loads(line)["group_id"] for line in written.splitlines())
    assert set(groups.values()) == {SIBLINGS}
    trained = [int(name.removeprefix("train/")) for name in groups]
    assert len(trained) == ledger["trained"] == step * GROUPS
    assert ledger["dropped"] == {}
    assert sorted(trained + ledger["open"]) == list(range(ledger["next"]))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_environments_and_generator_are_killed(start: Start) -> None:
    """With groups under way: they are run again, and training goes on."""
    faults = Faults(start("trainers.grpo", *ASYNC))
    for what, name in (("EnvActor", "envs"), ("PolicyActor", "generator")):
        pid = faults.stop_in_the_middle(name)
        faults.do(f"{what} SIGKILL", name, lambda pid=pid: os.kill(pid, signal.SIGKILL))  # type: ignore[misc]
    last = records(faults.run.output)[-1]
    assert last["processes_replaced"] == 2 and last["groups_run_again"] >= 1
    faults.end()


@pytest.mark.slow
@pytest.mark.skipif(not OBSERVED, reason="the timeline says when weights are published")
@pytest.mark.timeout(900)
def test_environments_hang_and_the_generator_dies_with_a_pull_before_it(start: Start) -> None:
    run = start("trainers.grpo", "--services.envs.ping_seconds", "3", *ASYNC)
    faults = Faults(run)
    faults.do("EnvActor SIGSTOP", "envs", lambda: faults.send("envs", signal.SIGSTOP))
    pid = faults.stop_generator_before_a_pull()
    faults.do("PolicyActor SIGKILL in a pull", "generator", lambda: os.kill(pid, signal.SIGKILL))
    last = records(run.output)[-1]
    assert last["processes_replaced"] == 2 and last["groups_run_again"] >= 1
    faults.end()


def ends_with_one_sentence(run: Started, output: str) -> int:
    """The run has ended with one sentence that says how to go on; returns the step to go on from."""
    step = max(steps_of(run.output))
    assert run.process.returncode == 1, output
    assert "Traceback" not in output
    (sentence,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert sentence.endswith(f"; go on from step {step} with python -m trainers.grpo --output {run.output} --resume")
    return step


def goes_on(begin: Callable[..., Started], output: Path, step: int, *options: str) -> None:
    """Two further steps from the checkpoint of `step`, and the books are right."""
    again = begin("trainers.grpo", "--output", str(output), "--resume", "--steps", str(step + 2), *options)
    assert f"grpo goes on after step {step}, from" in again.ends_with(0)
    assert steps_taken(output) == list(range(1, step + 3))
    check_books(output)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_trainer_is_killed_between_steps_and_in_a_checkpoint(start: Start) -> None:
    """The run starts again by itself after the first death, and ends with one sentence at the second."""
    run = start("trainers.grpo", *ASYNC)
    faults = Faults(run)
    faults.send("trainer", signal.SIGKILL)
    at = time.monotonic()
    noticed = faults.console.when("restart 1 of 1", 1) - at
    print(f"TrainerActor SIGKILL: noticed, and started again, after {noticed:.2f} s")
    faults.console.when("grpo goes on after step", 1)
    (restart,) = json.loads((run.output / "run.json").read_text())["restarts"]
    step = restart["step"]
    assert step >= 1 and f": started again from step {step}, restart 1 of 1" in faults.console.text
    assert restart["cause"].startswith("the trainer process died")
    faults.advance(2)
    pid = faults.pid("trainer")
    halves: list[Path] = []

    def stopped_in_a_checkpoint() -> bool:
        if not any((run.output / "checkpoints").glob(".step_*.partial")):
            return False
        os.kill(pid, signal.SIGSTOP)
        halves[:] = (run.output / "checkpoints").glob(".step_*.partial")
        if not halves:
            os.kill(pid, signal.SIGCONT)
        return bool(halves)

    wait_until(stopped_in_a_checkpoint, seconds=DEADLINE)
    os.kill(pid, signal.SIGKILL)
    output = faults.console.end()
    assert ends_with_one_sentence(run, output) >= step
    (half,) = halves
    assert half.is_dir() and half.name[1:-8] not in {path.name for path in steps_of(run.output).values()}
    goes_on(start, run.output, max(steps_of(run.output)))
    assert not list((run.output / "checkpoints").glob(".*"))


def _sandboxes(pid: int) -> set[int]:
    """The processes that a process has started to run code in."""
    result = set()
    with suppress(OSError):  # one of them has just ended
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                if b"sandboxes/guest/guest.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                    result.add(child)
    return result


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sandbox_is_killed_again_and_again(start: Start) -> None:
    """A snippet that dies with it is a fault without a reward; the sandbox is made anew."""
    run = start(
        "trainers.grpo", "--env", "code_exec", "--training.staleness", "1", "--steps", "100000", *SMALL,
        "--warmup.steps", "90", "--warmup.demonstrations", "256", "--warmup.probe_tasks", "8",
    )  # fmt: skip
    faults = Faults(run)
    killed: set[int] = set()

    def kill_four() -> bool:
        for pid in _sandboxes(faults.pid("envs")) - killed:
            faults.advance(1)  # a pace at which some calls come through
            killed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(killed) >= 4

    wait_until(kill_four, seconds=DEADLINE)
    faults.advance(3)
    folder = list(steps_of(run.output).values())[-1]
    counted = read_manifest(folder)["extra"]["place"]["drops"]
    run.process.terminate()
    output = faults.console.end()
    assert run.process.returncode == 143 and "Traceback" not in output, output
    run.assert_nothing_left()
    episodes = list(read_jsonl(run.output / "episodes" / "train.jsonl"))
    for episode in episodes:
        assert episode.outcome.is_valid or (episode.outcome is Outcome.INFRA_FAULT and "sandbox" in episode.error)
        assert (episode.reward is None) == (not episode.outcome.is_valid)
        assert not episode.outcome.is_valid or "andbox" not in episode.error
    print(f"sandbox SIGKILL, {len(killed)} processes: {counted}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("only root can mount a disk of its own here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("left", "interval", "what"), [(500_000, 1, "the checkpoint "), (0, 5, "")], ids=["checkpoint", "episodes"]
)
def test_the_disk_is_full(start: Start, small_disk: Path, left: int, interval: int, what: str) -> None:
    """With a little room a checkpoint fails, or what steps record meanwhile; with none, and none due, records fail."""
    output = small_disk / "run"
    run = start("trainers.grpo", "--output", str(output), *ASYNC, "--checkpoint.interval", str(interval))
    run.output = output
    faults = Faults(run)
    wait_until(lambda: steps_of(output) or run.process.poll() is not None, seconds=DEADLINE)
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        while (free := shutil.disk_usage(small_disk).free) > left:
            try:
                file.write(bytes(max(4096, min(free - left, 2**20))))
                file.flush()
            except OSError:  # a step has written something meanwhile
                break
    said = faults.console.end()
    assert run.process.returncode == 2, said
    assert "Traceback" not in said
    (sentence,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert sentence.startswith((f"error: {what}{output}", f"error: {output}"))
    assert f"the disk mounted at {small_disk} is full" in sentence
    assert "--resume" in sentence
    run.assert_nothing_left()
    ballast.unlink()
    goes_on(start, output, max(steps_of(output)))


@pytest.mark.slow
async def test_a_broken_engine_is_replaced(tiny_model: Path, tmp_path: Path) -> None:
    """A step of the real engine raises: the requests that it had are answered by its successor."""
    pytest.importorskip("monarch")
    from agents.generator.policy import PolicyActor
    from forge_env.runtime.launcher import Launcher
    from tests.system.breakable import BreakableActor

    async with Launcher(tmp_path / "logs", say=lambda message: None):
        settings = EngineSettings(max_model_len=256, max_requests=8)
        service = await BreakableActor.options().as_service(name="policy", model=str(tiny_model), settings=settings)
        sampling = Sampling(max_tokens=200, seed=1)
        before = await service.route(PolicyActor.generate, (3, 4), sampling)
        under_way = [asyncio.create_task(service.route(PolicyActor.generate, (3, 4), sampling)) for _ in range(3)]
        batched = service.route(PolicyActor.generate_batch, [Request((3, 4), sampling, "in a batch")])
        batch = asyncio.create_task(batched)
        at = time.monotonic()
        await service.route(BreakableActor.break_a_step)
        for completion in await asyncio.gather(*under_way):
            assert tuple(completion.token_ids) == tuple(before.token_ids)
        assert [tuple(completion.token_ids) for completion in await batch] == [tuple(before.token_ids)]
        (death,) = service.deaths
        assert death.reason.startswith("the policy process was ended: the engine broke: IndexError")
        assert death.recovered_at is not None
        print(
            f"engine step raises: noticed after {death.at - at:.2f} s, up again after {death.recovered_at - at:.1f} s"
        )
