"""Runs the checks in order, each with a deadline, and leaves out those that need one which has failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from forge_env.check.contract import close, contract, reset_first
from forge_env.check.leaks import leaks
from forge_env.check.loop import event_loop
from forge_env.check.report import CheckReport, CheckRow, Latency
from forge_env.check.scoring import cheats, gold, limits, malformed, wrong
from forge_env.check.seeds import same_seed, two_seeds
from forge_env.check.subject import Failed, Overdue, Skipped, Subject, bounded
from forge_env.check.tasks import tasks
from forge_env.errors import UserError
from forge_env.factory import EnvFactory

CHECK_SECONDS = 300.0
OPEN_SECONDS = 120.0
OPEN, CONTRACT = "open and close", "contract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what it is called, what it does, and which one must have passed before."""

    name: str
    function: Callable[[Subject], Coroutine[Any, Any, str]]
    """Returns what it found good, one sentence; raises Failed or Skipped."""
    needs: str = CONTRACT


# The latencies are taken early, when nothing of what the other checks leave can disturb them.
CHECKS = (
    Check(name=CONTRACT, function=contract, needs=OPEN),
    Check(name="event loop", function=event_loop),
    Check(name="reset before step", function=reset_first),
    Check(name="close", function=close),
    Check(name="gold answers", function=gold),
    Check(name="wrong answers", function=wrong),
    Check(name="malformed actions", function=malformed),
    Check(name="cheats", function=cheats),
    Check(name="same seed", function=same_seed),
    Check(name="two seeds", function=two_seeds),
    Check(name="limits", function=limits),
)
FIRST = Check(name="tasks", function=tasks, needs="")
LAST = Check(name="leaks", function=leaks)
NAMES = (FIRST.name, *(check.name for check in CHECKS), OPEN, LAST.name)


async def run_checks(
    factory: EnvFactory, *, seed: int = 0, tasks: int = 8, progress: Callable[[str], None] | None = None
) -> CheckReport:
    """Examine an environment.

    The checks run one after another in this process; those of the seeds play 64 episodes at once. They give the process
    a temporary folder of its own for a while, so nothing else should run in it meanwhile.

    Args:
        factory: not yet opened; it is opened and closed here, more than once.
        seed: of the tasks and the episodes.
        tasks: how many tasks to look at, at most.
        progress: called with the name of each check as it begins.

    Raises:
        UserError: when `tasks` is below 1.
    """
    if tasks < 1:
        raise UserError(f"a check looks at 1 task or more, not at {tasks}")
    subject = Subject(factory=factory, seed=seed, count=tasks)
    run = _Run(subject, progress or (lambda name: None))
    await run.check(FIRST)
    await run.open_and_close(CHECKS)
    await run.check(LAST)
    return CheckReport(
        name=factory.name, rows=tuple(run.rows), reset=Latency.of(subject.resets), step=Latency.of(subject.steps)
    )


class _Run:
    """The rows so far."""

    def __init__(self, subject: Subject, progress: Callable[[str], None]) -> None:
        self.rows: list[CheckRow] = []
        self._subject = subject
        self._progress = progress
        self._passed = {""}

    async def open_and_close(self, checks: tuple[Check, ...]) -> None:
        """Run checks with the factory open. In one task, because what it shares may have to be closed by its opener."""
        self._progress(OPEN)
        started = time.perf_counter()
        stack = AsyncExitStack()
        problem = await _problem("opening", stack.enter_async_context(self._subject.factory))
        seconds = time.perf_counter() - started
        if not problem:
            self._passed.add(OPEN)
        for check in checks:
            await self.check(check)
        problem = problem or await _problem("closing", stack.aclose())
        self._add(OPEN, not problem, problem or "what the episodes share is opened and closed", seconds)

    async def check(self, check: Check) -> None:
        """Run one check, unless the one that it needs has not passed."""
        self._progress(check.name)
        started = time.perf_counter()
        if check.needs not in self._passed:
            ok, detail = None, f"the check {check.needs!r} has to pass first"
        else:
            ok, detail = await self._verdict(check)
        if ok:
            self._passed.add(check.name)
        self._add(check.name, ok, detail, time.perf_counter() - started)

    def _add(self, name: str, ok: bool | None, detail: str, seconds: float) -> None:
        # Details quote what environments print and raise: one line, and nothing that a terminal would obey.
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(detail.split()))
        self.rows.append(CheckRow(name=name, ok=ok, detail=line, seconds=seconds))

    async def _verdict(self, check: Check) -> tuple[bool | None, str]:
        try:
            return True, await bounded("the check", check.function(self._subject), CHECK_SECONDS)
        except Failed as finding:
            return False, str(finding)
        except Skipped as reason:
            return None, str(reason)
        except Overdue as error:
            return False, f"{error}: find the call that hangs, or look at fewer tasks"
        except Exception as error:
            return False, f"the environment raised {_shown(error)}"


async def _problem(doing: str, work: Awaitable[object]) -> str:
    """Await the opening or closing of what the episodes share, and return what went wrong, if anything did."""
    deadline = asyncio.timeout(OPEN_SECONDS)
    try:
        async with deadline:
            await work
    except Exception as error:
        reason = f"took longer than {OPEN_SECONDS:g} s" if deadline.expired() else f"raised {_shown(error)}"
        return f"{doing} what the episodes share {reason}"
    return ""


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
