"""Makes torchstore 0.1.2 run on torchmonarch 0.7.0. Drop this file when a torchstore release does it itself.

Torchstore 0.1.2 mixes sync and async endpoints in its actors, which this Monarch refuses. Its sync endpoints never
wait, so they are turned into async ones before the classes are used for the first time, in every process. It also reads
TORCHSTORE_RDMA_ENABLED, and later versions read TORCHSTORE_USE_RDMA: here it gets the value of TORCHSTORE_USE_RDMA.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import os
from collections.abc import Callable
from typing import Any

_KNOWN = "0.1.2"
_done = False


def import_torchstore() -> Any:
    """Import torchstore, and mend the version that needs it."""
    global _done
    pass_rdma_setting()
    import torchstore
    from torchstore.controller import Controller
    from torchstore.storage_volume import StorageVolume

    if not _done and importlib.metadata.version("torchstore") == _KNOWN:
        for actor_class in (Controller, StorageVolume):
            _make_endpoints_async(actor_class)
        _done = True
    return torchstore


def pass_rdma_setting() -> None:
    """Copy the value of TORCHSTORE_USE_RDMA to the variable that torchstore reads."""
    use = os.environ.get("TORCHSTORE_USE_RDMA", "").lower()
    if use:
        os.environ["TORCHSTORE_RDMA_ENABLED"] = "0" if use in ("0", "false", "no", "off") else "1"


def _make_endpoints_async(actor_class: type) -> None:
    from monarch._src.actor.endpoint import EndpointProperty
    from monarch.actor import endpoint

    for name, value in list(vars(actor_class).items()):
        if isinstance(value, EndpointProperty) and not inspect.iscoroutinefunction(value._method):
            setattr(actor_class, name, endpoint(_as_coroutine(value._method)))


def _as_coroutine(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call
