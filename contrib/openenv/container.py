"""The container of an OpenEnv image: started by the docker client, and removed with its owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import httpx

from contrib.common.programs import last_words, read_tail, stop
from contrib.openenv import keeper
from forge_env.core.errors import ServiceError, UserError

START_SECONDS = 300.0
LIFE_SECONDS = 24 * 3600.0
"""A container is removed after this time, whatever its owner does."""
_ASK_SECONDS, _STOP_SECONDS, _POLL_SECONDS = 60.0, 70.0, 0.2
_TAIL = 4000
_IMAGE = re.compile(
    r"[a-z0-9][A-Za-z0-9._/-]*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?|[a-z0-9.-]+:\d+/[A-Za-z0-9._/:@-]+"
)


def is_image(source: str) -> bool:
    return "://" not in source and _IMAGE.fullmatch(source) is not None


class Container:
    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.url = ""
        self._process = process
        self.tail = bytearray()
        self._reading = asyncio.create_task(read_tail(process.stderr, self.tail, _TAIL))

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def check_runs(self) -> None:
        if self.has_ended:
            raise ServiceError(f"the container of the OpenEnv image ended; it wrote: {last_words(self.tail)}")

    async def close(self) -> None:
        try:
            await stop(self._process, _STOP_SECONDS)
        finally:
            if self._process.returncode is not None and self._process.returncode < 0:  # its keeper was killed
                await asyncio.to_thread(_docker, "rm", "--force", "--volumes", self.name)
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


async def start_container(image: str, *, port: int, options: Sequence[str] = ()) -> Container:
    """Start a container, and wait until its server answers. The image must be there: nothing is pulled."""
    await asyncio.to_thread(check_image, image)
    name = f"forge-env-openenv-{os.getpid()}-{secrets.token_hex(6)}"
    run = ["run", "--rm", "--name", name, "--pull", "never", "--publish", f"127.0.0.1::{port}", *options, image]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", os.path.abspath(keeper.__file__), str(LIFE_SECONDS), name, "docker", *run),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    container = Container(name, process)
    try:
        async with asyncio.timeout(START_SECONDS):
            container.url = await _url_of(container, port)
            await _until_answered(container)
    except TimeoutError:
        words = last_words(container.tail)
        await container.close()
        raise ServiceError(f"the image {image} did not answer within {START_SECONDS:g} s; it wrote: {words}") from None
    except BaseException:
        await container.close()
        raise
    return container


def check_image(image: str) -> None:
    if shutil.which("docker") is None:
        raise UserError(
            f"the image {image!r} cannot be started: there is no docker client; install docker, or name a URL"
        )
    done = _docker("image", "inspect", "--format", "{{.Id}}", image)
    if done.returncode:
        reason = " ".join(done.stderr.split())[-300:]
        raise UserError(f"the image {image!r} cannot be started: {reason}; build or pull it, or name a URL")


def run_options(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"the option docker_run is {text!r}, which is no command line: {error}") from None


async def _url_of(container: Container, port: int) -> str:
    while True:
        container.check_runs()
        state = await asyncio.to_thread(
            _docker, "inspect", "--format", "{{.State.Running}} {{.HostConfig.NetworkMode}}", container.name
        )
        running, _, network = state.stdout.strip().partition(" ")
        if running == "true" and network == "host":
            return f"http://127.0.0.1:{port}"
        if running == "true":
            addresses = (await asyncio.to_thread(_docker, "port", container.name, f"{port}/tcp")).stdout.split()
            if addresses:
                return f"http://127.0.0.1:{addresses[0].rpartition(':')[2]}"
        await asyncio.sleep(_POLL_SECONDS)


async def _until_answered(container: Container) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=5.0, verify=False) as client:
        while True:
            container.check_runs()
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"{container.url}/schema")).status_code < 500:
                    return
            await asyncio.sleep(_POLL_SECONDS)


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": _ASK_SECONDS}
    return subprocess.run(["docker", *arguments], stdin=subprocess.DEVNULL, check=False, **options)
