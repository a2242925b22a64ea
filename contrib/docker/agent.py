"""Serves one sandbox inside a container, over the container's standard input and output.

Run as `python3 -P -s -m contrib.docker.agent namespace|plain [proved]`. One container serves one snippet or one
session at a time. The namespace backend isolates it from this agent. If the engine forbids namespaces, `PlainZygote`
does. It ends, and with it the container, when its standard input does: when its owner is gone.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from dataclasses import asdict
from typing import Any

from contrib.docker import wire
from contrib.docker.group import ContainerGroups, with_exact_processes
from contrib.docker.spawner import GUEST_PLAIN, Spawner
from forge_env.core.errors import ForgeError, SandboxError, SandboxUnavailable
from forge_env.core.sandbox import Capabilities, Limits, Sandbox, Session, SessionFileError
from sandboxes.guest.seccomp import seccomp_filter
from sandboxes.host.cgroups import Groups
from sandboxes.host.controlled import GUEST
from sandboxes.host.namespace import DEFAULT_PREIMPORT, NamespaceSandbox
from sandboxes.host.selftest import check_isolation, denials_of, look, privileges_of, with_limits
from sandboxes.host.zygote import Driver, ExitReport, Zygote

_CLOSE_S = 5.0
_GREETING_S = 60.0
_MAX_ERROR_CHARS = 4000


async def main() -> None:
    requests, answers = _take_standard_streams()
    try:
        groups = _groups()
        sandbox = await _open(sys.argv[1], groups)
        check = check_plain_isolation if sys.argv[1] == "plain" else check_isolation
        proof = {} if "proved" in sys.argv[2:] else {"capabilities": asdict(await check(sandbox, groups))}
    except ForgeError as error:
        _send(answers, 0, {"failed": str(error)})
        return
    memory_bytes = groups.memory_bytes() if isinstance(groups, ContainerGroups) else 0
    _send(answers, 0, {"memory_bytes": memory_bytes, **proof})
    try:
        await Agent(sandbox, answers).serve(requests)
    finally:
        async with asyncio.timeout(_CLOSE_S):
            await sandbox.close()


def _groups() -> ContainerGroups | str:
    try:
        return ContainerGroups()
    except OSError as error:
        return str(error)


async def _open(kind: str, groups: ContainerGroups | str) -> NamespaceSandbox:
    async def start() -> Driver:
        return PlainZygote() if kind == "plain" else await ContainedZygote.start(preimport=DEFAULT_PREIMPORT)

    return NamespaceSandbox(await start(), groups, slots=1, max_sessions=1, start=start, backend="docker")


def _take_standard_streams() -> tuple[int, int]:
    """Move the streams to descriptors that no child inherits, and leave /dev/null in their place."""
    requests, answers = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    return requests, answers


class ContainedZygote(Zygote):
    """The zygote of a container, where resource limits count the processes of a snippet."""

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        return super().submit(with_exact_processes(order), fds)


def _send(answers: int, number: int, header: dict[str, Any], body: bytes = b"") -> None:
    """Write a frame. The engine always reads, so a write never blocks for long."""
    data = memoryview(wire.frame(number, header, body))
    while data:
        data = data[os.write(answers, data) :]


class Agent:
    def __init__(self, sandbox: Sandbox, answers: int) -> None:
        self._sandbox, self._answers = sandbox, answers
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._session: Session | None = None

    async def serve(self, requests: int) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(requests, "rb", buffering=0))
        try:
            # If the owner dies before it connects, standard input may never end.
            async with asyncio.timeout(_GREETING_S):
                await self._take_next(reader)
            while True:
                await self._take_next(reader)
        except (asyncio.IncompleteReadError, TimeoutError):
            pass  # the owner closed the stream, or is gone

    async def _take_next(self, reader: asyncio.StreamReader) -> None:
        number, header_bytes, body_bytes = wire.PREFIX.unpack(await reader.readexactly(wire.PREFIX.size))
        message = wire.parse_header(await reader.readexactly(header_bytes))
        self._take(number, message, await reader.readexactly(body_bytes))

    def _take(self, number: int, message: dict[str, Any], body: bytes) -> None:
        if message["do"] == "greet":
            return
        if message["do"] != "cancel":
            self._tasks[number] = asyncio.create_task(self._serve_one(number, message, body))
        elif number in self._tasks:
            self._tasks[number].cancel()

    async def _serve_one(self, number: int, message: dict[str, Any], body: bytes) -> None:
        try:
            answer = await self._answer(message, body)
        except SessionFileError as error:
            answer = {"file_error": str(error)}, b""
        except asyncio.CancelledError:
            answer = {"sandbox_error": "the request was cancelled"}, b""
        except SandboxError as error:
            answer = {"sandbox_error": str(error)}, b""
        except Exception as error:  # report every error now, before the host's deadline
            answer = {"sandbox_error": f"the agent failed: {type(error).__name__}: {error}"[:_MAX_ERROR_CHARS]}, b""
        finally:
            self._tasks.pop(number, None)
        _send(self._answers, number, *answer)

    async def _answer(self, message: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        do = message["do"]
        if do == "run":
            return wire.result_message(await self._sandbox.run(wire.request_of(message, body)))
        if do == "open":
            limits = Limits(**message["limits"])
            self._session = await self._sandbox.open_session(
                setup=message["setup"], limits=limits, echo=message["echo"]
            )
            return {}, b""
        return await self._answer_of_session(do, message, body)

    async def _answer_of_session(self, do: str, message: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        session = self._session
        if session is None:
            raise SandboxError("there is no session in this container")
        if do == "cell":
            return wire.result_message(await session.run(message["code"], stdin=message["stdin"]))
        if do == "get":
            return {}, await session.get(message["path"])
        if do == "put":
            await session.put(message["path"], body)
        elif do == "reset":
            await session.reset()
        elif do == "close":
            await session.close()
            self._session = None
        return {}, b""


async def check_plain_isolation(sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    """Return what is enforced. Raises SandboxUnavailable if a canary escapes."""
    return await with_limits(_judge(await look(sandbox)), sandbox, groups)


class PlainZygote(Spawner):
    """Starts one interpreter per snippet, as a user of its own."""

    def __init__(self) -> None:
        super().__init__(str(GUEST_PLAIN), str(GUEST))
        # Outside of used ranges: the limit on processes counts the user's processes on the whole machine.
        user = 0x70000000 + int.from_bytes(os.urandom(3), "big")
        self._more = {"filter": base64.b64encode(seccomp_filter()).decode(), "user": user, "folder": "/tmp"}

    def submit(self, order: dict[str, Any], fds: list[int]) -> tuple[int, asyncio.Future[ExitReport]]:
        return super().submit(with_exact_processes(order) | self._more, fds[: len(fds) - order.get("groups", 0)])


def _judge(view: dict[str, Any]) -> Capabilities:
    escapes = {
        "it can read a private file of the agent": view["secret"] or view["shadow"],
        **privileges_of(view),
        "it is the agent's user": view["uid"] == os.geteuid(),
    }
    reasons = [reason for reason, is_possible in escapes.items() if is_possible]
    if reasons:
        raise SandboxUnavailable(f"the self-test failed, because {'; '.join(reasons)}.")
    return Capabilities(
        backend="docker",
        pid_namespace=False,
        mount_namespace=True,  # the container provides this and the next two
        network_namespace=True,
        ipc_namespace=True,
        seccomp=True,
        uid_drop=True,
        memory_limit="rlimit",
        **denials_of(view),
    )


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)  # no thread to wait for
