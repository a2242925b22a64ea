"""Runs the checks in order, each with a share of the time budget; a check is skipped if its requirement failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from contrib.check.constant_answers import constant_answers
from contrib.check.context import CheckContext, CheckFailed, CheckSkipped, CheckWarning
from contrib.check.contract import close, contract, reset_first
from contrib.check.direct_calls import with_timeout
from contrib.check.event_loop import event_loop
from contrib.check.isolation import isolation
from contrib.check.leaks import leaks
from contrib.check.partial_credit import partial_credit
from contrib.check.report import CheckReport, CheckRow, Latency
from contrib.check.scoring import breakdown, cheats, gold, limits, malformed_actions, some_reward, wrong
from contrib.check.seeds import same_seed, two_seeds
from contrib.check.tasks import tasks
from contrib.check.threads import advice, threads
from forge_env.core.errors import ForgeError, UserError, nearest
from forge_env.core.user_code import error_text, fault
from forge_env.rollout.env_calls import EnvTimeout
from forge_env.rollout.factory import EnvFactory

T = TypeVar("T")

MAX_CHECK_SECONDS = 300.0
BUDGET_SECONDS = 120.0
MIN_SHARE = 1 / 3
"""A check may use this share of the remaining budget, if an equal share for each remaining check is less."""
OPEN_SECONDS = 120.0
HANG_SECONDS = 5.0
"""A call that ends no episode within these, nor within many times the slowest episode, hangs."""
OPEN, CONTRACT = "open and close", "contract"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    function: Callable[[CheckContext], Coroutine[Any, Any, str]]
    """Returns one sentence about what is right; raises CheckFailed, CheckWarning or CheckSkipped."""
    needs: str = CONTRACT
    """A check that must pass; otherwise this one is skipped."""
    uses: str = ""
    """A check with results that make this one stricter, whether it passes or not."""


# The latencies are measured early, before other checks can disturb them.
CHECKS = (
    Check(name=CONTRACT, function=contract, needs=OPEN),
    Check(name="isolation", function=isolation, needs=OPEN),
    Check(name="event loop", function=event_loop),
    Check(name="reset before step", function=reset_first),
    Check(name="close", function=close),
    Check(name="threads", function=threads),
    Check(name="reward", function=some_reward),
    Check(name="breakdown", function=breakdown, needs="reward"),
    Check(name="gold answers", function=gold, needs="reward"),
    Check(name="wrong answers", function=wrong, uses="gold answers"),
    Check(name="constants", function=constant_answers, uses="gold answers"),
    Check(name="partial credit", function=partial_credit, needs="reward", uses="constants"),
    Check(name="malformed actions", function=malformed_actions),
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
    """Check an environment.

    The checks run one after another in this process; the checks of seeds play 64 episodes at once. The process gets
    another temporary folder meanwhile, so nothing else should run in it.

    Args:
        factory: must not be open; it is opened and closed here, more than once.
        seed: of the tasks and the episodes.
        tasks: maximum number of tasks to check.
        only: names of the checks to run, with those that they need; all by default.
        seconds: time budget. Each check has a share of the rest; a check that exceeds it is reported as not checked.
        progress: called with the name of each check as it begins.
        on_episode: called after each episode with the number of episodes so far.
    """
    if tasks < 1:
        raise UserError(f"tasks is {tasks}; a check needs 1 task or more")
    if not seconds > 0:
        raise UserError(f"seconds is {seconds:g}; the budget of the checks is above 0 s")
    selected = _selected(only)
    context = CheckContext(factory=factory, seed=seed, count=tasks, on_episode=on_episode or (lambda episodes: None))
    runner = _Runner(context, progress or (lambda name: None), selected, seconds)
    await runner.check(FIRST)
    if selected - {FIRST.name, LAST.name}:
        await runner.open_and_close(CHECKS)
    await runner.check(LAST)
    return CheckReport(
        name=factory.name,
        rows=tuple(runner.rows),
        reset=Latency.of(context.reset_seconds),
        step=Latency.of(context.step_seconds),
        isolation=context.isolation,
    )


def _selected(only: Sequence[str]) -> set[str]:
    if not only:
        return set(NAMES)
    needs = {check.name: (check.needs, check.uses) for check in (FIRST, *CHECKS, LAST)} | {OPEN: ()}
    waiting = [name.strip().lower().replace("-", " ").replace("_", " ") for name in only]
    for text, name in zip(only, waiting, strict=True):
        if name not in needs:
            raise UserError(f"there is no check {text!r}. {nearest(name, NAMES)}")
    selected: set[str] = {FIRST.name}
    while waiting:
        name = waiting.pop()
        if name and name not in selected:
            selected.add(name)
            waiting += needs[name]
    return selected


class _Runner:
    def __init__(
        self, context: CheckContext, progress: Callable[[str], None], selected: set[str], seconds: float
    ) -> None:
        self.rows: list[CheckRow] = []
        self._context = context
        self._progress = progress
        self._successes = {""}
        self._without_result: set[str] = set()
        self._remaining = len(selected)
        self._selected = selected
        self._budget = seconds
        self._deadline = time.monotonic() + seconds

    async def open_and_close(self, checks: tuple[Check, ...]) -> None:
        """Run checks with the factory open.

        All in one task: some shared resources must be closed by the task that opened them.
        """
        self._progress(OPEN)
        start = time.perf_counter()
        stack = AsyncExitStack()
        problem = await _open_problem("opening", stack.enter_async_context(self._context.factory))
        seconds = time.perf_counter() - start
        if not problem:
            self._successes.add(OPEN)
        for check in checks:
            await self.check(check)
        problem = problem or await _open_problem("closing", stack.aclose())
        row = CheckRow(name=OPEN, ok=not problem, detail=problem or "what the episodes share is opened and closed")
        self._add(row, seconds)

    async def check(self, check: Check) -> None:
        """Run a check if it is selected; it is skipped if the check that it needs has not passed."""
        if check.name not in self._selected:
            return
        self._progress(check.name)
        start = time.perf_counter()
        if check.needs in self._without_result:
            row = CheckRow(name=check.name, ok=None, detail=f"{check.needs!r} was not finished", unfinished=True)
        elif check.needs not in self._successes:
            row = CheckRow(name=check.name, ok=None, detail=f"the check {check.needs!r} has to pass first")
        else:
            row = await self._row(check)
        if row.ok:
            self._successes.add(check.name)
        if row.unfinished:
            self._without_result.add(check.name)
        self._remaining -= 1
        self._add(row, time.perf_counter() - start)

    def _add(self, row: CheckRow, seconds: float) -> None:
        # A detail may quote what an environment raises: make it one line without control characters.
        words = " ".join(row.detail.split())
        detail = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
        self.rows.append(replace(row, detail=detail, seconds=seconds))

    async def _row(self, check: Check) -> CheckRow:
        row = partial(CheckRow, name=check.name)
        remaining_s = self._deadline - time.monotonic()
        share = max(remaining_s / max(self._remaining, 1), remaining_s * MIN_SHARE)
        if share <= 0:
            why = f"the budget of {self._budget:g} s is used up: raise it with --seconds, or select checks with --only"
            return row(ok=None, detail=why, unfinished=True)
        self._context.deadline = time.monotonic() + share
        played_before = self._context.episodes_played
        limit = min(share, MAX_CHECK_SECONDS)
        try:
            return row(
                ok=True, detail=await with_timeout("the check", _catch_exits(check.function(self._context)), limit)
            )
        except CheckFailed as failure:
            return row(ok=False, detail=str(failure))
        except CheckWarning as warning:
            return row(ok=True, detail=str(warning), is_warning=True)
        except CheckSkipped as reason:
            return row(ok=None, detail=str(reason))
        except EnvTimeout as error:
            if limit == MAX_CHECK_SECONDS or time.monotonic() < self._context.deadline:
                return row(ok=False, detail=f"{error}: find the call that hangs, or check fewer tasks")
            episodes = self._context.episodes_played - played_before
            detail = f"not finished within its {share:.3g} s of the budget of {self._budget:g} s"
            detail += f", after {episodes} episodes"
            patience = max(HANG_SECONDS, 100 * self._context.slowest)
            if not episodes and (check.name in (FIRST.name, CONTRACT) or share >= patience):
                remedy = "find the call that hangs, or raise the budget with --seconds"
                return row(ok=False, detail=f"{detail}: {remedy}")
            remedy = "raise it with --seconds, or check fewer --tasks"
            return row(ok=None, detail=f"{detail} without a failure: {remedy}", unfinished=True)
        except Exception as error:
            return row(ok=False, detail=f"the environment raised {_error_with_type(error)}{advice(str(error))}")


async def _catch_exits(work: Coroutine[Any, Any, T]) -> T:
    """Await a check; turn SystemExit and the like into an Exception.

    This happens in the task that raises it, because asyncio would let it end the full command.
    """
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if (env_error := fault("the environment", error)) is not None:
            raise env_error from error
        raise


async def _open_problem(action: str, work: Awaitable[object]) -> str:
    deadline = asyncio.timeout(OPEN_SECONDS)
    try:
        async with deadline:
            await work
    except Exception as error:
        reason = f"took longer than {OPEN_SECONDS:g} s" if deadline.expired() else f"raised {_error_with_type(error)}"
        return f"{action} what the episodes share {reason}"
    return ""


def _error_with_type(error: Exception) -> str:
    return f"{type(error).__name__}: {error_text(error) if isinstance(error, ForgeError) else error}"
