"""A workspace whose pid 1 is ours, whichever backend has started it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from contrib.workspaces.contract import (
    CommandResult,
    Network,
    UnpackedImage,
    WorkspaceCapabilities,
    WorkspaceFileError,
    WorkspaceLimits,
)
from contrib.workspaces.machines.box import Answer, Box
from contrib.workspaces.machines.command import SCRIPT, answer_of, no_room, run_command, script_of, why_no_environment
from contrib.workspaces.machines.shell import Shell
from contrib.workspaces.machines.snapshot import Origin, Snapshot, Started
from contrib.workspaces.machines.trees import receive_archive, receive_tree, send_tree
from forge_env.core.errors import SandboxError, UserError
from sandboxes.host.streams import CappedPipe, machine_faults, sealed_file

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_EXPORTED = 2_000_000
_MAX_TOLD = 2**20
_SHOWN = 200
_TICK_NS = 20_000_000
"""By less than this the times of a file system are behind the clock."""
_REFUSALS = {
    errno.ELOOP: "it is a link, or its path has too many of them",
    errno.EINVAL: "it is not a regular file",
    errno.EISDIR: "it is a folder",
    errno.EFBIG: "it has more bytes than allowed",
    errno.ENOSPC: "the disk of the workspace is full (disk_bytes, files)",
    errno.EMFILE: "there are more files than max_files",
}


T = TypeVar("T")


class Workspace:
    """A file system from an image, and the processes in it. For use by coroutines of one event loop.

    Args:
        origin: which the backend holds for it.
        launch: the box that runs.
        freeze: ends all processes, keeps the files, and returns a snapshot; sets `launch` to the box that goes on.
        on_close: called once, when every process has ended.
    """

    def __init__(
        self,
        origin: Origin,
        launch: Started,
        *,
        limits: WorkspaceLimits,
        network: Network,
        capabilities: WorkspaceCapabilities,
        environment: Mapping[str, str],
        freeze: Callable[[Workspace], Awaitable[Snapshot]],
        on_close: Callable[[Workspace], None],
    ) -> None:
        self.limits, self.network, self.capabilities = limits, network, capabilities
        self.origin, self.launch = origin, launch
        self._environment = {"PATH": _PATH} | dict(origin.image.env) | dict(environment)
        self._freeze, self._on_close = freeze, on_close
        self._shells: list[Shell] = []
        self._one_at_a_time = asyncio.Lock()  # of what replaces the box
        self._is_closed = False
        self._opened_ns = time.time_ns()

    @property
    def image(self) -> UnpackedImage:
        return self.origin.image

    @property
    def alive(self) -> bool:
        return self.launch.box.alive

    @property
    def unreachable(self) -> tuple[str, ...]:
        """What programs have asked the proxy of an allowlist for in vain, a sentence for each host."""
        return tuple(reason for proxy in self.launch.proxies for reason in proxy.unreachable)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        user: str | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | str | int = b"",
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> CommandResult:
        """Run a program and wait for it. The program cannot make it raise.

        Background processes live on, but what they write to the output of the command is lost. At the time limit, and
        when the call is cancelled, the program and every process of its session and below it are killed.

        Args:
            command: the program and its arguments; a string runs as `/bin/sh -c STRING`.
            timeout_s: time limit; `WorkspaceLimits.wall_s` by default.
            user: name, number or "USER:GROUP"; the image's user by default.
            env: added to the environment of the image.
            cwd: the image's working directory by default. It must exist.
            stdin: what it reads; or the descriptor of a pipe or socket of the caller, who may write while it runs.
            on_output: called with "stdout" or "stderr" and each chunk as it comes; also with chunks that the
                result does not keep. It must not block or raise.

        Raises:
            UserError: there is no such user or folder in the workspace, or the backend has only one user.
            SandboxError: the workspace failed, or is closed.
        """
        script = script_of(command) if isinstance(command, str) else b""
        argv = ["/bin/sh", *([SCRIPT] if script else ["-c", command])] if isinstance(command, str) else list(command)
        if not argv:
            raise UserError("a command of a workspace is empty; name a program.")
        request = {"argvs": [argv]} | self._surroundings(user, env, cwd)
        data = stdin.encode("utf-8", "replace") if isinstance(stdin, str) else stdin
        seconds = self.limits.wall_s if timeout_s is None else timeout_s
        box, counters = await self._live_box(), self.launch.counters
        with machine_faults():
            return await run_command(box, request, data, seconds, self.limits, counters, on_output, script)

    async def open_shell(
        self,
        *,
        user: str | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> Shell:
        """Open a shell: /bin/bash if the image has it, else /bin/sh. Arguments and exceptions as for `exec`."""
        request = self._surroundings(user, env, cwd)
        shell = Shell(request, self.limits, lambda: self.launch.counters, self._live_box, on_output)
        self._shells.append(shell)
        await shell.start()
        return shell

    async def put(self, path: str, data: bytes, *, mode: int = 0o644, user: str | int | None = None) -> None:
        """Write a file atomically; missing folders are created.

        Paths are resolved inside the workspace, links too; a link at the end of the path is replaced, not followed.

        Args:
            path: absolute, or relative to the image's working directory.
            user: the owner; root by default.

        Raises:
            WorkspaceFileError: the path leads nowhere, `data` has more than `transfer_bytes`, or the disk is full.
            SandboxError: the workspace failed, or is closed.
        """
        if len(data) > self.limits.transfer_bytes:
            raise WorkspaceFileError(f"{path!r} has {len(data)} bytes; transfer_bytes is {self.limits.transfer_bytes}")
        with machine_faults():
            fd = sealed_file(data)
        try:
            await self._on_files("put", path, [fd], {"mode": mode & 0o7777}, user)
        finally:
            os.close(fd)

    async def get(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Read a regular file. Links are not followed at the end of a path, and special files are refused.

        Raises: as `put`; WorkspaceFileError also for more than `max_bytes`, by default `transfer_bytes`.
        """
        most = self.limits.transfer_bytes if max_bytes is None else max_bytes
        with machine_faults():
            pipe = CappedPipe(most, most, lambda: None)
        try:
            await self._on_files("get", path, [pipe.write_fd], {"max_bytes": most}, None, pipe.close_write_end)
        finally:
            pipe.close()
        if pipe.truncated:
            raise WorkspaceFileError(f"{path!r}: {_REFUSALS[errno.EFBIG]}")
        return pipe.data

    async def put_tree(self, source: Path, path: str, *, user: str | int | None = None) -> None:
        """Copy a folder of this machine: its files, folders and links, with their modes, into the folder `path`.

        Existing files are replaced, and others stay. Links are copied as links. Raises as `put`.
        """

        def send(pipe: int) -> None:
            try:
                send_tree(source, pipe, self.limits.transfer_bytes)
            except BrokenPipeError:
                pass  # the workspace says why

        await self._stream("put_tree", path, {}, user, send, out=False)

    async def get_tree(
        self,
        path: str,
        target: Path,
        *,
        max_bytes: int | None = None,
        max_files: int = 10_000,
        skip: bool = False,
        exclude: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Copy the regular files and folders below `path` into a new folder of this machine.

        Args:
            target: does not exist yet; files get this process's user, and modes 0o644 or 0o755.
            skip: leave out links and special files, and return their paths; otherwise they raise.
            exclude: patterns as of `tar --exclude`: an entry whose path below `path`, or the end of it from any "/" on,
                matches is left out with everything below it. "*" also matches "/".

        Raises:
            WorkspaceFileError: as `put`; also for links and special files, and for more than `max_files` entries.
        """
        most = self.limits.transfer_bytes if max_bytes is None else max_bytes

        def receive(pipe: int) -> tuple[str, ...] | None:
            return receive_tree(pipe, target, most, skip=skip)

        omissions = await self._stream(
            "get_tree", path, {"max_files": max_files, "exclude": list(exclude)}, None, receive, out=True
        )
        if omissions is None:
            raise WorkspaceFileError(f"{path!r}: the workspace ended before all files were copied")
        return omissions

    async def export(self, target: Path, *, max_bytes: int | None = None) -> None:
        """Write all files of the workspace, also its image's, into a tar: with owners, modes, times and links.

        Left out are special files, and what is mounted: /proc and /dev.

        Args:
            target: a new file of this machine.
            max_bytes: `transfer_bytes` by default.

        Raises: as `put`.
        """
        most = self.limits.transfer_bytes if max_bytes is None else max_bytes

        def receive(pipe: int) -> bool:
            with target.open("xb") as file:
                return receive_archive(pipe, file, most)

        try:
            whole = await self._stream("pack", "/", {"max_files": _MAX_EXPORTED}, None, receive, out=True)
        except FileExistsError:
            raise WorkspaceFileError(f"{target} exists: an export needs a new file") from None
        if not whole:
            raise WorkspaceFileError("the workspace ended before all files were copied")

    async def take_over(
        self, other: Workspace, *, keep: Sequence[str] = (), work: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Give this workspace the files of another one with the same beginning, except what is kept.

        Owners, modes, times and links are as there; special files are left out. Call it when no process runs in either.

        Args:
            other: of the same backend; it is not changed.
            keep: absolute paths that stay as they are here, with all that is below them; "*" matches within a part.
            work: absolute paths that are taken over all the same; in them, what a longer path of `keep` names is kept.

        Returns: files that have changed in the other one and are kept here, a hundred at most.

        Raises: as `put`; WorkspaceFileError also for changed files with more than the `disk_bytes` of the other one.
        """
        since, most = other._opened_ns, other.limits.disk_bytes
        fields = {"keep": list(keep), "work": list(work), "max_bytes": most, "opened": since}
        is_whole, report = await self._take(other, fields | {"since": since - _TICK_NS})
        if not is_whole:  # a folder was moved with its files, or the clock was set back: all files are sent
            is_whole, report = await self._take(other, fields | {"since": 0})
        if not is_whole:
            raise SandboxError("two workspaces of the same beginning do not have the same files")
        return report

    async def _take(self, other: Workspace, fields: dict[str, Any]) -> tuple[bool, tuple[str, ...]]:
        """Let two workspaces talk through a pipe; return whether this one has all files, and what it has kept."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        report_pipe, missing = (CappedPipe(_MAX_TOLD, _MAX_TOLD, lambda: None) for _ in range(2))

        async def work(workspace: Workspace, do: str, end: int, report: CappedPipe) -> None:
            ours = [end]

            def on_start() -> None:
                os.close(ours.pop())
                report.close_write_end()

            try:
                await workspace._on_files(do, "/", [end, report.write_fd], fields, None, on_start)
            finally:
                if ours:
                    on_start()

        try:
            sides = work(other, "send", writer, report_pipe), work(self, "take", reader, missing)
            failures = await asyncio.gather(*sides, return_exceptions=True)
        finally:
            report_pipe.close()
            missing.close()
        if missing.data:
            return False, ()
        for failure in failures:
            if failure is not None:
                raise failure
        try:
            return True, tuple(name.encode("utf-8", "replace").decode() for name in json.loads(report_pipe.data))
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise SandboxError("a workspace did not say what has changed in it") from None

    async def end_processes(self) -> None:
        """Kill every process in the workspace; files stay. Shells are gone: their next command starts a new one."""
        await (await self._live_box()).end_processes()

    async def snapshot(self) -> Snapshot:
        """Keep the files as they are now, and go on from them. **Every process of the workspace is killed first**: what
        a snapshot holds is at rest.

        Raises:
            SandboxError: the workspace failed, or is closed.
        """
        async with self._one_at_a_time:
            await self._live_box()
            freezing = asyncio.ensure_future(self._freeze(self))
            try:
                return await asyncio.shield(freezing)
            except BaseException:
                self._is_closed = True
                await asyncio.wait([freezing])  # a cancellation waits: what is half done can be neither used nor freed
                if not freezing.exception():
                    await freezing.result().close()
                try:
                    await self.launch.stop()
                finally:
                    self._on_close(self)
                raise

    def listener(self, port: int) -> socket.socket:
        """Return the listening socket of a port in `Network.listeners`: the caller accepts what connects inside.

        Raises:
            UserError: the workspace was opened without that port.
        """
        ports = self.network.listeners
        if port not in ports:
            raise UserError(
                f"the workspace has no listener on port {port}; open it with Network(listeners=({port},)). "
                f"It has {', '.join(map(str, ports)) or 'none'}."
            )
        listeners = self.launch.box.listeners
        if not self.alive:
            raise SandboxError("the workspace has ended")
        return listeners[ports.index(port)]

    async def close(self) -> None:
        """End every process and free every file of the workspace. Idempotent."""
        async with self._one_at_a_time:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                await self.launch.stop()
            finally:
                self._on_close(self)

    async def settle(self) -> None:
        """Make the files fit to start another container from. For backends, while no command runs."""
        await self._on_files("settle", "/", [], {}, None)

    async def _live_box(self) -> Box:
        if self._is_closed:
            raise SandboxError("the workspace is closed")
        if not self.alive:
            reason = self.launch.box.failure
            raise SandboxError(
                f"the workspace has ended{reason and f', because {reason}'}; close it, and open another one"
            )
        return self.launch.box

    def _surroundings(self, user: str | int | None, env: Mapping[str, str] | None, cwd: str | None) -> dict[str, Any]:
        environment = self._environment | dict(env or {})
        if problem := why_no_environment(environment):
            raise UserError(problem)
        return {
            "user": str(self.image.user if user is None else user),
            "env": environment,
            "cwd": os.path.join(self.image.workdir or "/", cwd or ""),
        }

    async def _stream(
        self, do: str, path: str, fields: dict[str, Any], user: str | int | None, work: Callable[[int], T], *, out: bool
    ) -> T:
        """Work on a tree inside, while a thread does `work` on the other end of its pipe; return what that returns."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        ours, theirs = (reader, writer) if out else (writer, reader)
        working: asyncio.Task[T] | None = None

        def work_and_close() -> T:
            try:
                return work(ours)
            finally:
                os.close(ours)

        def on_start() -> None:
            nonlocal working
            os.close(theirs)
            working = asyncio.create_task(asyncio.to_thread(work_and_close))
            working.add_done_callback(lambda task: task.cancelled() or task.exception())

        try:
            await self._on_files(do, path, [theirs], fields, user, on_start)
        except BaseException as error:
            if working is None:
                os.close(reader)
                os.close(writer)
                raise
            await asyncio.wait([working])  # the other side has ended, so it does not wait for it
            if isinstance(error, WorkspaceFileError):
                await working  # what is wrong on our side may have ended the other one
            raise
        assert working is not None
        return await working

    async def _on_files(
        self,
        do: str,
        path: str,
        fds: list[int],
        fields: dict[str, Any],
        user: str | int | None,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Work on files inside. Args: on_start: called when the workspace has the descriptors."""
        if not _is_path(path):
            raise WorkspaceFileError(f"{path[:_SHOWN]!r} is no path")
        box = await self._live_box()
        request = {"do": do, "path": path, "workdir": self.image.workdir or "/", "user": str(user or 0)} | fields
        number, future = box.start(request, fds)
        on_start()
        answer = await answer_of(box, number, future, self.limits.wall_s, lambda: box.kill(number))
        _require_done(path, answer, box.failure)


def _is_path(path: str) -> bool:
    """Whether the kernel can be asked for it. A model may write half of a surrogate pair, which has no bytes."""
    try:
        return bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _require_done(path: str, answer: Answer | None, failure: str) -> None:
    if answer is None:
        raise SandboxError("the workspace ended while a file was copied" + (f": {failure}" if failure else ""))
    if len(path) > _SHOWN:
        path = f"{path[:_SHOWN]}..."
    if answer.is_refused and answer.errno:
        reason = _REFUSALS.get(answer.errno) or os.strerror(answer.errno)
        is_named = not answer.reason or answer.reason.endswith(path) or len(answer.reason) > _SHOWN
        error = WorkspaceFileError(f"{path!r}: {reason}" + ("" if is_named else f" ({answer.reason})"))
        error.errno = answer.errno
        raise error
    if answer.is_refused:
        raise UserError(f"{path!r}: {answer.reason}")
    if answer.start_errno and answer.start_errno != errno.EAGAIN:
        raise SandboxError(no_room(answer))
    if answer.start_errno:
        raise WorkspaceFileError(f"{path!r}: no room for another process in the workspace")
    if answer.status:
        raise WorkspaceFileError(f"{path!r}: the copy was killed, or took too long")
