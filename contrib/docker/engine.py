"""The Docker engine: located by the environment (DOCKER_HOST), called with the Docker SDK for Python.

The SDK blocks, so its calls run in threads, with a deadline per call.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

from forge_env.core.errors import SandboxError, SandboxUnavailable
from sandboxes.guest.seccomp import supported_machines

_CALL_S = 60.0
_PING_S = 5.0


class Engine:
    """A connection to an engine. Create one with `await Engine.connect()`; end it with `close()`."""

    def __init__(self, client: Any, info: dict[str, Any]) -> None:
        self.client = client
        self.machine: str = info["Architecture"]
        self.identity: str = info.get("ID") or ""
        import docker.errors

        self._errors = docker.errors

    @classmethod
    async def connect(cls, *, call_s: float = _CALL_S) -> Engine:
        """Connect to the engine that the environment names.

        Args: call_s: deadline of a call, in seconds.
        """
        client, info = await asyncio.to_thread(_connect, call_s)
        if info.get("OSType") != "linux" or info.get("Architecture") not in supported_machines():
            client.close()
            raise SandboxUnavailable(
                f"docker sandbox: needs an engine for Linux on {' or '.join(supported_machines())}, but this one is "
                f"for {info.get('OSType')} on {info.get('Architecture')}."
            )
        return cls(client, info)

    async def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of the SDK in a thread. Raises SandboxError for every error of the engine.

        Cancelling does not stop the call; the caller removes what the call may still create.
        """
        try:
            return await asyncio.to_thread(function, *arguments, **options)
        except (self._errors.DockerException, OSError) as error:
            # The SDK wraps the errors of the HTTP client, which are OSErrors, too.
            raise SandboxError(f"docker sandbox: the engine failed: {_one_line(error)}") from error

    def is_missing(self, error: SandboxError) -> bool:
        """Whether the engine reported that the object does not exist, or is being removed."""
        cause = error.__cause__
        return isinstance(cause, self._errors.NotFound) or (
            isinstance(cause, self._errors.APIError) and cause.status_code == 409
        )

    def is_not_there(self, error: SandboxError) -> bool:
        return isinstance(error.__cause__, self._errors.NotFound)

    def has_just_ended(self, error: SandboxError) -> bool:
        """Whether the engine failed to kill a container, for it ended by itself in that moment."""
        cause = error.__cause__
        return isinstance(cause, self._errors.APIError) and "is not running" in str(cause.explanation)

    def attach(self, container: str) -> socket.socket:
        """Return a connection to the standard streams of a container. Blocks; call it through `call`."""
        parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        response = self.client.api.attach_socket(container, parameters)
        raw = getattr(response, "_sock", response)
        plain = isinstance(raw, socket.socket) and not isinstance(raw, ssl.SSLSocket)
        duplicate = raw.dup() if plain else None
        # The SDK attaches the response to the returned object; closing it closes the SDK's descriptor.
        getattr(response, "_response", response).close()
        raw.close()
        if duplicate is None:
            raise OSError("its connection is not a plain socket; name one with DOCKER_HOST=unix:///path")
        duplicate.setblocking(False)
        return duplicate

    def close(self) -> None:
        self.client.close()


def _connect(call_s: float) -> tuple[Any, dict[str, Any]]:
    try:
        import docker
        import docker.errors
    except ImportError as error:
        raise SandboxUnavailable(
            "docker sandbox: the Docker SDK for Python is missing; install it with pip install 'forge-env[docker]'."
        ) from error
    try:
        client = docker.from_env(timeout=_PING_S)
        client.ping()
        info = client.info()
    except (docker.errors.DockerException, OSError) as error:
        raise SandboxUnavailable(
            f"docker sandbox: no Docker engine answers ({_one_line(error)}); start one, or name it with DOCKER_HOST."
        ) from error
    client.api.timeout = call_s
    # A connection per call: calls are rare, and an idle connection would hold a descriptor.
    client.api.headers["Connection"] = "close"
    return client, info


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
