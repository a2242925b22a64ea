"""Images from disk: what is unpacked, what is shared, and what is refused in one sentence."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.images.store import add_image, named_images, stored_images
from contrib.workspaces.open import open_workspace
from contrib.workspaces.tests.image_files import (
    ImageFiles,
    entry,
    folder,
    hard_link,
    layer,
    layer_of,
    link,
    write_archive,
    write_layout,
)
from contrib.workspaces.tests.made_images import make_small_image
from forge_env.core.errors import UserError

BASE = layer(
    folder("./", mode=0o755),
    folder("etc", mode=0o750, uid=3, gid=4),
    entry("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"),
    entry("etc/hidden", b"1"),
    folder("old"),
    entry("old/a", b"a"),
    entry("old/sub/b", b"b"),
    entry("bin/su", b"program", mode=0o4755, uid=5, gid=6),
    hard_link("bin/sudo", "bin/su"),
    link("bin/link", "/etc/passwd"),
    folder("gone"),
    entry("gone/file", b"x"),
    entry("becomes_folder", b"x"),
)
ABOVE = layer(
    entry("etc/.wh.hidden"),
    entry(".wh.gone"),
    folder("old"),
    entry("old/.wh..wh..opq"),
    entry("old/new", b"new"),
    entry("becomes_folder/inside", b"y"),
    entry("bin/su", b"other", mode=0o755),
)


def tree(root: Path) -> dict[str, Any]:
    """Return path -> type and content."""
    names: Iterator[tuple[str, list[str], list[str]]] = os.walk(root)
    result: dict[str, Any] = {}
    for base, folders, files in names:
        for name in (*folders, *files):
            path = Path(base, name)
            shown = str(path.relative_to(root))
            result[shown] = (
                os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder"
            )
    return result


def test_whiteouts_links_owners_and_modes(cache: Path, tmp_path: Path) -> None:
    run = {"Env": ["A=1=2"], "WorkingDir": "work", "User": "5:6", "Cmd": ["sh"], "Entrypoint": ["tini"]}
    image = find_image(str(write_layout(tmp_path / "layout", ImageFiles([BASE, ABOVE], run=run))))
    assert tree(image.root) == {
        "etc": "folder",
        "etc/passwd": b"root:x:0:0::/root:/bin/sh\n",
        "old": "folder",
        "old/new": b"new",
        "bin": "folder",
        "bin/su": b"other",
        "bin/sudo": b"program",
        "bin/link": "/etc/passwd",
        "becomes_folder": "folder",
        "becomes_folder/inside": b"y",
    }
    assert image.env == {"A": "1=2"} and (image.workdir, image.user) == ("/work", "5:6")
    assert (image.entrypoint, image.command) == (("tini",), ("sh",)) and image.digest.startswith("sha256:")
    sudo, etc = (image.root / "bin/sudo").stat(), (image.root / "etc").stat()
    assert stat.S_IMODE(sudo.st_mode) == 0o4755 and sudo.st_mtime == 1_700_000_000
    if os.geteuid() == 0:
        assert (sudo.st_uid, sudo.st_gid, etc.st_uid, etc.st_gid) == (5, 6, 3, 4)
        assert stat.S_IMODE(etc.st_mode) == 0o750, "a folder that a layer only implies keeps its mode"
    assert stat.S_IMODE((cache / "images").stat().st_mode) == 0o700 == stat.S_IMODE((cache / "layers").stat().st_mode)


def test_layers_are_unpacked_once_and_shared(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_image(str(write_layout(tmp_path / "a", ImageFiles([BASE, ABOVE]))))
    third = layer(entry("third", b"3"))
    second = find_image(str(write_archive(tmp_path / "b.tar", {"b:1": ImageFiles([BASE, ABOVE, third])})))
    assert first.root != second.root and (second.root / "third").read_bytes() == b"3"
    assert (first.root / "bin/su").samefile(second.root / "bin/su")
    assert len(list((cache / "layers").iterdir())) == 3
    monkeypatch.setattr("contrib.workspaces.images.store.unpack_layer", None)
    assert find_image(str(tmp_path / "a")) == first, "an image in the cache is not unpacked again"
    again = write_archive(tmp_path / "again.tar", {"a:1": ImageFiles([BASE, ABOVE])})
    assert find_image(str(again)) == first, "the id does not depend on where an image is from"
    assert find_image(first.digest[:19]) == first
    assert {item.id for item in stored_images()} == {first.digest[7:], second.digest[7:]}


async def test_a_workspace_runs_in_an_unpacked_image(cache: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_small_image(root)
    files = ImageFiles([layer_of(root), layer(entry("greeting", b"hello"))], run={"Env": ["WHO=me"], "User": "agent"})
    image = find_image(str(write_layout(tmp_path / "layout", files)))
    async with open_workspace(image) as workspace:
        user = None if workspace.capabilities.users else "0"
        result = await workspace.exec("cat /greeting; echo -n $WHO; ls -ld /home/agent", user=user)
    assert result.stdout.startswith("hellome") and "agent" in result.stdout, result


def test_images_of_an_archive_and_a_layout_by_tag(cache: Path, tmp_path: Path) -> None:
    one, two = ImageFiles([layer(entry("one"))]), ImageFiles([layer(entry("two"))])
    archive = write_archive(tmp_path / "x.tar", {"one:1": one, "two:1": two})
    layout = write_layout(tmp_path / "layout", {"one": one, "two": two})
    assert tree(find_image(f"{archive}:two:1").root).keys() == {"two"} == tree(find_image(f"{layout}:two").root).keys()
    for path, tags in ((archive, "one:1, two:1"), (layout, "one, two")):
        with pytest.raises(UserError, match=f"is one of several: add :TAG, one of {tags}$"):
            find_image(str(path))
        with pytest.raises(UserError, match=f"{path}:three is not there; .* has {tags}$"):
            find_image(f"{path}:three")
    assert named_images() == {}, "a path gives no names"


def test_an_image_for_another_machine_is_refused(cache: Path, tmp_path: Path) -> None:
    image = ImageFiles([BASE], architecture="s390x")
    for path in (write_layout(tmp_path / "a", image), write_archive(tmp_path / "a.tar", {"a": image})):
        with pytest.raises(UserError, match=f"the image {path} is for linux/s390x, but this machine is linux/"):
            find_image(str(path))
    several = write_layout(tmp_path / "b", ImageFiles([BASE], architecture="s390x"))
    index = json.loads((several / "index.json").read_text())
    other = {**index["manifests"][0], "platform": {"os": "linux", "architecture": "mips"}}
    (several / "index.json").write_text(json.dumps({"manifests": [*index["manifests"], other]}))
    with pytest.raises(UserError, match="is for linux/mips, linux/s390x, but this machine"):
        find_image(str(several))
    assert not (cache / "layers").exists(), "nothing was unpacked"


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "other"])
def test_a_broken_layer_leaves_nothing(cache: Path, tmp_path: Path, damage: str) -> None:
    path = write_layout(tmp_path / "layout", ImageFiles([layer(entry("big", os.urandom(2**20)))], compress=bytes))
    largest = max((path / "blobs/sha256").iterdir(), key=lambda blob: blob.stat().st_size)
    content = largest.read_bytes()
    if damage == "missing":
        largest.unlink()
    else:
        changed = {"flip": b"\x01" + content[1:], "cut": content[:-100_000], "other": layer(entry("other"))}
        largest.write_bytes(changed[damage])
    match = "is incomplete: there is no" if damage == "missing" else "is broken: its content has the digest sha256:"
    with pytest.raises(UserError, match=match):
        find_image(str(path))
    assert [list((cache / name).iterdir()) for name in ("layers", "images")] == [[], []]


def test_layers_that_are_not_those_of_the_config(cache: Path, tmp_path: Path) -> None:
    class Liar(ImageFiles):
        @property
        def config(self) -> bytes:
            return ImageFiles([ABOVE]).config

    for path in (write_layout(tmp_path / "a", Liar([BASE])), write_archive(tmp_path / "a.tar", {"a": Liar([BASE])})):
        with pytest.raises(UserError, match="is broken: it unpacks to sha256:.*, but the image says sha256:"):
            find_image(str(path))
    assert list((cache / "layers").iterdir()) == [], "nobody's layer is taken for another one"


@pytest.mark.parametrize(
    ("document", "match"),
    [
        ("[]", "index.json of the image .* is no sound index: "),
        ('{"manifests": []}', "the folder has no image"),
        (
            '{"manifests": [{"digest": "sha256:../../../etc/passwd", "size": 1}]}',
            "manifests.0.digest: String should match",
        ),
        ("{" * 10000, "no sound index"),
    ],
)
def test_a_broken_document_is_one_sentence(cache: Path, tmp_path: Path, document: str, match: str) -> None:
    path = write_layout(tmp_path / "layout", ImageFiles([BASE]))
    (path / "index.json").write_text(document)
    with pytest.raises(UserError, match=match) as raised:
        find_image(str(path))
    assert "\n" not in str(raised.value)


def test_archives_that_are_none(cache: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.tar"
    text.write_text("hello" * 1000)
    other = tmp_path / "other.tar"
    other.write_bytes(layer(entry("manifest", b"x")))
    huge = tmp_path / "huge.tar"
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, 2**30
    huge.write_bytes(member.tobuf())
    os.truncate(huge, 2**30)
    os.mkfifo(tmp_path / "fifo")
    for path, match in (
        (text, "is no archive of `docker save`"),
        (other, "it has no 'manifest.json'"),
        (huge, "a header is too long"),
        (tmp_path / "fifo", "is no file"),
        (tmp_path / "nothing.tar", "there is no folder"),
    ):
        with pytest.raises(UserError, match=match):
            find_image(str(path))


def test_the_same_layer_twice(cache: Path, tmp_path: Path) -> None:
    empty, files = layer(), layer(entry("a"))
    path = write_archive(tmp_path / "a.tar", {"a": ImageFiles([empty, files, empty])})
    assert tree(find_image(str(path)).root) == {"a": b""}


def test_lines_of_progress(cache: Path, tmp_path: Path) -> None:
    from contrib.workspaces.images.layout import Layout

    lines: list[str] = []
    add_image(Layout(write_layout(tmp_path / "a", ImageFiles([BASE]))), progress=lines.append)
    assert len(lines) == 1 and "13 files" in lines[0]
