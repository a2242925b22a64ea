"""Thousands of snippets, a tenth of them hostile, with the owner killed half way: nothing is left, nothing grows."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from forge_env.core.sandbox import ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox
from tests.helpers.processes import control_groups, descendants
from tests.helpers.sandboxes import opened, owner_of, said_by

COUNT = int(os.environ.get("FORGE_ENV_SOAK", "10000"))
GROWTH_BYTES = 20 * 2**20
CLIENTS = 4
LIMITS = Limits(wall_s=20.0, cpu_s=10.0, processes=16, memory_bytes=96 * 2**20)
BRIEF = Limits(wall_s=0.3, cpu_s=10.0, processes=16, memory_bytes=96 * 2**20)

HOSTILE = [
    ("import os\nwhile True: os.fork()", LIMITS),
    ("x = []\nwhile True: x.append(' ' * 10**6)", LIMITS),
    ("import mmap\nx = mmap.mmap(-1, 1 << 28)\nfor i in range(0, len(x), 4096): x[i] = 1", LIMITS),
    ("while True: print('x' * 10**5)", LIMITS),
    ("import ctypes; ctypes.string_at(0)", LIMITS),
    ("import os; os.kill(os.getppid(), 9); os.kill(-1, 9)", LIMITS),
    ("import os, time\nif not os.fork():\n    os.setsid(); time.sleep(600)", LIMITS),
    ("import os\nfor fd in range(3, 99):\n    try: os.write(fd, b'x' * 99)\n    except OSError: pass", LIMITS),
    ("import signal, time\nsignal.signal(15, signal.SIG_IGN)\nwhile True: time.sleep(9)", BRIEF),
    ("10 ** 10 ** 8", BRIEF),
]

OWNER = """
import asyncio, sys
from sandboxes import open_sandbox
from tests.sandboxes.test_soak import soak, resident
async def main():
    async with open_sandbox("namespace") as sandbox:
        await soak(sandbox, 100, seed=0)
        before = resident()
        await soak(sandbox, int(sys.argv[1]), seed=1)
        print(resident() - before, flush=True)
        await soak(sandbox, 10**9, seed=2)
asyncio.run(main())
"""


async def soak(sandbox: Sandbox, count: int, *, seed: int) -> None:
    """Run `count` snippets from several clients at once, and check each."""
    rng = random.Random(seed)
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            if rng.random() < 0.1:
                code, limits = rng.choice(HOSTILE)
                result = await sandbox.run(ExecRequest(code=code, limits=limits))
                assert result.status is not ExecStatus.SANDBOX_ERROR, (code, result)
            else:
                result = await sandbox.run(ExecRequest(code=f"print({number} * 2)", limits=LIMITS))
                assert (result.status, result.stdout) == (ExecStatus.OK, f"{number * 2}\n"), result

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mounts() -> int:
    return len(Path("/proc/self/mounts").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_soak() -> None:
    async with opened() as sandbox:
        await soak(sandbox, 100, seed=3)
    before = control_groups(os.getpid()), mounts(), descendants(os.getpid()), len(os.listdir("/proc/self/fd"))

    with owner_of(OWNER, str(COUNT // 2)) as owner:
        output = said_by(owner)
        assert output, "the owner failed"
        assert int(output) < GROWTH_BYTES
        family = descendants(owner.pid)
        assert family
    deadline = time.monotonic() + 20
    while family & set(map(int, filter(str.isdigit, os.listdir("/proc")))):
        assert time.monotonic() < deadline, "processes outlive their owner"
        await asyncio.sleep(0.05)

    async with open_sandbox("namespace") as sandbox:  # whose start removes what the dead one left
        assert control_groups(owner.pid) == []
        resident_before = resident()
        await soak(sandbox, COUNT // 2, seed=4)
        assert resident() - resident_before < GROWTH_BYTES
    assert (control_groups(os.getpid()), mounts(), descendants(os.getpid()), len(os.listdir("/proc/self/fd"))) == before
