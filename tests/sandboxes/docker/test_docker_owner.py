"""Removing a container whose engine answers with errors: a server on loopback gives the answers of an engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from platform import machine

import pytest

pytest.importorskip("docker")

from forge_env.core.errors import SandboxError
from sandboxes.docker.engine import Engine
from sandboxes.docker.owner import remove

ENDED = 500, "Could not kill running container abc, cannot remove - Container abc is not running"
GONE = 404, "No such container: abc"
REFUSED = 400, "the request has no sense"
Answers = list[tuple[int, str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answers], Answers]]:
    """Serve an engine that answers requests for removal with these errors, in order, and then removes."""
    servers = []

    def serve(answers: Answers) -> Answers:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                version = {"ApiVersion": "1.41", "OSType": "linux", "Architecture": machine()}
                self._answer(200, json.dumps(version).encode())

            do_HEAD = do_GET

            def do_DELETE(self) -> None:
                status, message = answers.pop(0) if answers else (204, "")
                self._answer(status, json.dumps({"message": message}).encode() if message else b"")

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        return answers

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("answers", "left"),
    [([], 0), ([ENDED], 0), ([ENDED, ENDED], 0), ([ENDED, GONE], 0), ([GONE, ENDED], 1)],
    ids=["at once", "it ends just then", "twice", "the engine removes it", "it is gone"],
)
async def test_a_container_that_ends_while_it_is_removed_is_removed(
    serve: Callable[[Answers], Answers], answers: Answers, left: int
) -> None:
    answers = serve(list(answers))
    engine = await Engine.connect()
    await remove(engine, "abc")
    assert len(answers) == left
    engine.close()


@pytest.mark.parametrize(("answers", "left"), [([ENDED] * 5, 2), ([REFUSED] * 5, 4)], ids=["engine", "request"])
async def test_an_engine_that_keeps_failing_is_an_error(
    serve: Callable[[Answers], Answers], answers: Answers, left: int
) -> None:
    answers = serve(list(answers))
    engine = await Engine.connect()
    with pytest.raises(SandboxError, match=f"the engine failed: .*{answers[0][1]}"):
        await remove(engine, "abc")
    assert len(answers) == left
    engine.close()
