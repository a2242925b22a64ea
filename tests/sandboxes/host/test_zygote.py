"""The zygote and the file descriptors of its orders: too few, too many, and those for which it has no number left."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import ExecRequest, ExecStatus, Limits
from sandboxes.host.execution import Execution
from sandboxes.host.zygote import ExitReport, Zygote, encode, guest_limits
from tests.helpers.processes import descendants
from tests.helpers.waiting import until

if sys.platform != "linux":
    pytest.skip("the zygote needs Linux", allow_module_level=True)

LIMITS = Limits()


@pytest_asyncio.fixture
async def zygote() -> AsyncIterator[Zygote]:
    try:
        started = await Zygote.start(preimport=())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield started
    await started.close()


async def end_with(zygote: Zygote, descriptors: int, **fields: int) -> ExitReport:
    """How a run ends whose order has this number of descriptors."""
    with open(os.devnull, "rb") as null:
        order = {"slot": 0, "limits": guest_limits(LIMITS), **fields}
        return await zygote.submit(order, [null.fileno()] * descriptors)[1]


async def works(zygote: Zygote) -> bool:
    request = ExecRequest(code="print('on')")
    with Execution("namespace", zygote, LIMITS, None) as execution:
        result = await execution.run(request, encode(request), slot=0)
    return (result.status, result.stdout) == (ExecStatus.OK, "on\n")


def open_in(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize(
    ("descriptors", "fields", "reason"),
    [
        (0, {}, "its message lacks descriptors"),
        (3, {}, "its message lacks descriptors"),
        (5, {"groups": 2}, "its message lacks descriptors"),
        (9, {}, "Too many open files"),
        (200, {}, "Too many open files"),
    ],
)
async def test_a_wrong_number_of_descriptors_fails_that_run_alone(
    zygote: Zygote, descriptors: int, fields: dict[str, int], reason: str
) -> None:
    assert await works(zygote)
    [inner] = descendants(zygote.pid)
    before = open_in(inner)
    end = await end_with(zygote, descriptors, **fields)
    assert end.failure == f"the zygote could not start it: {reason}"
    await until(lambda: open_in(inner) == before, "the descriptors of the order are closed")
    assert zygote.alive and descendants(zygote.pid) == {inner}
    assert await works(zygote)


async def test_a_zygote_that_has_no_number_for_a_descriptor_fails_the_run(zygote: Zygote) -> None:
    assert await works(zygote)
    [inner] = descendants(zygote.pid)
    before, usual = open_in(inner), resource.prlimit(inner, resource.RLIMIT_NOFILE)
    for room in range(4):
        resource.prlimit(inner, resource.RLIMIT_NOFILE, (before + room, usual[1]))
        assert "Too many open files" in (await end_with(zygote, 4)).failure, room
        await until(lambda: open_in(inner) == before, "the descriptors of the order are closed")
    resource.prlimit(inner, resource.RLIMIT_NOFILE, usual)
    assert await works(zygote)
