"""Dockerfiles that are built into the cache, and what is removed from it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contrib.workspaces.contract import WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.images.build import build_with_forge, build_with_program, choose_builder
from contrib.workspaces.images.cache import cached, in_use
from contrib.workspaces.images.manifest import MACHINE
from contrib.workspaces.images.prune import prune
from contrib.workspaces.images.resolve import find_image, pull_image
from contrib.workspaces.images.store import named_images, stored_images
from contrib.workspaces.open import open_workspace, open_workspaces
from contrib.workspaces.tests.image_files import ImageFiles, entry, hard_link, layer, write_archive
from contrib.workspaces.tests.made_images import make_small_image
from forge_env.core.errors import UserError

LIMITS = WorkspaceLimits(memory_bytes=2**29, disk_bytes=2**28, wall_s=60)
Write = Callable[[str], Path]


@pytest.fixture
def write(cache: Path, tmp_path: Path) -> Write:
    """Writes the folder of a Dockerfile that begins with FROM a small image."""
    root = tmp_path / "root"
    make_small_image(root)

    def write(text: str) -> Path:
        folder = tmp_path / "context"
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM {root}\n{text}")
        (folder / "data").write_text("data\n")
        return folder

    return write


async def test_a_dockerfile_becomes_an_image_of_the_cache(write: Write, cache: Path) -> None:
    limits = replace(LIMITS, transfer_bytes=2)  # of what goes in and out; the files of a build may fill its disk
    folder = write(
        "ENV A=1\nWORKDIR /data\nCOPY data /data/\n"
        "RUN ln data hard; ln -s data soft; chmod 4755 data; rm /bin/wc; mkfifo f\n"
        "RUN mkdir closed; touch closed/x; chmod 700 closed; chown 1000:1000 closed closed/x\nUSER 1000\n"
    )
    assert choose_builder(folder) == "forge", "only forge_env has a folder as an image"
    async with open_workspaces() as workspaces:
        image = await build_with_forge(workspaces, folder, "mine:1", limits=limits, timeout_s=60)
        users = workspaces.capabilities.users
    assert find_image("mine:1") == image == find_image(image.digest[:30])
    assert (image.env["A"], image.workdir, image.user) == ("1", "/data", "1000")
    work = image.root / "data"
    assert sorted(path.name for path in work.iterdir()) == ["closed", "data", "hard", "soft"]
    assert (work / "data").samefile(work / "hard") and os.readlink(work / "soft") == "data"
    assert stat.S_IMODE((work / "data").stat().st_mode) == 0o4755 and not (image.root / "bin/wc").exists()
    if os.geteuid() == 0:
        assert (work / "closed/x").stat().st_uid == 1000 and (work / "data").stat().st_uid == 0
    assert list((image.root / "proc").iterdir()) == list((image.root / "dev").iterdir()) == []
    async with open_workspace(image) as workspace:
        result = await workspace.exec("cat data; echo $A; id -u", user=None if users else "0")
    assert result.stdout == f"data\n1\n{1000 if users else 0}\n", result
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


async def test_common_forms_of_a_dockerfile_are_built(write: Write, cache: Path) -> None:
    mount = "--mount=type=cache,target=/var/cache/pip --mount=target=/x,type=cache"
    folder = write(
        f'SHELL ["/bin/bash", "-c"]\nRUN {mount} [[ a == a ]] && echo yes > /said\nRUN ["touch", "/listed"]\n'
    )
    text = (folder / "Dockerfile").read_text().replace("FROM ", f"FROM --platform=linux/{MACHINE} ", 1)
    (folder / "Dockerfile").write_text(text.replace("\n", " AS base\n", 1))
    async with open_workspaces() as workspaces:
        image = await build_with_forge(workspaces, folder, "mine:1", limits=LIMITS, timeout_s=60)
    assert (image.root / "said").read_text() == "yes\n" and (image.root / "listed").exists()


async def test_a_build_that_fails_leaves_nothing(write: Write, cache: Path) -> None:
    folder = write("RUN echo no; exit 7\n")
    async with open_workspaces() as workspaces:
        small = replace(LIMITS, disk_bytes=2**20)
        with (folder / "large").open("wb") as file:
            file.truncate(2**20 + 1)
        (folder / "Dockerfile").write_text((folder / "Dockerfile").read_text().replace("RUN", "COPY large /\nRUN"))
        with pytest.raises(UserError, match="Dockerfile:2: COPY large /: the files cannot be copied: .* has more than"):
            await build_with_forge(workspaces, folder, "mine:1", limits=small, timeout_s=60)
        (folder / "large").write_bytes(b"x")
        with pytest.raises(UserError, match=r"Dockerfile:3: RUN echo no; exit 7: it ended with nonzero \(7\): no"):
            await build_with_forge(workspaces, folder, "mine:1", limits=LIMITS, timeout_s=60)
        with pytest.raises(UserError, match="'Mine' is no name of an image"):
            await build_with_forge(workspaces, folder, "Mine", limits=LIMITS, timeout_s=60)
    assert stored_images() == [] and named_images() == {}


async def test_an_export_is_bounded_and_needs_a_new_file(cache: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with open_workspace(make_small_image(root)) as workspace:
        with pytest.raises(WorkspaceFileError, match="the files have more than 1000 bytes"):
            await workspace.export(tmp_path / "a.tar", max_bytes=1000)
        with pytest.raises(WorkspaceFileError, match="exists: an export needs a new file"):
            await workspace.export(tmp_path / "a.tar")
        assert (await workspace.exec("echo alive")).stdout == "alive\n"


def test_programs_that_are_not_here(write: Write) -> None:
    folder = write("")
    with pytest.raises(UserError, match="nothing is not installed, or its daemon does not answer: use --with forge"):
        build_with_program("nothing", folder, "a", timeout_s=5)


def test_a_dockerfile_of_a_program(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends, hangs or fails as buildah does; the archive is a real one."""
    archive = write_archive(tmp_path / "made.tar", {"docker.io/library/a:1": ImageFiles([layer(entry("made"))])})
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "buildah"
    script.write_text(f'#!/bin/sh\n[ $1 = bud ] && exit 0\np=${{3#docker-archive:}}\ncp {archive} "${{p%%:*}}"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    folder = write("")
    image = build_with_program("buildah", folder, "b:1", timeout_s=60)
    assert [path.name for path in image.root.iterdir()] == ["made"] and find_image("b:1") == image
    script.write_text("#!/bin/sh\necho it is broken >&2; exit 3\n")
    with pytest.raises(UserError, match="`buildah bud` failed with exit code 3: it is broken"):
        build_with_program("buildah", folder, "b:1", timeout_s=60)
    script.write_text("#!/bin/sh\nsleep 100 & sleep 100\n")
    with pytest.raises(UserError, match="`buildah bud` did not end in 0.5 s, the limit"):
        build_with_program("buildah", folder, "b:1", timeout_s=0.5)


@pytest.mark.skipif(not shutil.which("docker"), reason="no docker")
def test_docker_is_chosen_only_if_its_daemon_answers(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write("")
    (folder / "Dockerfile").write_text("FROM debian:12\n")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    assert choose_builder(folder) != "docker"


def pull(tmp_path: Path, name: str, *layers: bytes) -> str:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.tar"
    return pull_image(str(write_archive(path, {name: ImageFiles(layers)}))).digest[7:]


BASE = layer(entry("base", b"b" * 1000), hard_link("other", "base"))


def test_prune_removes_what_nobody_uses(cache: Path, tmp_path: Path) -> None:
    old = pull(tmp_path, "a:1", BASE, layer(entry("x", b"x" * 500)))
    new = pull(tmp_path, "a:1", BASE, layer(entry("y")))
    (cache / "layers/.partial-left").mkdir()
    assert {stored.id: stored.names for stored in stored_images()} == {old: (), new: ("docker.io/library/a:1",)}
    result = prune()
    assert (result.removed, result.in_use, result.bytes) == ([old[:12]], [], 500)
    assert [stored.id for stored in stored_images()] == [new] and len(list((cache / "layers").iterdir())) == 2
    assert (find_image("a:1").root / "other").read_bytes() == b"b" * 1000
    assert prune().removed == []


def test_prune_by_name_and_what_is_in_use(cache: Path, tmp_path: Path) -> None:
    one = pull(tmp_path, "a:1", BASE)
    assert pull(tmp_path, "b:1", BASE) == one
    pull(tmp_path, "c:1", layer(entry("c", b"c")))
    host = cached("host-1", lambda folder: (folder / "file").write_text("12345") and None)
    with pytest.raises(UserError, match="there is no image 'd:1' in the cache. .*Available: a:1, b:1, c:1"):
        prune(["a:1", "d:1"])
    assert prune(["a:1"]).removed == [] and set(named_images()) == {"docker.io/library/b:1", "docker.io/library/c:1"}
    with in_use(find_image("c:1").root), in_use(host):
        result = prune([one[:12], "c:1"])
        assert (result.removed, result.in_use, result.bytes) == (["b:1"], ["c:1"], 1000)
        assert find_image("c:1").root.is_dir(), "it keeps its name"
        assert prune(everything=True).in_use == ["c:1", "host-1"]
    assert sorted(prune(everything=True).removed) == ["c:1", "host-1"]
    assert named_images() == {} and stored_images() == [] and not list((cache / "layers").iterdir())
