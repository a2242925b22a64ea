"""The choice of a run's weight store."""

from __future__ import annotations

from dataclasses import dataclass

from forge_env.core.errors import UserError, nearest
from forge_env.registry.contrib import rows
from forge_env.runtime.weights.one_host.cuda_ipc import CudaIpcStore
from forge_env.runtime.weights.one_host.shared_memory import SharedMemoryStore
from forge_env.runtime.weights.store import StoreRequest, WeightStore

_STORES: dict[str, type[WeightStore]] = {"cuda_ipc": CudaIpcStore, "shared_memory": SharedMemoryStore}


@dataclass(frozen=True, kw_only=True)
class WeightsConfig:
    """The options of the section `weights`."""

    store: str = "auto"
    """How the weights get from the trainer to the engine. "auto" is the fastest that the run's processes can use;
    "shared_memory" and "cuda_ipc" serve one host. docs/configuration.md names the others."""


def choose_store(choice: str, request: StoreRequest) -> tuple[WeightStore, str]:
    """Choose the weight store of a run; returns it, not open yet, and a sentence with the choice and its reason.

    Args:
        choice: the name of a store; "auto" chooses the fastest that fits, and shared memory if none does.
    """
    names = [*_STORES, *rows("stores")]  # the fastest first
    if choice not in ("auto", *names):
        hint = nearest(choice, ["auto", *names])
        raise UserError(f"--weights.store is {choice!r}, and there is no store of that name. {hint}")
    reasons = ((name, _store(name).reason(request)) for name in names)
    fastest, why = next(((name, why) for name, why in reasons if why), ("", ""))
    if choice == "auto":
        choice, why = fastest or "shared_memory", why or "no store that is here fits"
    elif refusal := _store(choice).refusal(request, f"take {fastest}" if fastest else ""):
        raise UserError(f"--weights.store is {choice}, {refusal}")
    else:
        why = "as --weights.store says"
    kind = _store(choice)
    return kind(), f"through {kind.title}: {why}"


def _store(name: str) -> type[WeightStore]:
    kind: type[WeightStore] = _STORES.get(name) or rows("stores")[name].load()
    return kind
