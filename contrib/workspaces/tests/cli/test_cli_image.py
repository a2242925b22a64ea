"""`forge-env image`: pull, list, build, prune, and one sentence for what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from contrib.workspaces.tests.image_files import ImageFiles, entry, layer, write_archive
from contrib.workspaces.tests.made_images import make_small_image
from forge_env.cli.main import main

if sys.platform != "linux":
    pytest.skip("workspaces need Linux", allow_module_level=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORGE_ENV_IMAGES", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main(["image", *arguments, "--json"])
    return code, json.loads(capfd.readouterr().out)


def test_an_image_from_pull_to_prune(tmp_path: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    archive = write_archive(
        tmp_path / "a.tar", {"a:1": ImageFiles([layer(entry("file", b"12345"))], run={"User": "7"})}
    )
    code, pulled = run(capfd, "pull", str(archive), "--name", "ghcr.io/me/b:2")
    assert code == 0 and Path(pulled["root"], "file").read_text() == "12345"
    code, listed = run(capfd, "list")
    (image,) = listed["images"]
    assert (image["names"], image["bytes"], image["user"]) == (["a:1", "ghcr.io/me/b:2"], 5, "7")
    assert main(["image", "list"]) == 0
    shown = capfd.readouterr().out
    assert "a:1, ghcr.io/me/b:2" in shown and pulled["id"][7:19] in shown and "0.0 MB" in shown
    assert main(["image", "prune", "a:1"]) == 0 and capfd.readouterr().out == "0.0 MB freed\n"
    assert run(capfd, "prune", "--all") == (0, {"removed": ["ghcr.io/me/b:2"], "in_use": [], "bytes": 5})
    assert main(["image", "list"]) == 0 and f"no images in {cache}" in capfd.readouterr().out


def test_a_build(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_small_image(tmp_path / "root")
    (tmp_path / "Dockerfile").write_text(f"FROM {tmp_path}/root\nRUN echo built > /made\n")
    code, built = run(capfd, "build", str(tmp_path), "--name", "mine")
    assert code == 0 and Path(built["root"], "made").read_text() == "built\n"
    assert run(capfd, "list")[1]["images"][0]["names"] == ["mine:latest"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pull", "Not A Name"], "'Not A Name' is no name of an image: write [REGISTRY/]REPOSITORY"),
        (["pull", "./nothing.tar"], "there is no folder "),
        (["build", ".", "--name", "a", "--timeout", "0"], "--timeout is 0; it must be above 0"),
        (["build", "nowhere", "--name", "a"], "cannot be read"),
        (["build", "."], "Missing option '--name'; see forge-env"),
        (["prune", "nothing:1"], "there is no image 'nothing:1' in the cache. Available: none."),
    ],
)
def test_a_mistake_is_one_sentence(capfd: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert main(["image", *arguments]) == 2
    error = capfd.readouterr().err
    assert sentence in error and error.strip().splitlines()[-1].startswith("error: ")
