"""Two machines for the tests of several hosts: programs on this machine, each in a network of its own where that works.

The networks are network namespaces, joined by a bridge in a third one, where the controller runs. Each is held open by
a process that ends with this one, and goes when its last process has ended; the machine's own network is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.ports import free_ports

ROOT = Path(__file__).parents[3]
HELPERS = (ROOT, Path(__file__).parent, ROOT / "tests" / "forge_env" / "runtime")
"""The folders that the programs import from."""


class Cluster:
    """Two host programs; `separate` gives each of them, and the controller, a network of its own."""

    def __init__(self, folder: Path, *, separate: bool) -> None:
        self.folder = folder
        self.separate = separate
        self.hosts: list[subprocess.Popen[str]] = []
        self._networks: list[subprocess.Popen[str]] = []
        self._ports = [] if separate else free_ports(2)

    def __enter__(self) -> Cluster:
        try:
            if self.separate:
                self._networks = [_network() for _ in range(3)]
                self._join()
            for index in range(2):
                host, port = self._place(index)
                command = [sys.executable, "-m", "contrib.clusters.host", "--address", host, "--port", str(port)]
                self.hosts.append(self.start(command, network=index + 1))
            for process, place in zip(self.hosts, self.workers.split(), strict=True):
                assert process.stdout is not None
                assert f"waiting for runs at {place}" in process.stdout.readline()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for process in [*self.hosts, *self._networks]:
            process.kill()
            process.communicate()

    @property
    def workers(self) -> str:
        """The hosts, as the setting has them."""
        return " ".join(f"{host}:{port}" for host, port in map(self._place, range(2)))

    def start(self, command: list[str], *, network: int = 0) -> subprocess.Popen[str]:
        """Start a program; `network` 0 is the controller's, 1 and 2 are the hosts'."""
        inside = ["nsenter", "--net", f"--target={self._networks[network].pid}"] if self.separate else []
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, HELPERS)), "TMPDIR": str(self.folder)}
        return subprocess.Popen(
            [*inside, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=self.folder,
        )

    def cut(self, index: int) -> None:
        """Take the cable out of a host."""
        self._ip(0, f"link set veth{index} down")

    def processes(self, index: int) -> list[int]:
        """The processes that a host has started and that have not ended."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == self.hosts[index].pid and state != "Z":
                found.append(int(stat.parent.name))
        return found

    def _place(self, index: int) -> tuple[str, int]:
        return (f"10.77.0.{index + 11}", 22222) if self.separate else ("127.0.0.1", self._ports[index])

    def _join(self) -> None:
        self._ip(0, "link add bridge type bridge", "addr add 10.77.0.1/24 dev bridge", "link set bridge up")
        for index in range(2):
            inner = self._networks[index + 1].pid
            self._ip(0, f"link add veth{index} type veth peer name eth0 netns {inner}")
            self._ip(0, f"link set veth{index} master bridge up")
            self._ip(index + 1, "link set lo up", f"addr add 10.77.0.{index + 11}/24 dev eth0", "link set eth0 up")
        self._ip(0, "link set lo up")

    def _ip(self, network: int, *commands: str) -> None:
        target = f"--target={self._networks[network].pid}"
        for command in commands:
            subprocess.run(["nsenter", "--net", target, "ip", *command.split()], check=True, timeout=20)


def why_not_separate() -> str:
    """Why this machine cannot have several networks; "" when it can."""
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"there is no program {program}"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "try", "type", "bridge"], capture_output=True)
    return tried.stderr.decode().strip()


def _network() -> subprocess.Popen[str]:
    """A process in a new network; it ends when its standard input does, at the latest with this process."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo inside; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "inside\n"
    return holder
