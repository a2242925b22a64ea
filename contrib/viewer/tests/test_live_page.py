"""The page acts on a run that goes on: only the page itself, only on loopback, and others wait until it lets go."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contrib.live.client import LiveClient
from contrib.live.server import LiveServer
from contrib.live.tests.test_live_server import Served
from contrib.viewer.library import Library
from contrib.viewer.report.run_data import read_run
from contrib.viewer.report.tables import actions
from contrib.viewer.server import ViewServer
from contrib.viewer.tests.runs import training_run
from forge_env.core.errors import UserError


def post(server: ViewServer, body: Any, **headers: str) -> tuple[int, str]:
    """Status and body; the headers are those of the page, unless others are given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    sent = {"Cookie": f"{server.cookie}={server.token}", "Content-Type": "application/json"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/api/0/act", body if isinstance(body, bytes) else json.dumps(body), sent)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[tuple[Served, ViewServer]]:
    run = Served(training_run(tmp_path / "run"))
    server = LiveServer(run.folder)
    server.begin(run)  # type: ignore[arg-type]
    with Library(run.folder) as library, ViewServer(library) as viewer:
        yield run, viewer
    server.stop()


async def test_the_page_looks_and_acts(live: tuple[Served, ViewServer]) -> None:
    run, viewer = live
    status, text = await asyncio.to_thread(post, viewer, {"action": "pause"})
    assert (status, json.loads(text)["text"][:6]) == (200, "pauses") and run.controls.is_paused
    assert "forge-env view, process" in await run.ask("resume")
    seen = await asyncio.to_thread(viewer.library.answer, "0/live", {})
    assert seen["state"]["paused"] and [each["action"] for each in seen["actions"]] == ["pause"]
    assert (await asyncio.to_thread(viewer.library.answer, "0/state", {}))["goes_on"]
    status, text = await asyncio.to_thread(post, viewer, {"action": "set", "value": "env.max_turns=0"})
    assert status == 400 and "env.max_turns is 0; it must be at least 1" in text
    assert (await asyncio.to_thread(post, viewer, {"action": "release"}))[0] == 200
    async with asyncio.timeout(20):
        while await run.ask("resume") != "goes on":
            await asyncio.sleep(0.01)
    table = actions(read_run(run.folder))
    assert table is not None and [row[3] for row in table.rows] == ["pause", "resume"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Cookie": "none=1"}, {"action": "pause"}, 403),
        ({"Host": "evil.example"}, {"action": "pause"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, {"action": "pause"}, 403),
        ({"Content_Type": "text/plain"}, {"action": "pause"}, 403),
        ({}, b"x" * 5000, 413),
        ({}, b"[]", 400),
        ({}, b"{", 400),
    ],
)
async def test_only_the_page_acts(
    live: tuple[Served, ViewServer], headers: dict[str, str], body: Any, status: int
) -> None:
    run, viewer = live
    assert (await asyncio.to_thread(lambda: post(viewer, body, **headers)))[0] == status
    assert not run.controls.is_paused


async def test_a_viewer_on_the_network_only_shows(live: tuple[Served, ViewServer]) -> None:
    run, viewer = live
    viewer.host = "0.0.0.0"
    status, text = await asyncio.to_thread(post, viewer, {"action": "pause"})
    assert status == 400 and "a viewer at 0.0.0.0 only shows runs" in text and not run.controls.is_paused


def test_a_run_that_has_ended_says_so(tmp_path: Path) -> None:
    with Library(training_run(tmp_path / "run")) as library, ViewServer(library) as viewer:
        seen = library.answer("0/live", {})
        assert seen["state"] is None and seen["ended"].startswith("no training run goes on in ")
        status, text = post(viewer, {"action": "pause"})
        assert status == 400 and "no training run goes on in" in text
    with pytest.raises(UserError, match="no training run goes on in"):
        LiveClient(tmp_path / "run", "a test")
