"""The token that servers and clients of these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrib.serve.tests.served import TOKEN


@pytest.fixture(scope="package", autouse=True)
def token() -> Iterator[None]:
    """Set for these tests alone: programs that other tests start would read it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORGE_ENV_TOKEN", TOKEN)
        yield
