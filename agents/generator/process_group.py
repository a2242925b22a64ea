"""vLLM's torch.distributed process group, for an engine that computes in this process.

vLLM begins the group with its first engine, and never ends it. The next user of a group, a trainer for example, would
find vLLM's. So the last engine of the process ends it. A group from before the first engine is left alone: it belongs
to its maker.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any


class EngineGroup:
    """Counts the engines of this process. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = 0
        self._is_ours = False

    def join(self) -> None:
        """An engine is about to load."""
        with self._lock:
            if not self._engines:
                self._is_ours = not _is_up()
            self._engines += 1

    def leave(self) -> None:
        """An engine that has joined has ended, or failed to load; the last one ends the group if the first began it."""
        with self._lock:
            self._engines -= 1
            if not self._engines and self._is_ours and _is_up():
                from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

                destroy_model_parallel()
                destroy_distributed_environment()


def end_core_alone(client: Any) -> None:
    """Let vLLM's `InprocClient`, when it is garbage, end its core and no process group.

    By itself vLLM then ends the group that this process has at that moment, be it of another engine or of a trainer.
    """
    client._finalizer.detach()
    weakref.finalize(client, _end, client.engine_core)


def _end(core: Any) -> None:
    """What `EngineCore.shutdown` does, but for the process group."""
    core.structured_output_manager.clear_backend()
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()  # the core froze its objects


def _is_up() -> bool:
    """Whether this process has a group; torch is not imported to find out."""
    module = sys.modules.get("torch.distributed")
    return module is not None and bool(module.is_initialized())


group = EngineGroup()
