"""Files of a workspace: nothing leads out of it, nothing special comes out, and nothing is unbounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from contrib.workspaces.contract import WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.guest.guest_workspace_files import FILE, FOLDER, LAST, LINK, OBJECT
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.trees import receive_tree, send_tree
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.tests.machines.conftest import open_one
from forge_env.core.errors import UserError

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_what_is_put_is_got(workspace: Workspace) -> None:
    for data in (b"", b"x", bytes(range(256)) * 5000):
        path = f"/new/folder{len(data)}/file"
        await workspace.put(path, data, mode=0o750)
        assert await workspace.get(path) == data
        assert (await workspace.exec(f"stat -c '%a %u' {path} /new")).stdout == "750 0\n755 0\n"
        await workspace.put("relative", data)
        assert await workspace.get("/relative") == data


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's workspace has only root")
async def test_put_gives_files_to_a_user(workspace: Workspace) -> None:
    await workspace.put("/home/agent/a/b", b"x", user="agent")
    assert (await workspace.exec("stat -c %u /home/agent/a /home/agent/a/b")).stdout == "1000\n1000\n"


async def test_links_resolve_inside_and_are_not_followed_at_the_end(workspace: Workspace, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    await workspace.exec(f"ln -s {tmp_path} /out; ln -s {secret} /link; ln -s / /self; ln -s loop /loop; echo in > /in")
    for path in ("/link", "/out/secret", "/loop", "/loop/x", f"../../..{secret}", "/proc/1/root" + "/etc/passwd"):
        with pytest.raises(WorkspaceFileError):
            await workspace.get(path)
    assert await workspace.get("/self/in") == b"in\n"
    await workspace.put("/link", b"replaced")
    with pytest.raises(WorkspaceFileError):
        await workspace.put("/loop/x", b"x")
    assert secret.read_text() == "of the host" and await workspace.get("/link") == b"replaced"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


async def test_special_files_and_odd_paths_are_refused(workspace: Workspace) -> None:
    await workspace.exec("mkfifo /fifo; mkdir /folder; echo x > /file")
    for path in (
        "/fifo",
        "/folder",
        "/dev/zero",
        "/dev/null",
        "/absent",
        "/file/x",
        "",
        "\0",
        "/tmp/\ud800",
        "/" + "x" * 300,
        "x/" * 3000,
    ):
        with pytest.raises(WorkspaceFileError):
            await workspace.get(path)
    for path in ("/folder", "/", "/file/x", "/fifo/x", "/dev/new", "/proc/new", "", "a\0b", "/\ud800", "/" + "x" * 300):
        with pytest.raises(WorkspaceFileError):
            await workspace.put(path, b"x")
    await workspace.put("/fifo", b"a file now")
    assert await workspace.get("/fifo") == b"a file now"


async def test_work_on_files_that_breaks_is_an_error_of_the_file(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceFileError, match="TypeError"):
        await workspace.get_tree("/etc", tmp_path / "out", max_files=None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nobody-here"):
        await workspace.put("/file", b"x", user="nobody-here")


async def test_a_path_of_any_length_is_answered(workspace: Workspace, tmp_path: Path) -> None:
    for length in (300, 5_000, 100_000, 1_000_000):
        path = "x" * length
        for attempt in (workspace.get(path), workspace.put(path, b""), workspace.get_tree(path, tmp_path / "new")):
            with pytest.raises(WorkspaceFileError, match="File name too long") as error:
                await attempt
            assert len(str(error.value)) < 600
        with pytest.raises(UserError, match="user"):
            await workspace.exec("true", user=path)
    assert (await workspace.exec("true")).ok


async def test_sizes_are_bounded(workspaces: Workspaces, small_image: object) -> None:
    limits = WorkspaceLimits(disk_bytes=2**20, transfer_bytes=4 * 2**20)
    async with open_one(workspaces, small_image, limits=limits) as workspace:  # type: ignore[arg-type]
        reason = "disk of the workspace is full" if workspaces.capabilities.disk_limit else "more bytes than allowed"
        with pytest.raises(WorkspaceFileError, match=reason):
            await workspace.put("/large", bytes(3 * 2**20))
        assert (await workspace.exec("ls -d /.????????????????")).exit_code != 0, "something half-written is left"
        with pytest.raises(WorkspaceFileError, match="transfer_bytes"):
            await workspace.put("/large", bytes(4 * 2**20 + 1))
        await workspace.exec("dd if=/dev/zero of=/sparse bs=1 count=0 seek=1000000; echo x > /small")
        assert len(await workspace.get("/sparse")) == 1_000_000
        with pytest.raises(WorkspaceFileError, match="more bytes than allowed"):
            await workspace.get("/sparse", max_bytes=999_999)
        with pytest.raises(WorkspaceFileError, match="more bytes than allowed"):
            await workspace.get("/proc/self/maps", max_bytes=10)


async def test_trees_go_in_and_out(workspace: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "a/file").write_bytes(bytes(100_000))
    (source / "a/b/run").write_text("#!/bin/sh\necho ran")
    (source / "a/b/run").chmod(0o755)
    (source / "link").symlink_to("/etc")
    await workspace.exec(
        "mkdir -p /tree/a; echo old > /tree/a/file; echo other > /tree/a/other; ln -s /etc /tree/empty"
    )
    await workspace.put_tree(source, "/tree")
    seen = await workspace.exec(
        "/tree/a/b/run; cat /tree/a/other; stat -c %F /tree/link /tree/empty; wc -c < /tree/a/file"
    )
    assert seen.stdout == "ran\nother\nsymbolic link\nsymbolic link\n100000\n"
    with pytest.raises(WorkspaceFileError, match="link"):
        await workspace.get_tree("/tree", tmp_path / "strict")
    assert not (tmp_path / "strict").exists()
    await workspace.exec("mkfifo /tree/fifo")
    skipped = await workspace.get_tree("/tree", tmp_path / "copy", skip=True)
    assert set(skipped) >= {"link", "fifo"}
    assert (tmp_path / "copy/a/file").read_bytes() == bytes(100_000)
    assert stat.S_IMODE((tmp_path / "copy/a/b/run").stat().st_mode) & 0o111
    assert not (tmp_path / "copy/link").exists() and not (tmp_path / "copy/link").is_symlink()


async def test_what_is_excluded_is_left_out_whatever_it_is(workspace: Workspace, tmp_path: Path) -> None:
    command = "mkdir -p /built/a/cache /built/b && cd /built && touch a/x.o a/x.c a/cache/y.c b/x.c b/keep"
    assert (await workspace.exec(f"{command} && ln -s /etc/passwd a/cache/link && ln -s / b/out")).ok
    patterns = ["*.o", "cache/", "./b/out", "nothing"]
    await workspace.get_tree("/built", tmp_path / "copy", exclude=patterns, max_files=6)
    copied = sorted(path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*"))
    assert copied == ["a", "a/x.c", "b", "b/keep", "b/x.c"]


async def test_trees_are_bounded_and_leave_nothing_half_done(workspace: Workspace, tmp_path: Path) -> None:
    await workspace.exec("mkdir -p /many /big; for i in 1 2 3 4 5; do echo $i > /many/$i; done; seq 9999 > /big/x")
    for arguments in ({"max_files": 4}, {"max_bytes": 3}):
        with pytest.raises(WorkspaceFileError):
            await workspace.get_tree("/many", tmp_path / "out", **arguments)  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()
    for path in ("/absent", "/etc/passwd"):
        with pytest.raises(WorkspaceFileError):
            await workspace.get_tree(path, tmp_path / "out")
    deep = "cd /many; for i in 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5; do mkdir {0}; cd {0}; done".format(
        "d" * 200
    )
    await workspace.exec(deep)
    with pytest.raises(WorkspaceFileError):
        await workspace.get_tree("/many", tmp_path / "out")
    with pytest.raises(WorkspaceFileError, match="not a folder of this machine"):
        await workspace.put_tree(tmp_path / "absent", "/x")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(WorkspaceFileError, match="not a regular file"):
        await workspace.put_tree(tmp_path, "/x")
    (tmp_path / "out").mkdir()
    with pytest.raises(WorkspaceFileError, match="cannot be made"):
        await workspace.get_tree("/big", tmp_path / "out")
    assert (await workspace.exec("echo on")).stdout == "on\n"
    before = len(os.listdir("/proc/self/fd"))
    for attempt in (workspace.put_tree(tmp_path, ""), workspace.get_tree("", tmp_path / "new"), workspace.get("\0")):
        with pytest.raises(WorkspaceFileError):
            await attempt
    assert len(os.listdir("/proc/self/fd")) == before


def through_a_pipe(data: bytes, target: Path) -> object:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    try:
        return receive_tree(reader, target, 1000, skip=False)
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    "path", [b"../x", b"/x", b"a/../../x", b"", b".", b"a//b", b"a\0b", b"a/./b", b"..", b"x" * 5000]
)
async def test_a_forged_tree_writes_nothing_outside(path: bytes, tmp_path: Path) -> None:
    for kind in (FILE, FOLDER):
        entry = OBJECT.pack(kind, len(path), 0o644, 1 if kind == FILE else 0, 0, 0, 0) + path + b"x"
        with pytest.raises(WorkspaceFileError):
            through_a_pipe(entry + LAST, tmp_path / "target")
    assert list(tmp_path.iterdir()) == []


async def test_a_forged_tree_cannot_write_through_what_it_has_made(tmp_path: Path) -> None:
    link = OBJECT.pack(LINK, 1, 0, 4, 0, 0, 0) + b"a" + b"/tmp"
    again = 2 * (OBJECT.pack(FILE, 1, 0o644, 1, 0, 0, 0) + b"ax")
    large = OBJECT.pack(FILE, 1, 0o644, 2**60, 0, 0, 0) + b"a"
    for data in (link, again, large):
        with pytest.raises(WorkspaceFileError):
            through_a_pipe(data + LAST, tmp_path / "target")
    assert through_a_pipe(OBJECT.pack(FILE, 1, 0o644, 9, 0, 0, 0) + b"a" + b"short", tmp_path / "target") is None
    assert through_a_pipe(b"", tmp_path / "target") is None
    assert list(tmp_path.iterdir()) == []


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=5))
async def test_any_tree_arrives_as_it_was(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("tree")
    (folder / "source").mkdir()
    for name, data in files.items():
        (folder / "source" / name).write_bytes(data)
    reader, writer = os.pipe()
    send_tree(folder / "source", writer, 10_000)
    os.close(writer)
    assert receive_tree(reader, folder / "target", 10_000, skip=False) == ()
    os.close(reader)
    assert {path.name: path.read_bytes() for path in (folder / "target").iterdir()} == files
