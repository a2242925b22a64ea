"""Mutation testing with a table of real mistakes: each must make a test fail.

    python -m benchmarks.mutants [--jobs 2] [--only SUBSTRING] [--list] [--before FILE]

The table is `benchmarks/mutation/table/`. The tree is copied, one mutant at a time is applied to the copy, and its test
files run until the first failure. A mutant whose function, fragment or test file is not there any more is "lost": it
counts as not killed until the table is mended. Nothing of the tree itself changes but benchmarks/results/mutants.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.mutation.copies import NO_TESTS, ROOT, Copy, Refused, Verdict, tracked_files
from benchmarks.mutation.source import PACKAGES, Lost, Mutant, Sources
from benchmarks.mutation.table import TABLE

RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
AIM = 0.95
CONTROL_LIMIT_S = 1800.0
"""Of one test file on the tree as it is."""
MARGIN_S, MARGIN = 60.0, 4.0
"""A mutant's tests may take so many seconds more than so many times what they take without it; a time-out is a kill."""

Seconds = Mapping[str, float]
"""What each test file takes without any mutant."""


async def run_control(mutants: Sequence[Mutant], copies: Sequence[Copy]) -> Seconds:
    """Run each test file of the mutants on the tree as it is; returns their seconds.

    Raises:
        Refused: when one fails, which would kill its mutants for nothing.
    """
    files: dict[str, None] = {}
    for mutant in mutants:
        try:
            files |= dict.fromkeys(copies[0].tests(mutant.tests))
        except Lost:
            pass  # which is said when its turn comes
    waiting, seconds = iter(files), {}

    async def work(copy: Copy) -> None:
        for file in waiting:
            run = await copy.pytest([file], limit=CONTROL_LIMIT_S)
            if run.code not in (0, NO_TESTS):
                failed = ", ".join(run.failed) or f"{file}: {run.output[-500:]}"
                raise Refused(f"the tests fail without any mutant, so they say nothing about one: {failed}")
            seconds[file] = run.seconds

    await in_all(copies, work)
    return seconds


async def in_all(copies: Sequence[Copy], work: Callable[[Copy], Coroutine[Any, Any, None]]) -> None:
    """Work in all copies at the same time, and raise the first refusal as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for copy in copies:
                group.create_task(work(copy))
    except* Refused as errors:
        raise errors.exceptions[0] from None


async def try_mutants(mutants: Sequence[Mutant], copies: Sequence[Copy], control: Seconds) -> dict[str, Verdict]:
    """Try all mutants, one at a time in each copy; prints each."""
    sources, verdicts, waiting = Sources(ROOT), {}, iter(mutants)

    def limit(copy: Copy, mutant: Mutant) -> float:
        try:
            return MARGIN_S + MARGIN * sum(control[file] for file in copy.tests(mutant.tests))
        except Lost:
            return MARGIN_S

    async def work(copy: Copy) -> None:
        for mutant in waiting:
            verdict = verdicts[mutant.name] = await copy.try_mutant(mutant, sources, limit(copy, mutant))
            number = f"[{len(verdicts)}/{len(mutants)}]"
            print(f"{number:>9} {verdict.status:8} {verdict.seconds:5.1f} s  {mutant.name}", flush=True)
            if verdict.detail:
                print(f"{'':28}{verdict.detail}", flush=True)

    await in_all(copies, work)
    return {mutant.name: verdicts[mutant.name] for mutant in mutants}


async def measure(mutants: Sequence[Mutant], *, jobs: int) -> dict[str, Verdict]:
    """Run the control, and then try all mutants, `jobs` at a time."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # a background job of a shell starts with SIGINT ignored
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        files = tracked_files()
        copies = [Copy(Path(folder) / str(number), files) for number in range(min(jobs, len(mutants)))]
        try:
            print(f"{len(mutants)} mutants, {len(copies)} at a time; first their tests without any", flush=True)
            control = await run_control(mutants, copies)
            print(f"{len(control)} test files pass; they take {sum(control.values()):.0f} s, one by one", flush=True)
            return await try_mutants(mutants, copies, control)
        finally:
            for copy in copies:
                await copy.close()


def result_of(mutants: Sequence[Mutant], verdicts: Mapping[str, Verdict], *, jobs: int, seconds: float) -> Any:
    """What is written down: the machine, the commit, and the table with every verdict."""
    counts = Counter(verdict.status for verdict in verdicts.values())
    return {
        "machine": describe(),
        "commit": _git("rev-parse", "HEAD"),
        "changed_since": bool(_git("status", "--porcelain", "--", *PACKAGES, "tests")),
        "jobs": jobs,
        "seconds": round(seconds),
        "counts": {"mutants": len(mutants), **dict(sorted(counts.items()))},
        "share_killed": round(share_of(verdicts), 4),
        "mutants": [{**asdict(mutant), **asdict(verdicts[mutant.name])} for mutant in mutants],
    }


def share_of(verdicts: Mapping[str, Verdict]) -> float:
    """The share of killed mutants."""
    return sum(verdict.is_kill for verdict in verdicts.values()) / len(verdicts)


def no_longer_killed(before: Path, verdicts: Mapping[str, Verdict]) -> list[str]:
    """The mutants that were killed in an earlier result and are not now; one that is not in the table any more too."""
    earlier = json.loads(before.read_text(encoding="utf-8"))["mutants"]
    killed = [mutant["name"] for mutant in earlier if mutant["status"] in ("killed", "timeout")]
    return [name for name in killed if name not in verdicts or not verdicts[name].is_kill]


def _git(*arguments: str) -> str:
    result = subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, check=True, text=True)
    return result.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at a time")
    parser.add_argument("--only", default="", help="only mutants with this text in their name or function")
    parser.add_argument("--list", action="store_true", help="show the mutants and where they are, and try none")
    parser.add_argument("--before", type=Path, help="an earlier result: what was killed there must be killed again")
    parser.add_argument("--json", type=Path, help=f"file for the result; of the whole table {RESULTS.name}")
    options = parser.parse_args()
    mutants = [mutant for mutant in TABLE if options.only in mutant.name or options.only in mutant.function]
    if not mutants or options.jobs < 1:
        parser.error("no mutant has this text in its name or function, or --jobs is below 1")
    if options.list:
        return _list(mutants)
    started = time.monotonic()
    try:
        verdicts = asyncio.run(measure(mutants, jobs=options.jobs))
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    result = result_of(mutants, verdicts, jobs=options.jobs, seconds=time.monotonic() - started)
    if target := options.json or (None if options.only else RESULTS):
        target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    worse = no_longer_killed(options.before, verdicts) if options.before else []
    for name in worse:
        print(f"killed before, and not now: {name}")
    counts = ", ".join(f"{name} {count}" for name, count in result["counts"].items())
    print(f"{share_of(verdicts):.1%} killed ({counts}; aim: {AIM:.0%}) in {result['seconds']} s")
    return int(share_of(verdicts) < AIM or bool(worse))


def _list(mutants: Sequence[Mutant]) -> int:
    sources, is_lost = Sources(ROOT), False
    for mutant in mutants:
        try:
            where = str(sources.edited(mutant)[0])
        except Lost as error:
            where, is_lost = f"LOST: {error}", True
        print(f"{mutant.name}\n    {mutant.function}, {where}\n    {mutant.old}  ->  {mutant.new}")
    print(f"{len(mutants)} mutants")
    return int(is_lost)


if __name__ == "__main__":
    sys.exit(main())
