"""HostInfo: a host's facts for the controller."""

from __future__ import annotations

from dataclasses import dataclass


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
