"""HostInfo: what a host tells the controller of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """What the controller has to know of a host."""

    name: str
    watch_pid: int
    """Process id, on that host, of its watch."""
    temp: str
    """Folder for the temporary files of the run's processes; the watch removes it."""
    logs: str
    """Folder for their logs: the run's own where the host sees it, else one on the host, which stays."""
    address: str
    """Its address on the way to the controller."""
    interface: str
    """The network interface of that address."""
