"""Machines: what `Launcher` asks of the hosts of a run. A folder of contrib has them, in its table `hosts`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """Facts about a host that the controller needs."""

    name: str
    watch_pid: int
    """Process id of the host's watch, on that host."""
    temp: str
    """Folder for the temporary files of the run's processes; the watch removes it."""
    logs: str
    """The run's log folder if the host shares its disk; otherwise a local folder, which is kept."""
    address: str
    """Its address on the way to the controller."""
    interface: str
    """The network interface of that address."""


class Machines(Protocol):
    """The hosts of one run, by number; `Launcher` opens and closes them."""

    address: str
    """This process's address, as the hosts know it."""

    def transport(self) -> str:
        """The transport that Monarch needs before its first use: the way of its messages to this process."""

    async def open(self, log_dir: Path) -> None:
        """Connect to all hosts, and watch each."""

    def mesh(self, first: int, count: int = 1) -> Any:
        """Monarch's mesh of one host, without dimensions, or of several in a row, with the dimension "hosts"."""

    def info(self, index: int) -> HostInfo:
        """The controller's facts about a host."""

    def answer(self, indices: Iterable[int]) -> bool:
        """Whether none of these hosts was given up."""

    def on_loss(self, index: int) -> asyncio.Future[str]:
        """Done when a host was given up, with the reason."""

    def choose(self, first: int, count: int = 1, *, movable: bool = False) -> int:
        """The first host of an actor: `first`, or the next one if `first` was given up and the actor is `movable`."""

    def environ(self, index: int) -> dict[str, str]:
        """Environment variables of the run's processes on a host."""

    async def watch(self, index: int, pid: int, on_death: Callable[..., None]) -> None:
        """Call `on_death` once when a process ends: with how it ended, and whether it has a log that can be read."""

    async def kill(self, index: int, pid: int) -> None:
        """End a process. If its host does not answer, the process ends with the host's lease."""

    def summary(self) -> list[str]:
        """Sentences for a person: the hosts, and the places of logs outside of the run's folder."""

    async def end_processes(self) -> None:
        """End every process of the run on every host except the watches, and remove what they left."""

    async def close(self) -> None:
        """End the watches. Hosts that were not started for this run go on waiting for the next one."""
