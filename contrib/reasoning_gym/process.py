"""The helper process in which reasoning-gym runs."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from contrib.reasoning_gym import worker as library
from envs.processes.helper import HelperProcess
from forge_env.core.errors import UserError


def require_reasoning_gym() -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("reasoning-gym is not installed: pip install 'forge-env[reasoning-gym]'")


class Worker(HelperProcess):
    def __init__(self) -> None:
        # some datasets depend on the order of sets
        super().__init__(library.__file__, name="the reasoning-gym process", environment={"PYTHONHASHSEED": "0"})

    def check_installed(self) -> None:
        require_reasoning_gym()

    def subject(self, request: Mapping[str, object]) -> str:
        return f"the reasoning-gym dataset {request.get('dataset', '')}"


@asynccontextmanager
async def open_worker() -> AsyncIterator[Worker]:
    """Give the helper process to an environment; it runs on afterwards, because it is slow to start."""
    yield worker


worker = Worker()
worker.end_with_owner()
