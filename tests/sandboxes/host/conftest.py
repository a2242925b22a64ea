"""The namespace sandbox that all tests of a file use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from forge_env.core.sandbox import Sandbox
from sandboxes.host.namespace import NamespaceSandbox
from tests.helpers.sandboxes import opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[NamespaceSandbox]:
    async with opened() as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(shared: NamespaceSandbox) -> AsyncIterator[Sandbox]:
    """The sandbox of all tests; slots that a test has used up are replaced before the next test counts processes."""
    yield shared
    await shared.warm_up()
