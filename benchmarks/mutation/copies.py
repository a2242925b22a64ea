"""Copies of the tree, in each of which one mutant at a time stands, and what its tests say."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.mutation.source import PACKAGES, Lost, Mutant, Sources

ROOT = Path(__file__).resolve().parents[2]
_GRACE_S = 10.0
NO_TESTS = 5  # pytest's exit code for a file of which every test is slow
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
class PytestRun:
    """A run of pytest that has ended."""

    code: int | None
    """Its exit code, negative for a signal; None where the limit ended it."""
    output: str
    seconds: float

    @property
    def failed(self) -> list[str]:
        """The tests that failed, or files that could not be imported."""
        return _FAILED.findall(self.output)

    @property
    def verdict(self) -> Verdict:
        """What it says of a mutant: pytest ends with 1 for a failed test, and with 2 for a failed import."""
        seconds = round(self.seconds, 1)
        if self.code is None:
            return Verdict(status="timeout", detail="the tests took longer than the limit", seconds=seconds)
        if self.code in (0, NO_TESTS):
            return Verdict(status="survived", seconds=seconds)
        if self.code in (1, 2) and self.failed:
            return Verdict(status="killed", detail=self.failed[0], seconds=seconds)
        if self.code < 0:
            return Verdict(status="killed", detail=f"pytest ended by signal {-self.code}", seconds=seconds)
        last = " ".join(self.output.strip().splitlines()[-2:])
        return Verdict(status="error", detail=f"pytest ended with {self.code}: {last[-300:]}", seconds=seconds)


class Refused(Exception):
    """There is nothing to measure, and the text says why."""


class Copy:
    """A copy of the tree.

    Args:
        folder: for the copy and its temporary files.
        files: of the tree, relative to its root.

    Raises:
        Refused: when Python would import the packages from elsewhere.
    """

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
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.root), os.environ.get("PYTHONPATH")])),
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
            paths = sorted((self.root / "tests").rglob(name))
            if not paths:
                raise Lost(f"there is no test file {name} below tests/")
            files += [str(path.relative_to(self.root)) for path in paths]
        return files

    async def try_mutant(self, mutant: Mutant, sources: Sources, limit: float) -> Verdict:
        """Apply a mutant, run its tests for `limit` seconds at most, and take it away again."""
        try:
            path, text = sources.edited(mutant)
            files = self.tests(mutant.tests)
        except Lost as error:
            return Verdict(status="lost", detail=str(error))
        self.write(path, text)
        try:
            run = await self.pytest(files, "-x", limit=limit)
        finally:
            self.write(path, sources.texts[path])
        return run.verdict

    async def pytest(self, files: Sequence[str], *options: str, limit: float) -> PytestRun:
        """Run test files; whatever way this ends, their processes are gone."""
        output = self._temporary / "output"
        output.unlink(missing_ok=True)
        # Not by `-p no:cacheprovider`: without its plugin --strict-config would refuse the setting.
        cache = ("-o", f"cache_dir={self._temporary / 'pytest'}")
        arguments = ["-q", "-m", "not gpu and not slow", "-rfE", *cache, *options, *files]
        started = time.monotonic()
        code = await self._forked({"arguments": arguments, "output": str(output)}, limit)
        return PytestRun(code, output.read_text(errors="replace"), time.monotonic() - started)

    async def close(self) -> None:
        """End the server."""
        if self._server is not None:
            _signal(self._server.pid, signal.SIGKILL)
            await self._server.wait()

    async def _forked(self, request: Mapping[str, Any], limit: float) -> int | None:
        """Have the server run pytest; returns its exit code, or None where the limit ended it."""
        if self._server is None:
            self._server = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.mutation.server"),
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(request).encode() + b"\n")
        process = _number(await stdout.readline())
        end = asyncio.create_task(stdout.readline())
        try:
            done, _ = await asyncio.wait([end], timeout=limit)
            return _number(end.result()) if done else None
        finally:
            if not end.done():
                _signal(process, signal.SIGINT)  # pytest tears down what its tests have started
                await asyncio.wait([end], timeout=_GRACE_S)
            _signal(process, signal.SIGKILL)
            await end

    def _check_imports(self) -> None:
        """Check that Python here imports the packages of the copy, and not those of the tree."""
        modules = ", ".join(PACKAGES)
        code = f"import {modules}; print(*(module.__file__ for module in ({modules})), sep='\\n')"
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=self.root, env=self._environment, capture_output=True, text=True
        )
        paths = result.stdout.split("\n")[: len(PACKAGES)]
        if result.returncode or not all(Path(path).is_relative_to(self.root) for path in paths):
            raise Refused(f"the copy in {self.root} is not what Python imports there: {paths} {result.stderr[-300:]}")


def _number(line: bytes) -> int:
    """What the server says; nothing once it has ended, which is nobody's verdict."""
    if not line:
        raise Refused("the process that runs pytest was ended from outside: run the same command again")
    return int(line)


def tracked_files() -> list[str]:
    """The files of the working tree that git tracks, or would: those that are new and not ignored too."""
    command = ("git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and (ROOT / name).is_file()})


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
