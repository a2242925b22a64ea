"""What the episodes of an environment of verifiers share: the gateway and the worker process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from contrib.external.gateway import open_gateway
from contrib.external.scoring import Scorer
from contrib.external.setup import Setup
from contrib.verifiers.interpreter import Settings, make_settings
from contrib.verifiers.process import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiersSetup(Setup):
    """What an episode needs beside its task."""

    worker: Worker

    def enforced(self) -> dict[str, Any]:
        """Return what confines the environments: nothing."""
        return {"missing": ("environments of verifiers are trusted: their code runs as you do",)}


def target_of(id_: str) -> str:
    """Return the target of the `open_setup` of one environment, which every process can load."""
    return f"{__name__}:open_{id_.encode().hex()}"


def __getattr__(name: str) -> Callable[..., AbstractAsyncContextManager[VerifiersSetup]]:
    try:
        id_ = bytes.fromhex(name.removeprefix("open_")).decode()
    except ValueError:
        raise AttributeError(f"module {__name__} has no attribute {name}") from None

    def open_setup(
        python: str = "", config: str = "", harness: str = "", runtime: str = ""
    ) -> AbstractAsyncContextManager[VerifiersSetup]:
        return _open(make_settings(id_, python=python, config=config, harness=harness, runtime=runtime))

    open_setup.__doc__ = _DOC
    return open_setup


_DOC = """Open what the episodes share, and start the worker.

Args:
    python: the interpreter that has verifiers and the environment; this one by default.
    config: fields of the environment's configuration, a JSON object: {"taskset": {...}, "agent": {...}}.
    harness: what plays the environment for the model; by default the environment's own, or a plain conversation with
        the environment's tools.
    runtime: where a harness runs, "subprocess" or "docker" for example; "subprocess" by default, which a harness that
        lets the model run commands has to be given by name.

Raises:
    UserError: when there is no such interpreter or environment, or the config is no JSON object.
    ServiceError: when the worker does not start.
"""


@asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[VerifiersSetup]:
    async with open_gateway() as gateway:
        worker = Worker(settings)
        try:
            await worker.start()
            yield VerifiersSetup(gateway=gateway, scorer=Scorer(), worker=worker)
        finally:
            await worker.close()
