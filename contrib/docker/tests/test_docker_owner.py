"""Containers are removed whatever the engine answers first; here it is a small server that speaks its protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from contrib.docker.engine import Engine
from contrib.docker.owner import remove
from forge_env.core.errors import SandboxError
from tests.helpers.packages import needs

pytestmark = needs("docker")
NAME = "0123456789ab"
ENDED = (500, f"Could not kill running container {NAME}, cannot remove - Container {NAME} is not running")
BROKEN = (500, "the disk is full")
MISSING = (404, f"No such container: {NAME}")
REMOVING = (409, f"removal of container {NAME} is already in progress")
REMOVED = (204, "")
Answers = Callable[..., tuple[Engine, list[str]]]


@pytest.fixture
def answering() -> Iterator[Answers]:
    """Makes an engine that gives these answers, one after another; with the requests that it has had."""
    import docker

    opened: list[tuple[Engine, ThreadingHTTPServer, threading.Thread]] = []

    def make(*answers: tuple[int, str]) -> tuple[Engine, list[str]]:
        asked: list[str] = []

        class Answering(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                status, message = answers[len(asked)]
                asked.append(self.path)
                body = json.dumps({"message": message}).encode() if message else b""
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        client = docker.DockerClient(base_url=f"tcp://127.0.0.1:{server.server_port}", version="1.41")
        opened.append((Engine(client, {"Architecture": "x86_64"}), server, thread))
        return opened[-1][0], asked

    yield make
    for engine, server, thread in opened:
        engine.close()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("last", [REMOVED, MISSING, REMOVING])
async def test_a_container_that_ends_as_it_is_removed_is_removed(answering: Answers, last: tuple[int, str]) -> None:
    engine, asked = answering(ENDED, ENDED, last)
    await remove(engine, NAME)
    assert len(asked) == 3 and all(f"/containers/{NAME}?" in path and "force=True" in path for path in asked)


async def test_another_error_of_the_engine_is_told(answering: Answers) -> None:
    engine, asked = answering(ENDED, BROKEN)
    with pytest.raises(SandboxError, match="the engine failed: 500 Server Error .*the disk is full"):
        await remove(engine, NAME)
    assert len(asked) == 2
