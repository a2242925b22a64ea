"""A headless Chromium, and pages of the viewer in it whose forbidden actions are recorded."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from contrib.viewer.library import Library
from contrib.viewer.server import ViewServer

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

    library: Library
    """What the page shows, if the fixture `view` serves it."""

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

    def poll(self) -> None:
        """Let the page look for changes now: its clock is put forward."""
        with self.page.expect_response(lambda response: "/state" in response.url):
            self.page.clock.run_for(2000)

    def go(self, place: str, wait: str = "#main h1") -> Any:
        """Open a place of the page, and wait until it is drawn."""
        self.page.evaluate(GO, place)
        drawn(self.page)
        until(self.page, "(wait) => document.querySelector(wait) !== null", wait)
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


@contextmanager
def serving(path: Path, *, is_indexed: bool = True) -> Iterator[ViewServer]:
    """Serve a run or a folder of runs."""
    with Library(path, follow_seconds=0.1) as library, ViewServer(library) as server:
        if is_indexed:
            index(library)
        yield server


def index(library: Library) -> None:
    """Find all runs, and read each to its end."""
    library.answer("runs", {})
    for run in library.runs:
        run.open()
        run.update_index()


def new_context(browser: Any, **options: Any) -> Any:
    """A browser context whose pages have a clock that a test puts forward."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(20_000)
    context.clock.install()
    return context


@contextmanager
def watching(browser: Any, url: str, **options: Any) -> Iterator[Watched]:
    """Open an address in a page of its own; forbidden actions fail the test.

    Options take a context of their own. Other pages share one, and so its process: to start one takes a second.
    """
    context = new_context(browser, **options) if options else browser.contexts[0]
    watched = Watched(context.new_page(), url)
    try:
        watched.page.goto(url)
        watched.page.wait_for_selector("#main h1", state="attached")
        drawn(watched.page)
        yield watched
    finally:
        (context if options else watched.page).close()
    assert watched.wrong == []


Watch = Callable[..., Watched]


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
        new_context(started)
        yield started
        started.close()


@pytest.fixture
def watch(browser: Any) -> Iterator[Watch]:
    """Open an address."""
    with ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(watching(browser, url, **options))


@pytest.fixture
def view(browser: Any) -> Iterator[Watch]:
    """Serve a run or a folder of runs, and open it."""
    with ExitStack() as stack:

        def open_page(path: Path, *, is_indexed: bool = True, **options: Any) -> Watched:
            server = stack.enter_context(serving(path, is_indexed=is_indexed))
            watched = stack.enter_context(watching(browser, server.url, **options))
            watched.library = server.library
            return watched

        yield open_page
