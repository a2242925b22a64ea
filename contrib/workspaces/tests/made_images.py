"""Images for tests of workspaces, made of programs of this machine: no registry and no package is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from contrib.workspaces.contract import UnpackedImage

PROGRAMS = (
    *("sh", "bash", "cat", "ls", "sleep", "touch", "mkdir", "rm", "rmdir", "id", "env", "true", "false", "dd", "kill"),
    *("ln", "mkfifo", "head", "seq", "chmod", "chown", "stat", "cp", "mv", "setsid", "sort", "wc", "du", "df"),
)
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n"
_GROUP = "root:x:0:\nagent:x:1000:\nextra:x:2000:agent\n"
_LEFT_OUT = ("test", "site-packages", "dist-packages", "__pycache__", "idlelib", "tkinter", "lib2to3", "ensurepip",
             "turtledemo", "pydoc_data", "config-*", "distutils", "curses", "dbm", "sqlite3", "xmlrpc")  # fmt: skip


def make_small_image(root: Path) -> UnpackedImage:
    """Make an image with a shell, a few programs, and the users root and agent."""
    for folder in ("bin", "usr/bin", "etc", "root", "home/agent", "tmp", "proc", "dev", "var/tmp"):
        (root / folder).mkdir(parents=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    for name in PROGRAMS:
        if path := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"):
            _copy_program(path, root, f"bin/{name}")
    (root / "etc/passwd").write_text(_PASSWD)
    (root / "etc/group").write_text(_GROUP)
    if os.geteuid() == 0:
        os.chown(root / "home/agent", 1000, 1000)
    return UnpackedImage(root=root, digest="sha256:small", env={"MADE_BY": "tests"})


def make_python_image(root: Path) -> UnpackedImage:
    """Make the small image with this Python and its standard library, as `python3`."""
    image = make_small_image(root)
    python = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    _copy_program(str(python), root, str(python).lstrip("/"))
    library = Path(os.__file__).parent
    shutil.copytree(
        library.resolve(), root / str(library).lstrip("/"), symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT)
    )
    for module in (library / "lib-dynload").glob("*.so"):
        _copy_libraries(str(module), root)
    for threads in Path("/lib").glob("*-linux-gnu/libgcc_s.so.1"):  # which the end of a thread loads
        _copy_program(str(threads), root, str(threads).lstrip("/"))
    (root / "usr/bin/python3").symlink_to(python)
    return image


def add_npm(root: Path) -> None:
    """Add node and npm of this machine."""
    _copy_program(str(shutil.which("node")), root, "usr/bin/node")
    program = Path(str(shutil.which("npm"))).resolve()
    package = program.parents[1]
    shutil.copytree(package, root / str(package).lstrip("/"), symlinks=True, dirs_exist_ok=True)
    (root / "usr/bin/npm").symlink_to(program)
    (root / "usr/bin/env").symlink_to("/bin/env")


def add_apt(root: Path) -> None:
    """Add apt and dpkg of this machine, with nothing installed and no sources."""
    methods = "/usr/lib/apt/methods"
    for name in ("apt-get", "dpkg", "dpkg-deb", "dpkg-split", "tar", "diff", "ldconfig", "start-stop-daemon", "gzip"):
        if path := shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"):
            _copy_program(path, root, f"usr/bin/{name}")
    for name in ("http", "store", "copy", "file", "gpgv"):
        _copy_program(f"{methods}/{name}", root, f"{methods}/{name}".lstrip("/"))
    for folder in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/dpkg/dpkg.cfg.d",
                   "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/log/apt",
                   "var/cache/apt/archives/partial"):  # fmt: skip
        (root / folder).mkdir(parents=True, exist_ok=True)
    shutil.copytree("/usr/share/dpkg", root / "usr/share/dpkg")
    (root / "var/lib/dpkg/status").touch()
    (root / "etc/passwd").write_text(f"{_PASSWD}_apt:x:42:65534::/nonexistent:/bin/false\n")
    (root / "etc/group").write_text(f"{_GROUP}nogroup:x:65534:\n")


def _copy_program(source: str, root: Path, name: str) -> None:
    target = root / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(os.path.realpath(source), target)
    target.chmod(0o755)
    _copy_libraries(source, root)


def _copy_libraries(program: str, root: Path) -> None:
    # A package that is imported may set LD_LIBRARY_PATH (opencv does); the image does not depend on it.
    command, env = ["ldd", os.path.realpath(program)], {"PATH": os.environ["PATH"]}
    listed = subprocess.run(command, capture_output=True, text=True, check=False, env=env).stdout
    for path in re.findall(r"(/\S+) \(0x", listed):
        target = root / path.lstrip("/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(os.path.realpath(path), target)
            target.chmod(0o755)
