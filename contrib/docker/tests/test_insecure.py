"""The subprocess backend: it opens only when it is allowed, says what it is, and keeps the contract."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import Call, ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox

if sys.platform != "linux":
    pytest.skip("it needs Linux", allow_module_level=True)


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with open_sandbox("subprocess", allow_insecure=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder for temporary files in which no other test, in another process, has any."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def left() -> list[Path]:
    return [*Path(tempfile.gettempdir()).glob("forge-env-insecure-*")]


async def test_refuses_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORGE_ENV_ALLOW_INSECURE_SANDBOX", raising=False)
    for settings in ({}, {"allow_insecure": False}):
        with pytest.raises(UserError, match="isolates nothing"):
            async with open_sandbox("subprocess", **settings):
                pass
    monkeypatch.setenv("FORGE_ENV_ALLOW_INSECURE_SANDBOX", "1")
    async with open_sandbox("subprocess") as sandbox:
        assert not sandbox.capabilities.seccomp and sandbox.capabilities.process_limit == "none"


async def test_every_result_says_insecure(sandbox: Sandbox) -> None:
    results = [await sandbox.run("print(1)"), await sandbox.run("1 / 0")]
    session = await sandbox.open_session()
    results += [await session.run("x = 1"), await session.run("import os; os._exit(3)")]
    await session.close()
    assert {result.backend for result in results} == {"subprocess (insecure)"}
    assert [result.status.value for result in results] == ["ok", "nonzero", "ok", "nonzero"]


async def test_limits_and_calls(sandbox: Sandbox) -> None:
    async def status(code: str, **limits: float) -> ExecStatus:
        return (await sandbox.run(ExecRequest(code=code, limits=Limits(**limits)))).status  # type: ignore[arg-type]

    assert await status("import time; time.sleep(60)", wall_s=0.5) is ExecStatus.TIMEOUT
    assert await status("x = bytearray(1 << 30)", memory_bytes=2**28) is ExecStatus.MEMORY
    assert await status("while True: print('x' * 9999)", output_bytes=100) is ExecStatus.OUTPUT_LIMIT
    result = await sandbox.run(ExecRequest(code="def f(x): return [x]", call=Call(function="f", args=[1])))
    assert json.loads(result.value or "") == [1]


async def test_sessions_keep_state_and_files(sandbox: Sandbox) -> None:
    session = await sandbox.open_session(setup="t = 7", echo=True)
    await session.put("a/b", b"data")
    assert (await session.run("x = t")).status is ExecStatus.OK
    assert (await session.run("x, open('a/b').read()")).stdout == "(7, 'data')\n"
    assert await session.get("a/b") == b"data"
    await session.reset()
    assert (await session.run("import os; os.listdir(), t")).stdout == "([], 7)\n"
    await session.close()
    assert left() == []


async def test_nothing_is_left() -> None:
    before = os.listdir("/proc/self/fd")
    async with open_sandbox("subprocess", allow_insecure=True) as sandbox:
        busy = asyncio.create_task(
            sandbox.run(ExecRequest(code="while True: pass", limits=Limits(wall_s=60, cpu_s=60)))
        )
        await sandbox.run("import subprocess; subprocess.Popen(['sleep', '600'])")
        session = await sandbox.open_session()
    (ended,) = await asyncio.gather(busy, return_exceptions=True)
    assert isinstance(ended, SandboxError) or ended.status is ExecStatus.SANDBOX_ERROR  # it may not have started
    with pytest.raises(SandboxError):
        await session.run("1")
    assert left() == [] and len(os.listdir("/proc/self/fd")) <= len(before)
