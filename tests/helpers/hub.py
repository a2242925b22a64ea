"""A model hub on loopback: what huggingface_hub asks of it for one file after another."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainers.setup.plan import with_hub
from trainers.setup.run_plan import RunPlan

COMMIT = "c" * 40


def read_later(plan: RunPlan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    """The plan of a start which finds the config.json of this folder on the hub."""
    assert plan.model.missing and plan.shape is None
    with monkeypatch.context() as patched:
        cached = "trainers.model.find._cached_config"
        patched.setattr("trainers.setup.plan.fetch_config", lambda _: patched.setattr(cached, lambda _: folder))
        return with_hub(plan)


@contextmanager
def hub(files: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Serve the files of every repository; gives the hub's URL, and the names of the files that were downloaded."""
    sent: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            file = self.path.rpartition("/")[2]
            body = files[file]
            if with_body:
                sent.append(file)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body.encode())))
            self.send_header("ETag", f'"{hashlib.sha1(body.encode()).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_body:
                self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, name="hub")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
