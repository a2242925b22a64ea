"""Hostile layers: they are refused, or harm nothing outside of their folder; and the limits of unpacking."""

from __future__ import annotations

import bz2
import gzip
import os
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contrib.workspaces.images.unpack import Cancelled, UnpackedLayer, UnpackLimits, unpack_layer
from contrib.workspaces.tests.image_files import entry, folder, hard_link, layer, link
from forge_env.core.errors import SandboxError, UserError
from tests.helpers.ordinary_user import USER, ordinary_python
from tests.helpers.waiting import is_alive, wait_until

SMALL = UnpackLimits(bytes=2**20, files=100, memory_bytes=256 * 2**20, wall_s=60)


def unpack(path: Path, *blocks: bytes, source: Iterable[bytes] = (), **options: Any) -> UnpackedLayer:
    """Unpack a layer that is there, or what a source gives."""
    path.mkdir(exist_ok=True)
    return unpack_layer(source or blocks, path, what="the layer", **options)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside that of the layer, and at the end of its links."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text("mine")
    place.chmod(0o755)
    return place


def assert_untouched(outside: Path) -> None:
    assert [path.name for path in outside.iterdir()] == ["file"]
    info = (outside / "file").stat()
    assert (outside / "file").read_text() == "mine" and (info.st_uid, info.st_nlink) == (os.geteuid(), 1)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755 and stat.S_IMODE(info.st_mode) & 0o7000 == 0


@pytest.mark.parametrize("prefix", ["/", "//", "/./", ""])
def test_absolute_paths_are_below_the_folder(tmp_path: Path, outside: Path, prefix: str) -> None:
    unpack(tmp_path / "layer", layer(entry(f"{prefix}{outside}/file".replace("///", "//"), b"theirs")))
    assert_untouched(outside)
    assert (tmp_path / f"layer/{outside}/file").read_bytes() == b"theirs"


@pytest.mark.parametrize("name", ["../outside/file", "a/../../outside/file", "..", "a/..", "/../outside/file"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE])
def test_paths_that_lead_out_are_refused(tmp_path: Path, outside: Path, name: str, kind: bytes) -> None:
    with pytest.raises(UserError, match=r"the layer cannot be unpacked: the path '.*' leads out of the image$"):
        unpack(tmp_path / "layer", layer(entry(name, type=kind, linkname="x")))
    assert_untouched(outside)


@pytest.mark.parametrize(
    "target", ["{outside}", "../outside", "../../../../../../../../../..{outside}", "/proc/self/cwd"]
)
def test_links_that_lead_out_reach_nothing(tmp_path: Path, outside: Path, target: str) -> None:
    target = target.format(outside=outside)
    hostile = layer(
        link("way", target),
        entry("way/file", b"theirs", mode=0o4777, uid=0),
        entry("way/new", b"theirs"),
        folder("way/folder", mode=0o777, uid=7),
        link("file", f"{target}/file"),
        entry("file", b"theirs"),
        folder("way", mode=0o777, uid=7),
    )
    unpack(tmp_path / "layer", hostile)
    assert_untouched(outside)
    assert (tmp_path / "layer/file").read_bytes() == b"theirs", "a link at the end of a path is replaced"


def test_hard_links_that_lead_out_are_refused(tmp_path: Path, outside: Path) -> None:
    for number, target in enumerate((f"{outside}/file", "../outside/file", "way/file", "/etc/passwd")):
        with pytest.raises(UserError, match=r"the hard link 'mine' .* cannot be made|leads out of the image"):
            unpack(tmp_path / str(number), layer(link("way", str(outside)), hard_link("mine", target)))
        assert_untouched(outside)


def test_whiteouts_name_only_files_beside_them(tmp_path: Path) -> None:
    for number, name in enumerate((".wh.", ".wh..", ".wh...", "a/.wh...")):
        with pytest.raises(UserError, match="names no file"):
            unpack(tmp_path / str(number), layer(entry(name)))
    result = unpack(tmp_path / "layer", layer(entry(".wh..wh.plnk"), entry(".wh..wh.implied")))
    assert result.left_out == 2 and list((tmp_path / "layer").iterdir()) == []


def test_devices_and_pipes_are_left_out_and_attributes_are_not_kept(tmp_path: Path) -> None:
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    special = [entry(f"special{number}", type=kind, devmajor=1, devminor=3) for number, kind in enumerate(kinds)]
    headers = {"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.a": "b"}
    result = unpack(tmp_path / "layer", layer(*special, entry("file", pax_headers=headers)))
    assert result.left_out == 3 and [path.name for path in (tmp_path / "layer").iterdir()] == ["file"]
    assert os.listxattr(tmp_path / "layer/file") == []


def bomb(size: int) -> Iterator[bytes]:
    """A layer with a file of zeros, compressed."""
    member = tarfile.TarInfo("zeros")
    member.size = size
    yield gzip.compress(member.tobuf()) + gzip.compress(bytes(2**20), 9) * (size // 2**20)


BROKEN: dict[str, tuple[bytes, str]] = {
    "bomb": (next(bomb(2**30)), "its files have more than 1048576 bytes, the limit"),
    "tail": (gzip.compress(layer()) + gzip.compress(bytes(2**24)) * 2, r"it unpacks to more than \d+ bytes, the limit"),
    "files": (layer(*(entry(str(number)) for number in range(101))), "it has more than 100 files, the limit"),
    "name": (layer(entry("a" * 300)), "'a{300}' cannot be made .File name too long"),
    "deep": (layer(entry("/".join("a" * 201))), "the path 'a/a.*is too long"),
    "long": (layer(entry("a/" + "b" * 3000)), "is too long"),
    "owner": (layer(entry("x", uid=2**32 - 1)), "an owner or a size that cannot be"),
    "file in path": (layer(entry("a"), entry("a/b")), "'a/b' cannot be made .Not a directory"),
    "loop": (layer(link("a", "b"), link("b", "a"), entry("a/c")), "cannot be made"),
    "escapes": (layer(entry("\x1b[31mred\n", uid=2**32 - 1)), r"'\\x1b\[31mred\\n' has an owner"),
    "text": (b"no archive" * 1000, "it is no sound archive"),
    "gzip": (gzip.compress(layer(entry("x", os.urandom(5000))))[:-2000], "ends too early"),
    "cut": (layer(entry("x", b"y" * 5000))[:2000], "it ends too early, in 'x'"),
    "bz2": (bz2.compress(layer(entry("x"))), "it is no sound archive"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_limit_or_a_rule_is_one_sentence(tmp_path: Path, name: str) -> None:
    data, match = BROKEN[name]
    with pytest.raises(UserError, match=f"the layer cannot be unpacked: .*{match}") as raised:
        unpack(tmp_path / "layer", data, limits=SMALL)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 500


def test_folders_deeper_than_a_path_cannot_be_made_by_links(tmp_path: Path) -> None:
    deep = "/".join("a" * 150)
    with pytest.raises(UserError, match="has too many folders above it"):
        unpack(tmp_path / "layer", layer(folder(deep), link("way", deep), entry(f"way/{deep}/b")))


def test_a_header_that_fills_the_memory(tmp_path: Path) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, 2**30

    def blocks() -> Iterator[bytes]:
        yield member.tobuf()
        for _ in range(2**10):
            yield bytes(2**20)

    with pytest.raises(UserError, match="it takes more memory than the limit"):
        unpack(tmp_path / "layer", source=blocks(), limits=UnpackLimits(memory_bytes=128 * 2**20))


def sparse(size: int, parts: list[tuple[int, bytes]]) -> bytes:
    """A layer with a file with holes, in GNU's format 1.0."""
    table = "\n".join([str(len(parts)), *(f"{offset}\n{len(data)}" for offset, data in parts)]) + "\n"
    content = table.encode().ljust(512, b"\0") + b"".join(data for _, data in parts)
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "holes"}
    return layer(entry("GNUSparseFile.0/holes", content, pax_headers={**headers, "GNU.sparse.realsize": str(size)}))


def test_files_with_holes(tmp_path: Path) -> None:
    result = unpack(tmp_path / "layer", sparse(10**8, [(0, b"begin"), (10**8 - 512, b"e" * 512)]))
    info = (tmp_path / "layer/holes").stat()
    assert result.bytes == info.st_size == 10**8 and info.st_blocks * 512 < 10**6
    with (tmp_path / "layer/holes").open("rb") as file:
        assert file.read(6) == b"begin\0"
        file.seek(-513, os.SEEK_END)
        assert file.read() == b"\0" + b"e" * 512
    for size, parts, match in (
        (2**50, [(0, b"x")], "more than 1048576 bytes, the limit"),
        (100, [(99, b"xx")], "the parts of 'holes' are not in it"),
        (100, [(-5, b"xx")], "the parts of 'holes' are not in it|no sound archive"),
    ):
        with pytest.raises(UserError, match=match):
            unpack(tmp_path / str(size), sparse(size, parts), limits=SMALL)


def test_gzip_in_many_members_and_what_is_set_twice(tmp_path: Path) -> None:
    data = layer(
        entry("a", b"1"),
        folder("a"),
        entry("a/b", b"2"),
        entry("a/b", b"3" * 10**6, mode=0o600),
        link("c", "x"),
        link("c", "y"),
    )
    parts = b"".join(gzip.compress(data[at : at + 3000]) for at in range(0, len(data), 3000))
    unpack(tmp_path / "layer", *(parts[at : at + 999] for at in range(0, len(parts), 999)))
    assert (tmp_path / "layer/a/b").read_bytes() == b"3" * 10**6 and os.readlink(tmp_path / "layer/c") == "y"


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_format_of_tar(tmp_path: Path, kind: int) -> None:
    name = f"{'folder' * 12}/{'ü' * 40}" if kind == tarfile.USTAR_FORMAT else f"{'folder' * 20}/{'ü' * 100}"
    unpack(tmp_path / "layer", layer(entry(name, b"x", mtime=12345), link("l", "x" * 90), kind=kind))
    path = tmp_path / "layer" / name
    assert path.read_bytes() == b"x" and path.stat().st_mtime == 12345


def test_a_time_that_cannot_be(tmp_path: Path) -> None:
    for number, time in enumerate(("nan", "inf", "-5", "1e300")):
        unpack(tmp_path / str(number), layer(entry("x", pax_headers={"mtime": time})))
        assert (tmp_path / f"{number}/x").stat().st_mtime == 0


def test_time_and_the_owners_wish_end_it(tmp_path: Path) -> None:
    def never_ends() -> Iterator[bytes]:
        while True:
            yield tarfile.TarInfo("x").tobuf()

    with pytest.raises(UserError, match=r"was not unpacked in 0.2 s, the limit"):
        unpack(tmp_path / "layer", source=never_ends(), limits=UnpackLimits(wall_s=0.2))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        unpack(tmp_path / "layer", source=never_ends(), cancel_event=cancelled)


def test_what_the_source_raises_ends_it(tmp_path: Path) -> None:
    def fails() -> Iterator[bytes]:
        yield bytes(512)
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        unpack(tmp_path / "layer", source=fails())
    assert children_of(os.getpid()) == []


def test_a_killed_unpacker_is_a_fault(tmp_path: Path) -> None:
    def kills() -> Iterator[bytes]:
        yield tarfile.TarInfo("x").tobuf()
        wait_until(lambda: children_of(os.getpid()))
        for child in children_of(os.getpid()):
            os.kill(child, signal.SIGKILL)
        yield bytes(2**20)

    with pytest.raises(SandboxError, match="ended without a report: it was killed"):
        unpack(tmp_path / "layer", source=kills())


def children_of(pid: int) -> list[int]:
    """Return the child processes that unpack."""
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            if b"guest_unpack" in Path(f"/proc/{child}/cmdline").read_bytes():
                children.append(child)
    return children


_OWNER = """
import sys, tarfile, time
from pathlib import Path
from contrib.workspaces.images.cache import cached
from contrib.workspaces.images.unpack import unpack_layer

def blocks():
    member = tarfile.TarInfo("x")
    member.size = 2**20
    yield member.tobuf() + bytes(2**19)
    print("half", flush=True)
    sys.stdin.read()

cached("layers/a", lambda folder: unpack_layer(blocks(), folder, what="the layer") and None)
"""


def test_a_killed_owner_leaves_nothing(cache: Path) -> None:
    from contrib.workspaces.images.cache import cached

    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin is not None and owner.stdout is not None
    with owner:
        assert owner.stdout.readline() == b"half\n"
        wait_until(lambda: children_of(owner.pid))
        (launcher,) = children_of(owner.pid)
        wait_until(lambda: _children(launcher))
        (unpacker,) = map(int, _children(launcher))
        (partial,) = (cache / "layers").iterdir()
        cached("layers/b", lambda folder: None)
        assert partial.exists(), "what a live process builds is not taken for a leftover"
        owner.kill()
        owner.wait()
    wait_until(lambda: not is_alive(launcher) and not is_alive(unpacker))
    cached("layers/c", lambda folder: None)
    assert sorted(path.name for path in (cache / "layers").iterdir()) == ["b", "c"]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_process_has_no_privileges_and_sees_nothing(tmp_path: Path) -> None:
    states: dict[str, str] = {}

    def looks() -> Iterator[bytes]:
        yield layer(entry("x"))[:1024]
        wait_until(lambda: children_of(os.getpid()))
        (launcher,) = children_of(os.getpid())
        wait_until(lambda: _children(launcher))
        child = _children(launcher)[0]
        wait_until(lambda: "Seccomp:\t2" in Path(f"/proc/{child}/status").read_text())
        lines = Path(f"/proc/{child}/status").read_text().splitlines()
        states.update(line.split(":\t", 1) for line in lines if ":\t" in line)
        states["root"] = ",".join(os.listdir(f"/proc/{child}/root"))
        for kind in ("net", "pid", "mnt", "ipc"):
            states[kind] = os.readlink(f"/proc/{child}/ns/{kind}")
        yield bytes(1024)

    unpack(tmp_path / "layer", source=looks())
    assert int(states["CapEff"], 16) == int(states["CapBnd"], 16) == 0b11011 and states["NoNewPrivs"] == "1"
    assert states["root"] in ("x", ""), "its root is the folder of the layer"
    assert not {os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "mnt", "ipc")} & set(states.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk of its own")
def test_a_disk_without_room_is_one_sentence(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip(mount.stderr.decode())
    try:
        with pytest.raises(
            UserError, match=f"no room for the layer in {disk}: free some .*image prune.*FORGE_ENV_IMAGES"
        ):
            unpack(disk / "layer", layer(entry("big", bytes(2**21))))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


_ORDINARY = """
import sys
from pathlib import Path
from contrib.workspaces.images.unpack import unpack_layer
(Path(sys.argv[1]) / "layer").mkdir()
print(unpack_layer([sys.stdin.buffer.read()], Path(sys.argv[1]) / "layer", what="the layer").files)
"""


def test_an_ordinary_user_owns_what_is_unpacked() -> None:
    ordinary = ordinary_python()
    data = layer(entry("a", b"x", uid=7, mode=0o4755), folder("closed", mode=0o000), entry("closed/b"))
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chown(place, USER, USER)
        command = [*ordinary.command, "-c", _ORDINARY, place]
        done = subprocess.run(command, env=ordinary.environ, cwd="/", input=data, capture_output=True, timeout=120)
        if b"cannot be unpacked in isolation" in done.stderr:
            pytest.skip(done.stderr.decode().splitlines()[-1])
        assert done.stdout == b"3\n", done.stderr
        root = Path(place, "layer")
        assert {(root / name).stat().st_uid for name in ("a", "closed", "closed/b")} == {USER}
        assert stat.S_IMODE((root / "closed").stat().st_mode) == 0o700
