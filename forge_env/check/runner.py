"""Runs the checks in order, each with a deadline, and leaves out those that need one which has failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from forge_env.check.contract import close, contract, reset_first
from forge_env.check.isolation import isolation
from forge_env.check.leaks import leaks
from forge_env.check.loop import event_loop
from forge_env.check.names import names
from forge_env.check.probes import constants
from forge_env.check.report import CheckReport, CheckRow, Latency
from forge_env.check.scoring import cheats, gold, limits, malformed, some_reward, wrong
from forge_env.check.seeds import same_seed, two_seeds
from forge_env.check.subject import Failed, Overdue, Skipped, Subject, bounded
from forge_env.check.tasks import tasks
from forge_env.check.threads import advice, threads
from forge_env.core.errors import ForgeError, UserError, nearest
from forge_env.core.user_code import fault, told
from forge_env.rollout.factory import EnvFactory

T = TypeVar("T")

CHECK_SECONDS = 300.0
BUDGET_SECONDS = 120.0
MOST = 1 / 3
"""Of what is left of the budget, for one check, where an equal share is less."""
OPEN_SECONDS = 120.0
OPEN, NAMES_CHECK, CONTRACT = "open and close", "names", "contract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what it is called, what it does, and which one must have passed before."""

    name: str
    function: Callable[[Subject], Coroutine[Any, Any, str]]
    """Returns what it found good, one sentence; raises Failed or Skipped."""
    needs: str = CONTRACT
    uses: str = ""
    """One that makes it worth more, whether it passes or not."""


# The latencies are taken early, when nothing of what the other checks leave can disturb them.
CHECKS = (
    Check(name=NAMES_CHECK, function=names, needs=OPEN),
    Check(name=CONTRACT, function=contract, needs=NAMES_CHECK),
    Check(name="isolation", function=isolation, needs=OPEN),
    Check(name="event loop", function=event_loop),
    Check(name="reset before step", function=reset_first),
    Check(name="close", function=close),
    Check(name="threads", function=threads),
    Check(name="reward", function=some_reward),
    Check(name="gold answers", function=gold, needs="reward"),
    Check(name="wrong answers", function=wrong, uses="gold answers"),
    Check(name="constants", function=constants, uses="gold answers"),
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
    factory: EnvFactory,
    *,
    seed: int = 0,
    tasks: int = 8,
    only: Sequence[str] = (),
    seconds: float = BUDGET_SECONDS,
    progress: Callable[[str], None] | None = None,
    on_episode: Callable[[int], None] | None = None,
) -> CheckReport:
    """Examine an environment.

    The checks run one after another in this process; those of the seeds play 64 episodes at once. They give the process
    a temporary folder of its own for a while, so nothing else should run in it meanwhile.

    Args:
        factory: not yet opened; it is opened and closed here, more than once.
        seed: of the tasks and the episodes.
        tasks: how many tasks to look at, at most.
        only: the names of the checks to run, with those that they need; all by default.
        seconds: the budget. Of what is left each check has its share; what it does not finish is not checked.
        progress: called with the name of each check as it begins.
        on_episode: called with the number of episodes so far after each.

    Raises:
        UserError: when `tasks` is below 1, `seconds` is not above 0, or a name in `only` is unknown.
    """
    if tasks < 1:
        raise UserError(f"a check looks at 1 task or more, not at {tasks}")
    if not seconds > 0:
        raise UserError(f"the budget of a check is above 0 s, not {seconds:g} s")
    chosen = _chosen(only)
    subject = Subject(factory=factory, seed=seed, count=tasks, on_episode=on_episode or (lambda played: None))
    run = _Run(subject, progress or (lambda name: None), chosen, seconds)
    await run.check(FIRST)
    if chosen - {FIRST.name, LAST.name}:
        await run.open_and_close(CHECKS)
    await run.check(LAST)
    return CheckReport(
        name=factory.name,
        rows=tuple(run.rows),
        reset=Latency.of(subject.resets),
        step=Latency.of(subject.steps),
        isolation=subject.isolation,
    )


def _chosen(only: Sequence[str]) -> set[str]:
    """Return the names of the checks to run: those asked for, and those that they need."""
    if not only:
        return set(NAMES)
    needs = {check.name: (check.needs, check.uses) for check in (FIRST, *CHECKS, LAST)} | {OPEN: ()}
    waiting = [name.strip().lower().replace("-", " ").replace("_", " ") for name in only]
    for asked, name in zip(only, waiting, strict=True):
        if name not in needs:
            raise UserError(f"there is no check {asked!r}. {nearest(name, NAMES)}")
    chosen: set[str] = {FIRST.name}
    while waiting:
        name = waiting.pop()
        if name and name not in chosen | {""}:
            chosen.add(name)
            waiting += needs[name]
    return chosen


class _Run:
    """The rows so far."""

    def __init__(self, subject: Subject, progress: Callable[[str], None], chosen: set[str], seconds: float) -> None:
        self.rows: list[CheckRow] = []
        self._subject = subject
        self._progress = progress
        self._passed = {""}
        self._unfinished: set[str] = set()
        self._left = len(chosen)
        self._chosen = chosen
        self._budget = seconds
        self._end = time.monotonic() + seconds

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
        row = CheckRow(name=OPEN, ok=not problem, detail=problem or "what the episodes share is opened and closed")
        self._add(row, seconds)

    async def check(self, check: Check) -> None:
        """Run one check that is chosen, unless the one that it needs has not passed."""
        if check.name not in self._chosen:
            return
        self._progress(check.name)
        started = time.perf_counter()
        if check.needs in self._unfinished:
            row = CheckRow(name=check.name, ok=None, detail=f"{check.needs!r} was not finished", unfinished=True)
        elif check.needs not in self._passed:
            row = CheckRow(name=check.name, ok=None, detail=f"the check {check.needs!r} has to pass first")
        else:
            row = await self._row(check)
        if row.ok:
            self._passed.add(check.name)
        if row.unfinished:
            self._unfinished.add(check.name)
        self._left -= 1
        self._add(row, time.perf_counter() - started)

    def _add(self, row: CheckRow, seconds: float) -> None:
        # Details quote what environments print and raise: one line, and nothing that a terminal would obey.
        words = " ".join(row.detail.split())
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
        self.rows.append(replace(row, detail=line, seconds=seconds))

    async def _row(self, check: Check) -> CheckRow:
        left = self._end - time.monotonic()
        share = max(left / max(self._left, 1), left * MOST)
        if share <= 0:
            detail = f"the budget of {self._budget:g} s was used up: give more with --seconds, or choose with --only"
            return CheckRow(name=check.name, ok=None, detail=detail, unfinished=True)
        self._subject.until = time.monotonic() + share
        before = self._subject.played
        bound = min(share, CHECK_SECONDS)
        try:
            detail = await bounded("the check", _contained(check.function(self._subject)), bound)
            return CheckRow(name=check.name, ok=True, detail=detail)
        except Failed as finding:
            return CheckRow(name=check.name, ok=False, detail=str(finding))
        except Skipped as reason:
            return CheckRow(name=check.name, ok=None, detail=str(reason))
        except Overdue as error:
            if bound == CHECK_SECONDS or not self._is_over:
                detail = f"{error}: find the call that hangs, or look at fewer tasks"
                return CheckRow(name=check.name, ok=False, detail=detail)
            played = self._subject.played - before
            detail = (
                f"not finished within its {share:.0f} s of the budget of {self._budget:g} s, {played} episodes without "
                "a finding: give more with --seconds, or look at fewer --tasks"
            )
            return CheckRow(name=check.name, ok=None, detail=detail, unfinished=True)
        except Exception as error:
            detail = f"the environment raised {_shown(error)}{advice(str(error))}"
            return CheckRow(name=check.name, ok=False, detail=detail)

    @property
    def _is_over(self) -> bool:
        """Whether the check at hand has used up its share."""
        return time.monotonic() >= self._subject.until


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    """Await a check. What is no Exception would end the whole command, so it is made one in the task that it is in."""
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if (broken := fault("the environment", error)) is not None:
            raise broken from error
        raise


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
    return f"{type(error).__name__}: {told(error) if isinstance(error, ForgeError) else error}"
