"""Makes the pictures of the viewer from your runs:  python -m contrib.viewer.tests.browser.screenshots RUNS RUN

RUNS is a folder of runs and RUN the name of a training run in it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from contrib.viewer.library import Library
from contrib.viewer.server import ViewServer

FOLDER = Path(__file__).resolve().parents[2]
PICTURES = {
    "overview": ("overview?smooth=5", "light", 1280, 860),
    "groups": ("groups?phase=train", "dark", 1280, 700),
    "episode": ("EPISODE", "light", 1280, 960),
    "timeline": ("timeline", "light", 1280, 820),
    "phone": ("EPISODE", "dark", 390, 780),
}


def main(runs: Path, name: str) -> None:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    arguments = ["--disable-gpu", *(["--no-sandbox"] if os.getuid() == 0 else [])]
    with Library(runs) as library, ViewServer(library) as server, sync_playwright() as playwright:
        number = next(viewed.number for viewed in library.runs if viewed.run.name == name)
        library.runs[number].open()
        library.runs[number].update_index()
        filters = {"phase": "train", "has": "tool_error", "order": "turns"}
        rows = library.answer(f"{number}/episodes", filters)["rows"] or library.answer(f"{number}/episodes", {})["rows"]
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        for picture, (place, theme, width, height) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            place = place.replace("EPISODE", f"episode?key={rows[0]['key']}&shade=logprob")
            page.goto(f"{server.url}#/{name}/{place}")
            page.wait_for_selector("#main h1")
            page.wait_for_timeout(1000)
            page.screenshot(path=FOLDER / f"{picture}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
