"""What the tests of an engine in the test's own process leave for the tests after them: nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """End the process group that vLLM keeps after its engines: a trainer of this process would take it for its own."""
    yield
    if "vllm.distributed.parallel_state" in sys.modules:
        from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

        destroy_model_parallel()
        destroy_distributed_environment()
