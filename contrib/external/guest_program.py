"""Runs one program in its own namespaces: `python -I -S guest_program.py GUEST CONTROL SPEC COMMAND...`.

    launcher -> init (pid 1 of the program's namespaces) -> program

It is run by path, with only the standard library and, from the folder GUEST, `guest_kernel`; `confined.py` builds the
command line. Every process of the chain ends with its parent, and the death of init ends all processes of the program.
Init prepares the namespaces, listens on the loopback of the program's network, sends that listener through CONTROL,
starts the program, and waits for it without privileges. So the program's only way out is a connection to the holder of
the listener.

SIGTERM is for the program: the launcher ignores it, as a pid 1 does.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

sys.path.insert(0, sys.argv[1])
import guest_kernel as kernel  # type: ignore[import-not-found]

del sys.path[0]

_BACKLOG = 128
_MS_NOSUID_NOEXEC = 2 | 8
_FIRST_ID = 0x6F000000  # below the ids of guest.py; process ids are below 2**22


def main() -> int:
    """Run the program and return its exit code; 128 + N for signal N."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    spec = json.loads(sys.argv[3])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        init = _start_init(control, spec, sys.argv[4:])
    except OSError as failure:
        control.send(json.dumps({"failed": str(failure)}).encode())
        return 126
    control.close()
    _drop_standard_streams()
    return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) % 256


def _start_init(control: socket.socket, spec: dict[str, Any], command: list[str]) -> int:
    is_root, uid, gid = os.geteuid() == 0, os.geteuid(), os.getegid()
    user = kernel.unused_ids(_FIRST_ID + os.getpid(), 1) if is_root else None
    flags = kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET
    kernel.unshare(flags if is_root else flags | kernel.NEWUSER)
    if not is_root:
        kernel.map_ids(0, uid, gid)
    kernel.die_with_parent()
    init = os.fork()
    if init:
        return init
    try:
        _run_init(control, spec, command, user)
    except BaseException as failure:
        control.send(json.dumps({"failed": str(failure)}).encode())
    finally:
        os._exit(126)


def _enter_root(paths: list[str], folder: str, tmp_bytes: int) -> None:
    """Replace the root of this mount namespace by a read-only one with the system's programs.

    Args:
        paths: further files and folders, read-only, at their paths outside.
        folder: the only writable folder beside the private /tmp.
        tmp_bytes: size of /tmp in bytes.
    """
    real_paths = [(os.path.realpath(path), path) for path in (*paths, folder)]
    kernel.enter_new_root()
    os.mkdir("/tmp")
    kernel.mount_private_tmp(tmp_bytes)
    for name, descriptor in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{descriptor}", f"/dev/{name}")
    os.mkdir("/dev/pts")  # terminals of its own: several agents run their commands in one
    kernel.mount("devpts", "/dev/pts", "devpts", _MS_NOSUID_NOEXEC, "newinstance,ptmxmode=0666")
    os.symlink("pts/ptmx", "/dev/ptmx")
    # Folders before their contents. Real paths first: then the targets of links exist.
    for source, target in sorted((real, real) for real, _ in real_paths):
        kernel.bind(source, target)
    for source, target in sorted(real_paths, key=lambda pair: pair[1]):
        kernel.bind(source, target)
    kernel.leave_old_root()
    for path in ("/tmp", os.path.realpath(folder)):
        kernel.set_read_only(path, False)


def _mount_own_proc() -> None:
    """Mount a /proc with only processes, if the kernel supports it (5.8)."""
    try:
        kernel.mount_proc("subset=pid")
    except OSError:
        kernel.mount_proc(None)


def _run_init(control: socket.socket, spec: dict[str, Any], command: list[str], user: int | None) -> NoReturn:
    kernel.die_with_parent()
    if user is not None:
        for path in (spec["folder"], *(entry.path for entry in os.scandir(spec["folder"]))):
            os.chown(path, user, user)
    kernel.unshare(kernel.NEWNS)  # not earlier: the launcher still needs its root
    _enter_root(spec["shown"], spec["folder"], spec["limits"]["tmp_bytes"])
    _mount_own_proc()  # over the /proc that shows kernel settings
    socket.sethostname("sandbox")
    kernel.bring_up_loopback()
    listener = socket.create_server(("127.0.0.1", spec["port"]), backlog=_BACKLOG)
    lockdown = kernel.Lockdown(base64.b64decode(spec["filter"]))
    program = os.fork()
    if not program:
        _run_program(spec, command, user, lockdown)
    lockdown.apply()
    socket.send_fds(control, [b"{}"], [listener.fileno()])
    control.close()
    listener.close()
    _drop_standard_streams()
    while True:
        pid, status = os.wait()
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _run_program(spec: dict[str, Any], command: list[str], user: int | None, lockdown: Any) -> NoReturn:
    code = 126
    try:
        kernel.be_killed_first()
        if user is None:
            kernel.unshare(kernel.NEWUSER)
            kernel.map_ids(kernel.INSIDE_ID, 0, 0)
        kernel.limit_resources(spec["limits"])
        if user is not None:
            kernel.empty_bounding_set()
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        os.chdir(spec["cwd"])
        lockdown.apply()
        kernel.end_ignored_signals()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        code = 127
        os.execvp(command[0], command)
    except BaseException as failure:
        os.write(2, f"{command[0]} cannot be started in the sandbox: {failure}\n".encode())
    finally:
        os._exit(code)


def _drop_standard_streams() -> None:
    """Close the standard streams here, so that their reader sees when the program closes them."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


if __name__ == "__main__":
    sys.exit(main())
