"""Actors on several processes that work together: the meeting point of their ranks, and calls to all of them at
once."""

from __future__ import annotations

import socket
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, overload

from forge_env.core.errors import ForgeError
from forge_env.runtime.calls.answers import within

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from forge_env.runtime.calls.endpoints import Endpoint


LOOPBACK = "127.0.0.1"


def serve_tcp_store(address: str) -> tuple[TCPStore, int]:
    """Serve a TCPStore of torch's at a free port of `address`; returns it, and its port.

    The port is bound before any process is told of it, so no other process can take it meanwhile.
    """
    from torch.distributed import TCPStore

    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port


A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
Answer: TypeAlias = Coroutine[Any, Any, R]


class RankRendezvous:
    """The meeting point of the ranks of a process group: a TCPStore in this process, at an address of this machine."""

    def __init__(self, world_size: int, per_host: int = 0, address: str = LOOPBACK) -> None:
        """
        Args:
            per_host: ranks of one host; 0 is all of them.
            address: this machine's address for the ranks; only this machine can reach the loopback address.
        """
        self._world_size = world_size
        self._per_host = per_host or world_size
        self._address = address
        self._store, self._port = serve_tcp_store(address)

    def environ(self, rank: int, interface: str = "lo") -> dict[str, str]:
        """Variables for torch.distributed in the process of a rank; gloo uses the network `interface` there."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % self._per_host),
            "WORLD_SIZE": str(self._world_size),
            "MASTER_ADDR": self._address,
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # tells torch that the TCPStore exists already
            "GLOO_SOCKET_IFNAME": interface,  # otherwise gloo takes the interface of the host name
        }


class AllRanks(Generic[A]):
    """An actor's handle that calls all of its ranks at once, for endpoints in which they wait for each other.

    The answer of a call is the first rank's; the other ranks answer None. An error of any rank is raised at once: the
    other ranks may never answer, because they wait for this one.

    Example::

        trainer = AllRanks(launcher.spawn("trainer", TrainerActor, procs=2, model=path, settings={}))
        await launcher.start("trainer")
        await trainer.deadline(60.0, "the trainer").call_one(TrainerActor.begin, learning_rate=1e-5)
    """

    def __init__(self, actor: Any, seconds: float | None = None, what: str = "") -> None:
        self._actor, self._seconds, self._what = actor, seconds, what

    def deadline(self, seconds: float, what: str) -> AllRanks[A]:
        """The same ranks with a deadline for a call.

        Args:
            seconds: until the answer; then the call raises a ServiceError.
        """
        return AllRanks(self._actor, seconds, what)

    def __getattr__(self, name: str) -> _Endpoint:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Endpoint(getattr(self._actor, name))

    @overload
    def call_one(self, endpoint: Endpoint[A, P, None], *args: P.args, **kwargs: P.kwargs) -> Answer[None]: ...
    @overload
    def call_one(self, endpoint: Endpoint[A, P, R | None], *args: P.args, **kwargs: P.kwargs) -> Answer[R]: ...
    def call_one(self, endpoint: Endpoint[A, P, Any], *args: P.args, **kwargs: P.kwargs) -> Answer[Any]:
        """Call an endpoint on all ranks; the message leaves before this returns.

        So calls reach every rank in the order in which they are made.
        """
        answer = _first_answer(getattr(self._actor, endpoint.name).stream(*args, **kwargs))
        return answer if self._seconds is None else within(self._seconds, answer, self._what)


class _Endpoint:
    """One endpoint, on all ranks, see `AllRanks.call_one`."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint

    def call_one(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return _first_answer(self._endpoint.stream(*args, **kwargs))

    call = call_one


async def _first_answer(answers: Iterator[Any]) -> Any:
    from monarch.actor import ActorError

    first = None
    try:
        for answer in answers:
            value = await answer
            first = value if value is not None else first
    except ActorError as error:
        if isinstance(error.exception, ForgeError):
            raise error.exception from None
        raise
    return first


def log_of_rank(path: Path, rank: int) -> Path:
    """The log file of a rank: `path` for the first, and trainer-1.log beside trainer.log for the second."""
    return path.with_stem(f"{path.stem}-{rank}") if rank else path
