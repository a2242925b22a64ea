"""A run on two hosts: it reaches them, notices what dies on them, and leaves nothing on them however it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contrib.clusters.hosts.hosts import Hosts
from forge_env.core.errors import ServiceError, UserError
from forge_env.runtime.host_settings import HostSettings, find_workers

pytest.importorskip("monarch")

from cluster import Cluster, why_not_separate
from hosts_controller import SILENCE_S

from contrib.clusters.hosts.watch import _logs_of_this_user
from tests.helpers.waiting import is_alive, wait_until

HERE = Path(__file__).parent
NAME = os.uname().nodename


@pytest.fixture(params=["loopback", pytest.param("networks", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Two host programs that wait for runs."""
    if request.param == "networks" and (reason := why_not_separate()):
        pytest.skip(f"no network namespaces here: {reason}")
    folder = tmp_path / "machines"
    folder.mkdir()
    with Cluster(folder, separate=request.param == "networks") as opened:
        yield opened


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Cluster]:
    """Two host programs, each in a network of its own."""
    if reason := why_not_separate():
        pytest.skip(f"no network namespaces here: {reason}")
    with Cluster(tmp_path, separate=True) as opened:
        yield opened


Start = Callable[..., "Controller"]


class Controller:
    """A controller in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def told(self) -> dict[str, Any]:
        """The next thing that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the controller ended: {self.process.communicate()[1]}")
        return dict(json.loads(line))

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self) -> str:
        """Wait for its end; returns what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Start]:
    """Starts controllers on a cluster, or by themselves with hosts of the kind "processes"."""
    started: list[subprocess.Popen[str]] = []
    temp = tmp_path / "temporary files in a folder whose name is too long for sockets"
    temp.mkdir()
    alone = Cluster(temp, separate=False)

    def start(ending: str, cluster: Cluster | None = None) -> Controller:
        kind, workers = ("workers", cluster.workers) if cluster else ("processes", "")
        logs = tmp_path / f"logs{len(started)}"
        command = [sys.executable, str(HERE / "hosts_controller.py"), ending, str(logs), kind, workers]
        started.append((cluster or alone).start(command))
        return Controller(started[-1])

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_to(controller: Controller, key: str) -> list[dict[str, Any]]:
    """Everything that it says until a line with `key`."""
    found = [controller.told()]
    while key not in found[-1]:
        found.append(controller.told())
    return found


def check_no_processes(cluster: Cluster) -> None:
    wait_until(lambda: not cluster.processes(0) and not cluster.processes(1), "the processes of both hosts end")


def check_a_run(cluster: Cluster, controllers: Start, logs: Path) -> None:
    """Actors on both hosts answer, and nothing of the run stays on them."""
    controller = controllers("work", cluster)
    one, two, about, closed = read_to(controller, "closed")
    assert (one["name"], two["name"], closed) == ("worker0", "worker1", {"closed": True})
    assert about["addresses"] == [place.partition(":")[0] for place in cluster.workers.split()]
    assert controller.ends() == ""
    check_no_processes(cluster)
    assert list(cluster.folder.glob("forge_env_*")) == []
    assert {path.name for path in logs.iterdir()} == {"monarch.log", "worker0.log", "worker1.log"}


def check_a_killed_run(cluster: Cluster, controllers: Start) -> None:
    """Its processes end; files of it may stay."""
    killed = controllers("wait", cluster)
    read_to(killed, "ready")
    assert [len(cluster.processes(index)) for index in (0, 1)] == [2, 2]  # an actor, and the watch
    os.kill(killed.pid, signal.SIGKILL)
    check_no_processes(cluster)
    assert [host.poll() for host in cluster.hosts] == [None, None]


def check_deaths(cluster: Cluster, controllers: Start) -> None:
    """A death on another host is told; the end of the host is that of everything on it."""
    controller = controllers("lose", cluster)
    zero, one, two, _ = read_to(controller, "ready")
    os.kill(one["pid"], signal.SIGKILL)
    died = "the one process died of SIGKILL (signal 9)"
    assert controller.told() == {"said": f"{died}; the end of its log is in {one['log']}"}
    cluster.hosts[1].kill()
    gone = f"the program of the host {NAME} ended"
    assert controller.told() == {"said": f"the two process was lost: {gone}"}
    wait_until(lambda: not is_alive(two["pid"]), "nothing is left of a host that was killed")
    controller.go_on()
    assert controller.told() == {"refused": gone}  # it wants a GPU of that host
    assert controller.told() == {"four": 4, "places": [0]}  # this one does not
    assert controller.told() == {"stopped": "four"}
    assert zero["pid"] in cluster.processes(0) and len(cluster.processes(0)) == 2  # it, and the watch
    controller.go_on()
    assert controller.told() == {"closed": True}
    controller.ends()
    wait_until(lambda: not cluster.processes(0), "the watch ends")


def test_hosts_serve_one_run_after_another_and_what_dies_on_them_is_told(
    cluster: Cluster, controllers: Start, tmp_path: Path
) -> None:
    check_a_run(cluster, controllers, tmp_path / "logs0")
    check_a_killed_run(cluster, controllers)
    check_deaths(cluster, controllers)


@pytest.mark.slow  # torch is imported in two processes
def test_ranks_on_two_hosts_add_numbers_up(cluster: Cluster, controllers: Start) -> None:
    controller = controllers("team", cluster)
    answer = controller.told()
    assert answer == {"sums": [6.0], "places": [[0, "0", "2"], [1, "0", "2"]]}
    controller.ends()


@pytest.mark.slow  # torch is imported in three processes
def test_weights_go_from_one_host_to_the_other(cluster: Cluster, controllers: Start) -> None:
    controller = controllers("weights", cluster)
    told = read_to(controller, "closed")
    assert told[:-1] == [{"version": version, "same": True} for version in range(3)]
    controller.ends()


@pytest.mark.slow
def test_a_host_whose_cable_is_cut_is_given_up_and_ends_its_processes_itself(
    networks: Cluster, controllers: Start
) -> None:
    controller = controllers("wait", networks)
    read_to(controller, "ready")
    networks.cut(1)
    assert controller.told() == {
        "error": f"the worker1 process was lost: the host {NAME} did not answer within {SILENCE_S:g} s"
    }
    wait_until(lambda: not networks.processes(1), "the host ends what it cannot reach the controller for")
    assert controller.told() == {"closed": True}
    controller.ends()
    assert [host.poll() for host in networks.hosts] == [None, None]


def test_processes_as_hosts_come_and_go_with_the_run(controllers: Start) -> None:
    controller = controllers("work")
    *workers, about, _ = read_to(controller, "closed")
    assert [worker["name"] for worker in workers] == ["worker0", "worker1"]
    assert about["said"] == [f"2 hosts: 0 on {NAME}, 1 on {NAME}"]
    assert controller.ends() == ""
    assert not any(is_alive(worker["pid"]) for worker in workers)


def test_processes_as_hosts_end_with_a_killed_controller(controllers: Start) -> None:
    controller = controllers("wait")
    *workers, _ = read_to(controller, "ready")
    hosts = {int(Path(f"/proc/{worker['pid']}/stat").read_text().rpartition(")")[2].split()[1]) for worker in workers}
    assert len(hosts) == 2
    # A host is started with the address of its socket, which lies in a folder of the run's.
    commands = [Path(f"/proc/{host}/cmdline").read_text() for host in hosts]
    (sockets,) = {Path(command.partition("ipc://")[2].partition("/hosts_")[0]) for command in commands}
    assert sockets.is_dir()
    os.kill(controller.pid, signal.SIGKILL)
    everything = [*hosts, *(worker["pid"] for worker in workers)]
    wait_until(lambda: not any(map(is_alive, everything)), "the hosts and their processes end")
    wait_until(lambda: not sockets.exists(), "the watches remove what they left")


def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.socket() as bound:  # and nothing listens there
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        hosts = Hosts(HostSettings(kind="workers", workers=place), connect_seconds=0.1)
        with pytest.raises(UserError, match=f"^no host waits at {place} .*: start it there with `python -m "):
            asyncio.run(hosts.open(tmp_path))
    with pytest.raises(UserError, match=r"^the host nowhere\.invalid:22222 cannot be reached from here: "):
        Hosts(HostSettings(kind="workers", workers="nowhere.invalid")).transport()


def test_a_port_that_is_taken_is_told_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        command = [sys.executable, "-m", "contrib.clusters.host", "--address", "127.0.0.1", "--port", port]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=HERE.parents[2])
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: cannot listen at 127.0.0.1:{port} (Address already in use): ")


@pytest.mark.parametrize(
    "text, found",
    [("one", [("one", 22222)]), ("one, two:5", [("one", 22222), ("two", 5)]), ("tcp://a.b:7", [("a.b", 7)])],
)
def test_hosts_are_named_with_or_without_a_port(text: str, found: list[tuple[str, int]]) -> None:
    assert find_workers(HostSettings(kind="workers", workers=text)) == found


@pytest.mark.parametrize(
    "text, said", [("", "is empty"), ("one:x", "'one:x', which is not a host"), ("a b;c", "'b;c'")]
)
def test_what_is_not_a_host_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find_workers(HostSettings(kind="workers", workers=text))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_logs_are_not_written_to_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    logs = _logs_of_this_user()
    assert logs.stat().st_mode & 0o777 == 0o700 and _logs_of_this_user() == logs
    os.chown(logs, 65534, 65534)
    with pytest.raises(ServiceError, match="is another user's: remove it, or set TMPDIR"):
        _logs_of_this_user()
    logs.rmdir()
    (tmp_path / "elsewhere").mkdir()
    logs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServiceError, match="is another user's"):
        _logs_of_this_user()
