"""The image of this machine: what is in it, what is not, and that it is made once."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import contrib.workspaces.images.host_image as module
from contrib.workspaces.images.cache import cached
from contrib.workspaces.images.host_image import host_image
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.machines.conftest import open_one
from forge_env.core.errors import SandboxError, UserError
from sandboxes.host.packages import Packages


def test_the_image_has_a_shell_tools_python_and_the_named_packages() -> None:
    image = host_image(("pytest",))
    assert find_image("host:pytest") == image and image.digest.startswith("sha256:")
    for program in ("bin/sh", "usr/bin/grep", "usr/local/bin/python3"):
        assert os.access(image.root / program, os.X_OK)
    library = image.root / f"usr/local/lib/python3.{sys.version_info.minor}"
    assert (library / "site-packages/pytest/__init__.py").is_file() and (library / "json/__init__.py").is_file()
    assert list((library / "site-packages/pytest/__pycache__").glob("__init__.*.pyc"))
    assert not (library / "test").exists() and not (library / "site-packages/torch").exists()


def test_threads_that_ask_at_once_look_through_the_packages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], module.find_packages

    def find(names: Sequence[str]) -> Packages:
        asked.append(names)
        return real(names)

    monkeypatch.setattr(module, "find_packages", find)
    with ThreadPoolExecutor(8) as threads:
        images = list(threads.map(host_image, [("pytest", "pluggy")] * 8))
    assert len({image.root for image in images}) == 1 and len(asked) == 1


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("FORGE_ENV_IMAGES", str(tmp_path))
    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(SandboxError, match=r"cannot be made in .*No space left on device; free some room there"):
        host_image()
    assert list(tmp_path.iterdir()) == []


def test_no_link_leads_out_of_the_image_and_nothing_in_it_is_a_link_to_a_file_of_the_machine() -> None:
    root = host_image(("pytest",)).root
    for path in root.rglob("*"):
        if path.is_symlink():
            assert path.resolve().is_relative_to(root), path
        elif path.is_file():
            assert path.stat().st_nlink == 1, path


async def test_the_python_of_the_image_runs_by_its_own_files() -> None:
    async with open_workspaces() as workspaces, open_one(workspaces, host_image(("pytest",))) as workspace:
        command = "python3 -c 'import ctypes, json, pytest, sqlite3; print(json.__file__)'; echo a | grep -c a"
        result = await workspace.exec(command)
    assert result.stdout.startswith("/usr/local/lib/python") and result.stdout.endswith("\n1\n"), result


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("host:nothing_of_this_name", "'nothing_of_this_name' is not installed here"),
        ("debian:12", "there is no image 'debian:12'"),
        ("", "there is no image ''"),
        ("/no/such/folder", "there is no folder"),
    ],
)
def test_an_image_that_is_not_there_is_one_sentence(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find_image(name)


def test_a_folder_is_an_image(tmp_path: Path) -> None:
    assert find_image(str(tmp_path)).root == tmp_path


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("FORGE_ENV_IMAGES", str(tmp_path / "file" / "images"))
    with pytest.raises(SandboxError, match="cannot be written .*set FORGE_ENV_IMAGES"):
        cached("a", lambda folder: None)
