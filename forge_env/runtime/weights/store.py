"""What every weight store does: it carries the weights from the trainer to whoever generates from them."""

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

    A store is small and travels to the actors as an argument of their constructors; what it holds in a process is made
    there. A snapshot is whole or not there: its commit marker is written last. Once a version has been committed it
    never changes, and the newest `keep` of them stay. `take` makes room for its own: where one is kept, there is none
    from then on until the commit.

    The trainer's first rank publishes, in two halves, so that the next step can begin after the first one::

        taken = store.take(version, weights)   # in the thread that trains: it alone knows when nothing changes
        await store.commit(taken)              # now it can be fetched

    Whoever pulls uses the tensors inside of the context, and copies what it wants to keep::

        async with store.fetch(version) as state_dict:
            await engine.update_weights(version, state_dict)
    """

    keep: ClassVar[int] = 2
    """Versions: the newest, and the one that a slow replica may still be reading."""
    needs_process: ClassVar[bool] = False
    """Whether `open` has to be given a process to live in."""
    actors_only: ClassVar[bool] = False
    """Whether only an actor's process can fetch, and no other one that was given the store."""

    def prepare(self, address: str) -> None:  # noqa: B027 some have nothing to do
        """Make what has to be there before the store travels. Called by the controller, before it spawns the actors.

        Args:
            address: of this machine, as the processes of the run reach it.
        """

    @abstractmethod
    async def open(self, processes: Any = None) -> None:
        """Make the store ready. Called once in a run, by the controller.

        Args:
            processes: a Monarch process mesh, where `needs_process` says so.
        """

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind. Called by the controller, however the run ends, after its processes have ended."""

    def attach(self) -> None:  # noqa: B027 some have nothing to do
        """Get an actor's process ready, in its `on_start`."""

    @abstractmethod
    def take(self, version: int, weights: WeightStream) -> Any:
        """Copy the weights as they are now; returns what `commit` wants. Blocks for as long as the copying takes.

        Each tensor is copied to its place in the snapshot, which is all the memory that is needed. If the stream ends
        with an error, that memory is free again.

        Raises:
            InvariantError: when there is such a version already; when the tensors are not those of the layout.
            ServiceError: when there is no room.
        """

    @abstractmethod
    async def commit(self, taken: Any) -> None:
        """Make what was taken a version that can be fetched.

        Raises:
            InvariantError: when there is such a version already.
        """

    async def publish(self, version: int, state_dict: Mapping[str, Tensor]) -> None:
        """`take` and `commit` in one, for who does nothing else meanwhile."""
        await self.commit(self.take(version, WeightStream.of(state_dict)))

    @abstractmethod
    def fetch(self, version: int) -> AbstractAsyncContextManager[dict[str, Tensor]]:
        """Give a snapshot's tensors, under their names. They are there inside of the context only, and for reading.

        Raises:
            ServiceError: when there is no such version, or no longer.
        """


def published_already(version: int) -> InvariantError:
    """The error of who publishes a version for the second time."""
    return InvariantError(f"version {version} of the weights was published already; a version never changes")


def no_version(version: int, present: Iterable[int]) -> str:
    """The message to who asks for a version that is not there, or no longer."""
    return f"the weight store has no version {version}; it has {', '.join(map(str, sorted(present))) or 'none'}"
