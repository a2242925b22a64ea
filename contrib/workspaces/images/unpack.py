"""Unpacks layers of images, each in a process that can harm nothing: the host's side of `guest_unpack.py`."""

from __future__ import annotations

import base64
import fcntl
import functools
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.workspaces.guest import WORKSPACE_GUEST
from contrib.workspaces.images.cache import Cancelled
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from sandboxes.guest.seccomp import seccomp_filter, supported_machines
from sandboxes.host.controlled import GUEST

_PROGRAM = WORKSPACE_GUEST / "guest_unpack.py"
EXTRA = "forge-env[images]"
_MAX_REPORT = 2**16
_PIPE = 2**20
_LOOK_S = 0.5
"""How often a wait looks whether it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    bytes: int = 32 * 2**30
    """Of its files, holes included; about as many bytes of the stream are read."""
    files: int = 2_000_000
    memory_bytes: int = 768 * 2**20
    """Of the process that unpacks it."""
    wall_s: float = 3600.0
    """The download is in it."""


DEFAULT_UNPACK_LIMITS = UnpackLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedLayer:
    diff_id: str
    """Digest of the uncompressed layer, "sha256:..."."""
    bytes: int
    files: int
    left_out: int
    """Devices, FIFOs and reserved names, which are not unpacked."""


def unpack_layer(
    blocks: Iterable[bytes],
    folder: Path,
    *,
    what: str,
    limits: UnpackLimits = DEFAULT_UNPACK_LIMITS,
    cancel_event: threading.Event | None = None,
) -> UnpackedLayer:
    """Unpack a layer into an empty folder. Whiteouts stay as files: `guest_unpack.py`.

    As root the files get the owners of the layer; an ordinary user owns them all. Blocks until the process has ended.

    Args:
        blocks: the layer: a tar, plain, or compressed by gzip or zstd. What they raise ends the process, and goes on.
        what: names the layer in messages.
        cancel_event: ends it with Cancelled when it is set.
    """
    order = {
        "owner": os.getpid(),
        "folder": str(folder),
        "bytes": limits.bytes,
        "files": limits.files,
        "memory_bytes": limits.memory_bytes,
        "seconds": limits.wall_s,
        "filter": _filter(),
        "zstandard": _place_of_zstandard(),
    }
    command = [sys.executable, "-I", "-S", "-B", "-X", "utf8", str(_PROGRAM), json.dumps(order), str(GUEST)]
    cancel_event = cancel_event or threading.Event()
    source, sink = os.pipe2(os.O_CLOEXEC)
    try:
        process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, env={}, start_new_session=True)
    except BaseException:
        os.close(sink)
        raise
    finally:
        os.close(source)
    try:
        feed = _Feed(process, sink, time.monotonic() + limits.wall_s, cancel_event)
        rest = iter(blocks)
        feed.send(rest)
        report = feed.report()
        if "unsound" in report:
            for _ in rest:  # a broken digest explains it better
                pass
    except TimeoutError:
        raise UserError(f"{what} was not unpacked in {limits.wall_s:g} s, the limit") from None
    finally:
        _end(process)
    return _result(report, what, folder)


class _Feed:
    """Sends blocks to the process, which may hang, until a deadline."""

    def __init__(
        self, process: subprocess.Popen[bytes], sink: int, deadline: float, cancel_event: threading.Event
    ) -> None:
        assert process.stdout is not None
        self._output = process.stdout.fileno()
        self._sink, self._deadline, self._cancel_event = sink, deadline, cancel_event

    def send(self, blocks: Iterator[bytes]) -> None:
        """Send all blocks, and close the pipe. Returns early when the process has closed its end."""
        try:
            os.set_blocking(self._sink, False)
            _widen(self._sink)
            for block in blocks:
                view = memoryview(block)
                while view:
                    self._wait(self._sink, select.POLLOUT)
                    view = view[os.write(self._sink, view) :]
        except BrokenPipeError:
            pass  # its report says why
        finally:
            os.close(self._sink)

    def report(self) -> dict[str, Any]:
        text = b""
        while len(text) < _MAX_REPORT:
            self._wait(self._output, select.POLLIN)
            part = os.read(self._output, _MAX_REPORT)
            if not part:
                break
            text += part
        try:
            report = json.loads(text)
        except ValueError:
            report = {}
        return report if isinstance(report, dict) else {}

    def _wait(self, fd: int, event: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        while True:
            if self._cancel_event.is_set():
                raise Cancelled
            seconds = self._deadline - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            if poll.poll(1000 * min(seconds, _LOOK_S)):
                return


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)
    except OSError:
        pass  # an ordinary user has a budget for pipes; a small one works, too


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process if it still runs, and wait until the one that unpacks has ended, too."""
    assert process.stdout is not None
    process.kill()
    process.wait()
    while os.read(process.stdout.fileno(), _MAX_REPORT):  # its end closes the pipe
        pass
    process.stdout.close()


def _result(report: dict[str, Any], what: str, folder: Path) -> UnpackedLayer:
    for kind in ("refused", "unsound"):
        if kind in report:
            raise UserError(f"{what} cannot be unpacked: {str(report[kind])[:400]}")
    if "no_room" in report:
        raise no_room(folder, what)
    if "zstandard" in report:
        raise UserError(f"{what} is compressed by zstd, and the package zstandard is not installed: install {EXTRA}")
    if "isolation" in report:
        raise SandboxUnavailable(
            f"{what} cannot be unpacked in isolation here ({str(report['isolation'])[:200]}); root needs "
            "CAP_SYS_ADMIN, an ordinary user needs user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0)."
        )
    try:
        counts = {name: int(report[name]) for name in ("bytes", "files", "left_out")}
        return UnpackedLayer(diff_id=str(report["diff_id"])[:80], **counts)
    except (KeyError, TypeError, ValueError):
        raise SandboxError(f"the process that unpacked {what} ended without a report: it was killed") from None


def no_room(folder: Path, what: str) -> UserError:
    return UserError(
        f"there is no room for {what} in {folder.parent}: free some (forge-env image prune), or set FORGE_ENV_IMAGES "
        "to a folder on another disk"
    )


@functools.cache
def _filter() -> str:
    try:
        return base64.b64encode(seccomp_filter()).decode()
    except KeyError as error:
        machines = ", ".join(supported_machines())
        raise SandboxUnavailable(f"images can be unpacked on {machines}, and this machine is {error}.") from None


def _place_of_zstandard() -> str:
    spec = importlib.util.find_spec("zstandard")
    return str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""
