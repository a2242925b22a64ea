"""A headless Chromium, and pages of the viewer in it whose forbidden actions are recorded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forge_env.viewer.library import Library
from forge_env.viewer.server import ViewServer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REMEDY = "no Chromium was found: install one (Debian: apt-get install chromium), or name it in FORGE_ENV_CHROMIUM"
ARGUMENTS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


GO = """(hash) => {
  document.getElementById("main").dataset.place = "";
  if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
  location.hash = hash;
}"""


class Watched:
    """A page, and its forbidden actions: dialogs, errors, requests to other places."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.url = origin
        self.wrong: list[str] = []
        origin_parts = urlsplit(origin)[:2]
        page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("pageerror", lambda error: self.wrong.append(f"error {error}"))
        page.on("popup", lambda popup: self.wrong.append(f"popup {popup.url}"))
        page.on("download", lambda download: self.wrong.append(f"download {download.url}"))
        page.on("console", self._hear)
        page.on(
            "request",
            lambda request: (
                None
                if urlsplit(request.url)[:2] == origin_parts or request.url.startswith("data:")
                else self.wrong.append(f"request {request.url}")
            ),
        )

    def _hear(self, message: Any) -> None:
        refused = any(word in message.text for word in ("Content Security", "Trusted", "Refused", "violat"))
        if message.type == "error" and (refused or "404" not in message.text):
            self.wrong.append(f"console {message.text}")

    def go(self, place: str, wait: str = "#main h1") -> Any:
        """Open a place of the page, and wait until it is drawn."""
        self.page.evaluate(GO, place)
        drawn(self.page)
        self.page.wait_for_selector(wait, state="attached")
        return self.page


def until(page: Any, condition: str, argument: Any = None) -> None:
    """Wait until an expression is true in the page; Playwright's wait needs eval, which the page forbids."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, f"{condition} is not true: {page.locator('#main').inner_text()[:500]}"
        page.wait_for_timeout(20)


def drawn(page: Any) -> None:
    """Wait until the page shows what its address says: what is there before may be gone in a moment."""
    until(page, "document.getElementById('main').dataset.place === location.hash")


Open = Callable[..., Watched]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ended with the module: while Playwright runs, this thread has an event loop that no other test may meet."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: make setup installs it"
    )
    program = os.environ.get("FORGE_ENV_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(REMEDY)
    arguments = [*ARGUMENTS, *(["--no-sandbox"] if os.getuid() == 0 else [])]
    environ = {**os.environ, "HOME": str(tmp_path_factory.mktemp("home"))}  # it writes there, whatever its profile is
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=program, args=arguments, env=environ)
        yield started
        started.close()


@pytest.fixture
def watch(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Open an address in a browser context of its own; forbidden actions fail the test."""
    contexts: list[Any] = []
    pages: list[Watched] = []

    def open_page(url: str, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        watched = Watched(context.new_page(), url)
        pages.append(watched)
        watched.page.goto(url)
        watched.page.wait_for_selector("#main h1", state="attached")
        drawn(watched.page)
        return watched

    yield open_page
    for context in contexts:
        context.close()
    assert [wrong for watched in pages for wrong in watched.wrong] == []


@pytest.fixture
def view(watch: Callable[..., Watched]) -> Iterator[Open]:
    """Serve a run, and open it."""
    servers: list[tuple[Library, ViewServer]] = []

    def open_run(run: Path, *, at: str = "", indexed: bool = True, **options: Any) -> Watched:
        library = Library(run).__enter__()
        server = ViewServer(library).__enter__()
        servers.append((library, server))
        if indexed:
            for opened in library.runs:
                opened.open()
                opened.update_index()
        return watch(server.url + at, **options)

    yield open_run
    for library, server in servers:
        server.__exit__(None, None, None)
        library.__exit__(None, None, None)
