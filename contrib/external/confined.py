"""A program in its own namespaces, for as long as it runs: the host's side of `guest_program.py`.

The program sees the system's folders, its installation and further paths that it is shown, all read-only; a private
/tmp; and one writable folder. Its network is a loopback with one listener. The host receives the listening socket
itself and serves it, without a proxy in between.

Resource limits bound the memory of every process and the number of processes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from forge_env.core.errors import SandboxUnavailable, UserError
from forge_env.core.sandbox import Limits
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.controlled import GUEST, require_supported_platform, why_not
from sandboxes.host.zygote import guest_limits

LIMITS = Limits(cpu_s=24 * 3600.0, memory_bytes=8 * 2**30, processes=256, file_bytes=2 * 2**30, tmp_bytes=256 * 2**20)
START_SECONDS = 30.0
_LAUNCHER = Path(__file__).with_name("guest_program.py")
_MAX_MESSAGE = 2**16
_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")))


def confine(
    command: Sequence[str], *, control: int, paths: Sequence[str], folder: Path, cwd: str, port: int
) -> list[str]:
    """Return the command line that runs a command in a sandbox.

    Args:
        control: a descriptor that it inherits; `listener_of` reads the other end.
        paths: paths that it may read beside the folders of the system.
        folder: the one writable folder; as root its owner becomes the program's user.
        cwd: its working directory, in one of `shown`.
        port: the port of its listener.
    """
    limits = guest_limits(LIMITS, in_group=True)  # address space is not counted: some runtimes reserve terabytes of it
    spec = {
        "shown": [os.path.abspath(path) for path in paths],
        "folder": os.path.abspath(folder),
        "cwd": os.path.abspath(cwd),
        "port": port,
        "limits": limits,
        "filter": base64.b64encode(seccomp_filter()).decode(),
    }
    return [sys.executable, "-I", "-S", str(_LAUNCHER), str(GUEST), str(control), json.dumps(spec), *command]


async def listener_of(control: socket.socket) -> socket.socket:
    """Return the listening socket in the network namespace of a started program."""
    control.setblocking(False)
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(control.fileno(), readable.set)
    try:
        async with asyncio.timeout(START_SECONDS):
            await readable.wait()
    except TimeoutError:
        raise SandboxUnavailable(f"namespace sandbox: a program did not start in {START_SECONDS:g} s.") from None
    finally:
        loop.remove_reader(control.fileno())
    data, descriptors, _, _ = socket.recv_fds(control, _MAX_MESSAGE, 1)
    if not descriptors:
        raise SandboxUnavailable(why_not(json.loads(data)["failed"] if data else "its starter was killed"))
    return socket.socket(fileno=descriptors[0])


async def check_programs() -> None:
    """Run a program that does nothing."""
    require_supported_platform()
    host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with host_end, tempfile.TemporaryDirectory(prefix="forge_env_program_") as folder:
        with guest_end:
            control = guest_end.fileno()
            command = confine(["true"], control=control, paths=(), folder=Path(folder), cwd=folder, port=1)
            process = await asyncio.create_subprocess_exec(
                *command,
                env={"PATH": "/usr/bin:/bin"},
                pass_fds=[control],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        try:
            (await listener_of(host_end)).close()
            async with asyncio.timeout(START_SECONDS):
                _, stderr = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise SandboxUnavailable(
            why_not(stderr.decode("utf-8", "replace").strip() or f"exit code {process.returncode}")
        )


def installation(program: str) -> list[str]:
    """Return the folders that a program needs: of its virtual environment, of its interpreter, and its folder.

    Only library and program folders, never a whole home folder. Folders of the system are left out.

    Args: program: the path of its file.
    """
    folders: list[Path] = []
    for file in (Path(os.path.abspath(program)), Path(program).resolve()):
        prefix = file.parent.parent
        if file.parent.name != "bin":
            folders.append(file.parent)
            continue
        folders += _parts(prefix)
        config = prefix / "pyvenv.cfg"
        if config.is_file():
            settings = dict(line.split(" = ", 1) for line in config.read_text().splitlines() if " = " in line)
            home = Path(settings.get("home", "/usr/bin"))
            folders += [*_parts(home.parent), *_parts(home.resolve().parent)]
    return [str(path) for path in dict.fromkeys(folders) if not any(path.is_relative_to(root) for root in _SYSTEM)]


def _parts(prefix: Path) -> list[Path]:
    names = ("bin", "lib", "lib64", "libexec", "pyvenv.cfg")
    return [path for path in (prefix / name for name in names) if path.exists()]


def check_shown(paths: Sequence[str]) -> None:
    """Refuse paths that must not be shown, and paths that the program could not read."""
    for path in map(Path, paths):
        real = path.resolve()
        for private in (Path.home(), Path(tempfile.gettempdir())):
            if private.resolve().is_relative_to(real):
                raise UserError(
                    f"a program in the sandbox would see all of {path}, and {private} with it: start it in a separate "
                    "folder, with cwd, and keep its files there"
                )
        bits = 0o005 if real.is_dir() else 0o004
        if os.geteuid() == 0 and real.exists() and real.stat().st_mode & bits != bits:
            raise UserError(
                f"a program in the sandbox runs as another user, who may not read {path}: chmod o+rX {path}, or "
                "start forge_env as the owner of that path"
            )
