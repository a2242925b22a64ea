"""A namespace sandbox for all tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import Sandbox
from sandboxes import open_sandbox
from sandboxes.host.namespace import NamespaceSandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[NamespaceSandbox]:
    try:
        async with open_sandbox("namespace") as opened:
            assert isinstance(opened, NamespaceSandbox)
            yield opened
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(shared: NamespaceSandbox) -> AsyncIterator[Sandbox]:
    """The sandbox of all tests; slots that a test has used up are replaced before the next test counts processes."""
    yield shared
    await shared.warm_up()
