"""Runs `forge-env serve --agent` in a process of its own, and asks it as an agent elsewhere does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.waiting import wait_until

TOKEN = "a-token-that-nobody-guesses"
MODEL = 'def model(messages):\n    return {"role": "assistant", "content": "3"}\n'


@dataclass
class Server:
    """A running server, and a client that has its token."""

    process: subprocess.Popen[str]
    url: str
    client: httpx.Client
    mark: str
    errors: Path

    def take(self, **body: Any) -> dict[str, Any]:
        response = self.client.post("/sessions", json=body)
        assert response.status_code == 201, response.text
        return response.json()

    def chat(self, session: dict[str, Any], text: str = "go") -> httpx.Response:
        return self.client.post(
            "/v1/chat/completions",
            json={"model": "policy", "messages": [{"role": "user", "content": text}]},
            headers={"Authorization": f"Bearer {session['api_key']}"},
        )

    def finish(self, session: dict[str, Any], **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {session['api_key']}"}
        return self.client.post(f"/sessions/{session['id']}/finish", json=body, headers=headers)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal the server, and return its exit code; no process of it is left."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        wait_until(lambda: not marked(self.mark), "no process of the server is left")
        return code


def marked(mark: str) -> list[int]:
    """The living processes that were started with a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@contextmanager
def serving(
    folder: Path, *options: str, agent: str = "scripted:model.py:model", seconds: float = 60
) -> Iterator[Server]:
    """Serve an agent into `folder/run`; with a scripted one, its model says "3"."""
    (folder / "model.py").write_text(MODEL)
    mark = f"forge-test-{uuid.uuid4()}"
    errors = folder / f"{mark}.txt"
    command = [sys.executable, "-m", "forge_env", "serve", "--agent", agent, "--out", "run", "--json", *options]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "FORGE_ENV_TOKEN": TOKEN, "FORGE_TEST_MARK": mark},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # A shell's background job, and with it these tests, may have been started with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, errors.read_text()
        url = json.loads(line)["url"]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
            yield Server(process, url, client, mark, errors)
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def forge_env(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of forge-env."""
    return subprocess.run(
        [sys.executable, "-m", "forge_env", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )
