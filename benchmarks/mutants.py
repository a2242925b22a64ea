"""Mutation testing with a table of real mistakes: each must make a test fail.

    python -m benchmarks.mutants [--jobs 2] [--only SUBSTRING] [--list] [--before FILE]

The table is `benchmarks/mutants_table/`. The tree is copied, one mutant at a time is applied to the copy, and its test
files run until the first failure. A mutant whose function, fragment or test file is not there any more is "lost": it
counts as not killed until the table is mended. Nothing of the tree itself changes but benchmarks/results/mutants.json.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.machine import describe
from benchmarks.mutants_source import PACKAGES, Lost, Mutant, Sources
from benchmarks.mutants_table import TABLE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
AIM = 0.95
LIMIT_S = 180.0
"""Of one mutant's tests; more is a time-out, which counts as killed."""
CONTROL_LIMIT_S = 1800.0
_AT_ONCE = 8
"""Test files of one process of the control: few enough that all copies are busy to the end."""
_GRACE_S = 10.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

Status = Literal["killed", "timeout", "survived", "lost", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant."""

    status: Status
    detail: str = ""
    """The test that failed first; or why there is none."""
    seconds: float = 0.0

    @property
    def is_kill(self) -> bool:
        return self.status in ("killed", "timeout")


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of pytest that has ended."""

    code: int | None
    """None where the limit ended it."""
    output: str
    seconds: float


class Refused(Exception):
    """There is nothing to measure, and the text says why."""


class Copy:
    """A copy of the tree in which one mutant at a time stands."""

    def __init__(self, folder: Path, files: Iterable[str]) -> None:
        self.root = folder / "tree"
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True)
        for name in files:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
        cache = ROOT / ".cache"
        cache.mkdir(exist_ok=True)
        (self.root / ".cache").symlink_to(cache)  # compiled kernels, and models that were downloaded
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "TMPDIR": str(self._temporary),
            "COLUMNS": "400",
        }
        self._server: asyncio.subprocess.Process | None = None
        self._check_imports()

    def write(self, path: Path, text: str) -> None:
        """Replace a file; what was compiled of it goes, as two texts of one size and second would share it."""
        target = self.root / path
        target.write_text(text, encoding="utf-8")
        Path(importlib.util.cache_from_source(str(target))).unlink(missing_ok=True)

    def tests(self, names: Sequence[str]) -> list[str]:
        """The test files of base names.

        Raises:
            Lost: when there is none of a name.
        """
        files = []
        for name in names:
            found = sorted((self.root / "tests").rglob(name))
            if not found:
                raise Lost(f"there is no test file {name} below tests/")
            files += [str(path.relative_to(self.root)) for path in found]
        return files

    async def pytest(self, files: Sequence[str], *options: str, limit: float) -> _Run:
        """Run test files; whatever way this ends, their processes are gone."""
        output = self._temporary / "output"
        output.unlink(missing_ok=True)
        # Not by `-p no:cacheprovider`: without its plugin --strict-config would refuse the setting.
        cache = ("-o", f"cache_dir={self._temporary / 'pytest'}")
        arguments = ["-q", "-m", "not gpu and not slow", "-rfE", *cache, *options, *files]
        started = time.monotonic()
        code = await self._forked({"arguments": arguments, "output": str(output)}, limit)
        return _Run(code, output.read_text(errors="replace"), time.monotonic() - started)

    async def _forked(self, request: Mapping[str, Any], limit: float) -> int | None:
        """Have the server run pytest; returns its exit code, or None where the limit ended it."""
        if self._server is None:
            self._server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.mutants_server"),
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        process = int(await stdout.readline())
        end = asyncio.create_task(stdout.readline())
        try:
            done, _ = await asyncio.wait([end], timeout=limit)
            return int(end.result()) if done else None
        finally:
            if not end.done():
                _signal(process, signal.SIGINT)  # pytest tears down what its tests have started
                await asyncio.wait([end], timeout=_GRACE_S)
            _signal(process, signal.SIGKILL)
            await end

    async def close(self) -> None:
        """End the server."""
        if self._server is not None:
            _signal(self._server.pid, signal.SIGKILL)
            await self._server.wait()

    def _check_imports(self) -> None:
        """Check that Python here imports the packages of the copy, and not those of the tree."""
        code = f"import {', '.join(PACKAGES)}; print(*(m.__file__ for m in ({', '.join(PACKAGES)})), sep='\\n')"
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=self.root, env=self._environment, capture_output=True, text=True
        )
        paths = result.stdout.split("\n")[: len(PACKAGES)]
        if result.returncode or not all(Path(path).is_relative_to(self.root) for path in paths):
            raise Refused(f"the copy in {self.root} is not what Python imports there: {paths} {result.stderr[-300:]}")


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def tracked_files() -> list[str]:
    """The files of the working tree that git tracks, or would: those that are new and not ignored too."""
    command = ("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


async def try_mutant(mutant: Mutant, sources: Sources, copy: Copy, *, limit: float = LIMIT_S) -> Verdict:
    """Apply a mutant to a copy, run its tests, and take it away again."""
    try:
        path, text = sources.edited(mutant)
        files = copy.tests(mutant.tests)
    except Lost as error:
        return Verdict(status="lost", detail=str(error))
    copy.write(path, text)
    try:
        run = await copy.pytest(files, "-x", limit=limit)
    finally:
        copy.write(path, sources.texts[path])
    return judge(run)


def judge(run: _Run) -> Verdict:
    """What a run of a mutant's tests says: pytest ends with 1 for a failed test, and with 2 for a failed import."""
    first = _FAILED.search(run.output)
    seconds = round(run.seconds, 1)
    if run.code is None:
        return Verdict(status="timeout", detail="the tests took longer than the limit", seconds=seconds)
    if run.code == 0:
        return Verdict(status="survived", seconds=seconds)
    if run.code in (1, 2) and first:
        return Verdict(status="killed", detail=first[1], seconds=seconds)
    if run.code < 0:
        return Verdict(status="killed", detail=f"pytest ended by signal {-run.code}", seconds=seconds)
    last = " ".join(run.output.strip().splitlines()[-2:])
    return Verdict(status="error", detail=f"pytest ended with {run.code}: {last[-300:]}", seconds=seconds)


async def check_control(mutants: Sequence[Mutant], copies: Sequence[Copy]) -> float:
    """Run all test files of the mutants on the tree as it is; returns the seconds.

    Raises:
        Refused: when one fails, which would kill its mutants for nothing.
    """
    files: list[str] = []
    for mutant in mutants:
        try:
            files += copies[0].tests(mutant.tests)
        except Lost:
            pass  # its mutant is lost, which is said later
    waiting = list(dict.fromkeys(files))
    started = time.monotonic()

    async def work(copy: Copy) -> None:
        while waiting:
            share, waiting[:] = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            run = await copy.pytest(share, limit=CONTROL_LIMIT_S)
            if run.code != 0:
                failed = ", ".join(_FAILED.findall(run.output)) or f"{', '.join(share)}: {run.output[-500:]}"
                raise Refused(f"the tests fail without any mutant, so they say nothing about one: {failed}")

    try:
        async with asyncio.TaskGroup() as group:
            for copy in copies:
                group.create_task(work(copy))
    except* Refused as errors:
        raise errors.exceptions[0] from None
    return time.monotonic() - started


async def measure(mutants: Sequence[Mutant], *, jobs: int, limit: float) -> dict[str, Verdict]:
    """Try all mutants, `jobs` at a time; prints each."""
    sources = Sources(ROOT)
    verdicts: dict[str, Verdict] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        files = tracked_files()
        copies = [Copy(Path(folder) / str(number), files) for number in range(min(jobs, len(mutants)))]
        print(f"{len(mutants)} mutants, {len(copies)} at a time; first their tests without any", flush=True)
        waiting = iter(mutants)

        async def work(copy: Copy) -> None:
            for mutant in waiting:
                verdict = verdicts[mutant.name] = await try_mutant(mutant, sources, copy, limit=limit)
                number = f"[{len(verdicts)}/{len(mutants)}]"
                print(f"{number:>9} {verdict.status:8} {verdict.seconds:5.1f} s  {mutant.name}", flush=True)
                if verdict.detail:
                    print(f"{'':28}{verdict.detail}", flush=True)

        try:
            print(f"the tests pass, in {await check_control(mutants, copies):.0f} s", flush=True)
            async with asyncio.TaskGroup() as group:
                for copy in copies:
                    group.create_task(work(copy))
        finally:
            for copy in copies:
                await copy.close()
    return {mutant.name: verdicts[mutant.name] for mutant in mutants}


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


async def _cancellable(mutants: Sequence[Mutant], *, jobs: int, limit: float) -> dict[str, Verdict]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C does
    return await measure(mutants, jobs=jobs, limit=limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="mutants that are tried at a time")
    parser.add_argument("--only", default="", help="only mutants with this text in their name or function")
    parser.add_argument("--list", action="store_true", help="show the mutants and where they are, and try none")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that the tests of one mutant may take")
    parser.add_argument("--before", type=Path, help="an earlier result: what was killed there must be killed again")
    parser.add_argument("--json", type=Path, help=f"file for the result; of the whole table {RESULTS.name}")
    options = parser.parse_args()
    mutants = [mutant for mutant in TABLE if options.only in mutant.name or options.only in mutant.function]
    if not mutants or options.jobs < 1:
        parser.error("there is no mutant of that name, or no job")
    if options.list:
        return _list(mutants)
    started = time.monotonic()
    try:
        verdicts = asyncio.run(_cancellable(mutants, jobs=options.jobs, limit=options.limit))
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; nothing was written", file=sys.stderr)
        return 130
    result = result_of(mutants, verdicts, jobs=options.jobs, seconds=time.monotonic() - started)
    if target := options.json or (None if options.only else RESULTS):
        target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    lost = no_longer_killed(options.before, verdicts) if options.before else []
    for name in lost:
        print(f"killed before, and not now: {name}")
    counts = ", ".join(f"{name} {count}" for name, count in result["counts"].items())
    print(f"{share_of(verdicts):.1%} killed ({counts}; aim: {AIM:.0%}) in {result['seconds']} s")
    return int(share_of(verdicts) < AIM or bool(lost))


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
