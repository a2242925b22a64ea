"""The weight store: it carries the weights from the trainer to the engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from forge_env.core.errors import InvariantError
from forge_env.runtime.weights.weight_stream import WeightStream

if TYPE_CHECKING:
    from torch import Tensor


class WeightStore(ABC):
    """Weights as immutable, versioned snapshots.

    A store is small and travels to the actors as an argument of their constructors; its resources in a process are made
    there. A snapshot is complete or not there: its commit marker is written last. After its commit a version never
    changes, and the newest `keep` versions stay. `take` makes room for its own: if `keep` is 1, there is no version
    from then on until the commit.

    The trainer's first rank publishes, in two halves, so that the next step can begin after the first one::

        taken = store.take(version, weights)   # in the thread that trains: only it knows when nothing changes
        await store.commit(taken)              # now it can be fetched

    A puller uses the tensors inside of the context, and copies what it wants to keep::

        async with store.fetch(version) as state_dict:
            await engine.update_weights(version, state_dict)
    """

    keep: ClassVar[int] = 2
    """Versions: the newest, and the one that a slow replica may still be reading."""
    needs_process: ClassVar[bool] = False
    """Whether `open` needs a process to live in."""
    actors_only: ClassVar[bool] = False
    """Whether only an actor's process can fetch, and no other process with the store."""

    def prepare(self, address: str) -> None:  # noqa: B027 some have nothing to do
        """Make what must exist before the store travels. Called by the controller, before it spawns the actors.

        Args:
            address: the address of this machine for the processes of the run.
        """

    @abstractmethod
    async def open(self, processes: Any = None) -> None:
        """Make the store ready. Called once in a run, by the controller.

        Args:
            processes: a Monarch process mesh, if `needs_process` is true.
        """

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind. Called by the controller, however the run ends, after its processes have ended."""

    def attach(self) -> None:  # noqa: B027 some have nothing to do
        """Get an actor's process ready, in its `on_start`."""

    @abstractmethod
    def take(self, version: int, weights: WeightStream) -> Any:
        """Copy the present weights; returns the argument of `commit`. Blocks during the copying.

        Each tensor is copied to its place in the snapshot, so no other memory is needed. If the stream ends with an
        error, this memory is free again.
        """

    @abstractmethod
    async def commit(self, taken: Any) -> None:
        """Make the copy of `take` a version that can be fetched."""

    async def publish(self, version: int, state_dict: Mapping[str, Tensor]) -> None:
        """`take` and `commit` in one, for a caller that does nothing else meanwhile."""
        await self.commit(self.take(version, WeightStream.of(state_dict)))

    @abstractmethod
    def fetch(self, version: int) -> AbstractAsyncContextManager[dict[str, Tensor]]:
        """Give a snapshot's tensors, under their names. They exist inside of the context only, and are for reading."""


def published_already(version: int) -> InvariantError:
    """The error for publishing a version a second time."""
    return InvariantError(f"version {version} of the weights was published already; a version never changes")


def no_version(version: int, present: Iterable[int]) -> str:
    """The message for a version that is not there, or no longer."""
    return f"the weight store has no version {version}; it has {', '.join(map(str, sorted(present))) or 'none'}"
