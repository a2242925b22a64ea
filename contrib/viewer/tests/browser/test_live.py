"""The tab Live in a real browser: it is there while a run goes on, and its buttons act."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contrib.live.server import LiveServer
from contrib.live.tests.test_live_server import Served
from contrib.viewer.tests.browser.conftest import Watch, until
from contrib.viewer.tests.runs import training_run


@contextmanager
def going_on(folder: Path) -> Iterator[Served]:
    """A run that is served by an event loop in a thread: this one has Playwright's."""
    run, loop, server = Served(folder), asyncio.new_event_loop(), LiveServer(folder)
    queue = {"steps_done": 2, "ready": 1, "open": 3, "groups_per_step": 2, "engine_steps": 2, "most_behind": 1}
    run.controls.queue = lambda: queue | {"waited_for": [7]}

    async def serve() -> None:
        server.begin(run)  # type: ignore[arg-type]
        begun.set()
        await ended.wait()
        server.stop()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    begun, ended = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(20)
        yield run
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        loop.close()


def test_a_run_is_paused_and_its_limit_is_set(tmp_path: Path, view: Watch) -> None:
    folder = training_run(tmp_path / "run")
    with going_on(folder) as run:
        watched = view(folder)
        watched.poll()
        page = watched.go("#/run/live", "#main select")
        assert "1 of 3 groups are ready, and 2 make a step; the next step waits for group 7" in page.content()
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("pauses before the next step").first.wait_for()
        assert run.controls.is_paused
        page.get_by_label("Limit", exact=True).select_option("env.max_turns")
        page.get_by_label("Value of the limit").fill("<b>0")
        page.get_by_role("button", name="Set").click()
        page.get_by_text("env.max_turns is '<b>0'; it must be a whole number").first.wait_for()
        [refusal] = watched.wrong  # the browser's console says that the answer was a refusal
        assert refusal.endswith("400 (Bad Request)")
        watched.wrong.clear()
        assert page.get_by_role("link", name="Live").is_visible()
    until(page, "document.activeElement.blur() || true")
    watched.poll()
    until(page, "document.getElementById('main').innerText.includes('no training run goes on in')")
