"""Workers that read text of models with libraries of others: what they are denied, and that it is said."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.math.verifier import Verifier
from sandboxes.guest.seccomp import seccomp_filter, supported_machines

if sys.platform != "linux" or platform.machine() not in supported_machines():
    pytest.skip("there is a filter for Linux only", allow_module_level=True)

NOT_ENFORCED = "it may read what its user may read, as its libraries do, and sees the processes of the machine"
GUEST = Path(__file__).parents[3] / "sandboxes" / "guest"
FACTS = ("seccomp", "capabilities_dropped", "host_watch_denied", "writing_denied", "network_denied", "programs_denied")

# What a scorer could be made to do by text that it evaluates. Names what got through; `f` is told where it may write.
ATTACK = """
import ctypes, fcntl, json, os, resource, signal, socket, subprocess, sys
confine, folder = int(sys.argv[1]), sys.argv[2]
if confine:
    sys.path.insert(0, sys.argv[3])
    import guest_worker
    guest_worker.confine([os.__file__])
libc = ctypes.CDLL(None, use_errno=True)
path = os.path.join(folder, "kept")

def inotify():
    fd = libc.inotify_init1(0)
    return fd >= 0 and libc.inotify_add_watch(fd, folder.encode(), 0x20) >= 0

def write(flags):
    os.write(os.open(path, flags), b"forged")

attempts = {
    "inotify": inotify,
    "dnotify": lambda: fcntl.fcntl(os.open(folder, os.O_RDONLY), 1026, 1),
    "fanotify": lambda: libc.fanotify_init(0x200, 0) >= 0,
    "overwrite": lambda: write(os.O_WRONLY | os.O_TRUNC),
    "append": lambda: write(os.O_RDWR | os.O_APPEND),
    "create": lambda: os.close(os.open(os.path.join(folder, "new"), os.O_RDONLY | os.O_CREAT)),
    "rename": lambda: os.rename(path, path + "2"),
    "mode": lambda: os.fchmod(os.open(path if os.path.exists(path) else path + "2", os.O_RDONLY), 0o777),
    "remove": lambda: os.remove(path if os.path.exists(path) else path + "2"),
    "folder": lambda: os.mkdir(os.path.join(folder, "made")),
    "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "program": lambda: os.spawnv(os.P_WAIT, "/bin/true", ["true"]) == 0,
    "signal": lambda: os.kill(os.getppid(), 0),
    "core": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "capabilities": lambda: "CapEff:\\t0000000000000000" not in open("/proc/self/status").read(),
}

def tried():
    got = []
    for name, attempt in attempts.items():
        try:
            if attempt() is not False: got.append(name)
        except (OSError, ValueError): pass
    return got

read, write_end = os.pipe()
if not os.fork():
    try:
        os.write(write_end, json.dumps(tried()).encode())
    finally:
        os._exit(0)
os.close(write_end)
os.wait()
print(os.read(read, 65536).decode(), flush=True)
"""


def got_through(folder: Path, *, confined: bool) -> set[str]:
    (folder / "kept").write_text("kept")
    command = [sys.executable, "-c", ATTACK, str(int(confined)), str(folder), str(GUEST)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_nothing_gets_through_in_a_confined_worker_and_its_forks(tmp_path: Path) -> None:
    assert got_through(tmp_path, confined=True) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept").read_text() == "kept"


def test_all_of_it_gets_through_where_nothing_confines(tmp_path: Path) -> None:
    wanted = {"inotify", "dnotify", "fanotify", "overwrite", "append", "create", "rename", "mode", "remove", "folder"}
    assert wanted | {"socket", "program", "signal", "core"} <= got_through(tmp_path, confined=False)


def is_confined(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    return (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")


def are_all_denied(enforced: dict[str, Any]) -> bool:
    is_root = os.geteuid() == 0  # nobody else can empty the bounding set
    facts = [name for name in FACTS if is_root or name != "capabilities_dropped"]
    assert enforced["missing"][0] == NOT_ENFORCED and len(enforced["missing"]) == (1 if is_root else 2)
    return all(enforced[name] is True for name in facts) and {"core", "fsize", "rtprio"} <= set(enforced["limits"])


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="math-verify is not installed")
def test_the_math_grader_is_confined_and_says_so() -> None:
    verifier = Verifier()
    try:
        before = verifier.enforced()
        assert are_all_denied(before) and verifier.pid is None
        # the grammar and what sympy loads only when it needs it
        assert verifier.compare("\\int_0^1 x dx", "\\frac{1}{2}", 0.0)
        assert verifier.pid is not None and is_confined(verifier.pid) and verifier.enforced() == before
        assert not verifier.compare("\\sin(\\pi/6)", "\\frac{1}{3}", 0.0)
    finally:
        verifier.close()


def test_a_processor_without_a_filter_is_named(tmp_path: Path) -> None:
    code = (
        "import ctypes, json, sys; ctypes.CDLL(None).personality(8)\n"  # the kernel then speaks as one of 32 bits
        "sys.path.insert(0, sys.argv[1]); import guest_worker; print(json.dumps(guest_worker.confine([])))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(GUEST)], capture_output=True, text=True, check=True)
    enforced = json.loads(result.stdout)
    assert enforced["seccomp"] is False and enforced["network_denied"] is False
    assert enforced["missing"][0] == NOT_ENFORCED and "are not filtered" in enforced["missing"][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads files of others by a capability")
def test_root_keeps_what_it_needs_to_read_libraries_of_another_user(tmp_path: Path) -> None:
    library = tmp_path / "library.py"
    library.write_text("")
    library.chmod(0o600)
    os.chown(library, 65534, 65534)
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import guest_worker\n" + (
        "enforced = guest_worker.confine(sys.argv[2:]); open(sys.argv[2]).read(); print(json.dumps(enforced))"
    )
    command = [sys.executable, "-c", code, str(GUEST), str(library)]
    enforced = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert enforced["capabilities_dropped"] is False and "keeps its capabilities" in enforced["missing"][1]
    assert all(enforced[name] for name in FACTS if name != "capabilities_dropped")


@pytest.mark.parametrize("machine", supported_machines())
def test_the_filter_of_a_reader_refuses_more(machine: str) -> None:
    plain, reader = seccomp_filter(machine), seccomp_filter(machine, reads_only=True)
    assert len(plain) < len(reader) < 8 * 4096  # instructions that the kernel takes
