"""The hosts of a run: machines on which its processes run, and the watch on each of them."""

from forge_env.runtime.hosts.hosts import Hosts
from forge_env.runtime.hosts.settings import HostSettings, find_workers

__all__ = ["HostSettings", "Hosts", "find_workers"]
