"""The weight store: it carries the weights from the trainer to the engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from forge_env.core.errors import InvariantError
from forge_env.runtime.weights.tensor_layout import WeightStream

if TYPE_CHECKING:
    from torch import Tensor


MOST_ON_GPU = 0.2  # largest share of a GPU for the version that the trainer's first rank keeps beside its own weights
USUAL_GPU = 80 * 2**30  # bytes, if the size is not known


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """What a run asks of its weight store."""

    size: int
    """Bytes of one snapshot."""
    all_on_gpus: bool
    """Whether the trainer and all services that fetch the weights are on GPUs."""
    hosts: int = 1
    """The number of hosts of the processes."""
    shared_gpus: bool = False
    """Whether two of these services share a GPU."""
    card: float | None = None
    """Bytes of each GPU; None if they are not known."""

    @property
    def fits_gpus(self) -> bool:
        """Whether a snapshot may go from GPU to GPU."""
        return self.all_on_gpus and self.size <= MOST_ON_GPU * (self.card or USUAL_GPU)

    @property
    def too_much(self) -> str:
        """Why it may not, if all services are on GPUs."""
        return f"a snapshot of {in_words(self.size)} is much for a GPU"

    def lacks_gpus(self, instead: str) -> str:
        """The `refusal` of a store that goes from GPU to GPU."""
        problem = "and not every service that holds the weights has GPUs"
        remedy = "give trainer, generator and ref_model with_gpus"
        return "" if self.all_on_gpus else refusal_text(problem, instead, remedy)


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

    title: ClassVar[str]
    """Its name for a person."""
    keep: ClassVar[int] = 2
    """Versions: the newest, and the one that a slow replica may still be reading."""
    needs_process: ClassVar[bool] = False
    """Whether `open` needs a process to live in."""
    actors_only: ClassVar[bool] = False
    """Whether only an actor's process can fetch, and no other process with the store."""
    on_gpu: ClassVar[bool] = False
    """Whether the versions are in the memory of the trainer's first GPU."""
    received: ClassVar[bool] = False
    """Whether a version that is fetched also takes memory of the GPU that fetches it."""

    @classmethod
    @abstractmethod
    def reason(cls, request: StoreRequest) -> str:
        """Why `--weights.store auto` takes this store, for the end of a sentence; "" if it does not."""

    @classmethod
    def refusal(cls, request: StoreRequest, instead: str) -> str:
        """Why this store cannot serve a run, and the remedies, for the end of a sentence; "" if it can.

        Args:
            instead: the remedy of another store, as "take NAME"; "" if no store that is here can serve the run.
        """
        return ""

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
    async def commit(self, copy: Any) -> None:
        """Make the copy of `take` a version that can be fetched."""

    async def publish(self, version: int, state_dict: Mapping[str, Tensor]) -> None:
        """`take` and `commit` in one, for a caller that does nothing else meanwhile."""
        await self.commit(self.take(version, WeightStream.of(state_dict)))

    @abstractmethod
    def fetch(self, version: int) -> AbstractAsyncContextManager[dict[str, Tensor]]:
        """Give a snapshot's tensors, under their names. They exist inside of the context only, and are for reading."""


def refusal_text(problem: str, *remedies: str) -> str:
    """The text of a `refusal`; remedies that are "" are left out."""
    return ": ".join(filter(None, [problem, ", or ".join(filter(None, remedies))]))


def in_words(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB" if size >= 2**28 else f"{size / 2**20:,.1f} MiB"


def published_already(version: int) -> InvariantError:
    return InvariantError(f"version {version} of the weights was published already; a version never changes")


def no_version(version: int, present: Iterable[int]) -> str:
    return f"the weight store has no version {version}; it has {', '.join(map(str, sorted(present))) or 'none'}"
