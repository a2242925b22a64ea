"""One workspace takes over the files of another, but for what it keeps, and nothing leads astray."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from contrib.workspaces.contract import UnpackedImage, WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.guest.guest_workspace_files import END, FILE, HARD_LINK, OBJECT
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from contrib.workspaces.tests.machines.conftest import open_one

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEEP = ["/bin", "/usr", "/etc", "/opt", "/opt/app/.env*", "/home/*/.*"]


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(workspaces: Workspaces, small_image: UnpackedImage) -> AsyncIterator[Workspace]:
    async with open_one(workspaces, small_image) as workspace:
        yield workspace


async def test_what_was_made_changed_moved_and_deleted_is_so_here(workspace: Workspace, fresh: Workspace) -> None:
    script = """mkdir -m 700 /a /a/b; echo one > /a/b/f; chmod 4750 /a/b/f; ln -s /etc/passwd /a/link; ln /a/b/f /a/hard
mkfifo /a/fifo; touch -d 2001-02-03 /a/old; rm -r /var/tmp; echo x > /home/agent/x; mv /home/agent /moved; sleep 60 &"""
    await workspace.exec(script)
    if os.geteuid() == 0:
        await workspace.exec("chown 1000:2000 /a/old")
    await workspace.end_processes()
    assert await fresh.take_over(workspace, keep=KEEP) == ()
    shown = "cd /; stat -c '%n %N %a %u %g %F %h' a a/* a/b/* moved moved/* home; cat a/hard moved/x; ls var"
    there, here = await workspace.exec(shown), await fresh.exec(shown)
    assert " 4750 " in here.stdout and "'a/link' -> '/etc/passwd'" in here.stdout and here.stdout.endswith("\none\nx\n")
    assert (await fresh.exec("stat -c %y /a/old")).stdout.startswith("2001-02-03")
    assert [line for line in there.stdout.splitlines() if "fifo" not in line] == here.stdout.splitlines()


async def test_odd_times_names_and_depths_are_no_fault(workspace: Workspace, fresh: Workspace) -> None:
    await workspace.exec("touch -d @9999999999999 /far; touch -d 1900-01-01 /old; printf x > $(printf '/a\\377b')")
    await fresh.take_over(workspace)
    assert (await fresh.exec("ls /far /old; cat /a*b")).stdout.endswith("x")
    deep = "cd /; for n in $(seq 30); do d=$(printf 'd%.0s' $(seq 200)); mkdir $d && cd $d || exit; done"
    await workspace.exec(deep)
    with pytest.raises(WorkspaceFileError, match="File name too long"):
        await fresh.take_over(workspace)


async def test_what_is_kept_stays_and_changes_of_it_are_named(workspace: Workspace, fresh: Workspace) -> None:
    script = """echo evil > /bin/ls; rm /bin/wc; echo x > /etc/new; echo of the work > /etc/asked
mkdir -p /opt/app/bin /opt/app/.env1 /opt/tool /home/agent/a/.git; chmod 777 /opt
for file in /opt/app/bin/x /opt/app/.env1/x /opt/tool/x /home/agent/.x /home/agent/a/.git/x; do echo x > $file; done"""
    await workspace.exec(script)
    told = await fresh.take_over(workspace, keep=KEEP, work=["/opt/app", "/etc/asked"])
    assert sorted(told) == ["/bin/ls", "/etc/new", "/home/agent/.x", "/opt/app/.env1/x", "/opt/tool/x"]
    script = (
        "wc -c < /opt/app/bin/x; cat /etc/asked /home/agent/a/.git/x; ls -A /opt /opt/app; ls /etc/new; stat -c %a /opt"
    )
    assert (await fresh.exec(script)).stdout == "2\nof the work\nx\n/opt:\napp\n\n/opt/app:\nbin\n755\n"


async def test_a_folder_of_programs_that_became_a_link_is_kept(workspace: Workspace, fresh: Workspace) -> None:
    """Also if it leads from a folder that is taken over to one that is kept."""
    await workspace.exec("cp -r /bin /evil; echo evil > /evil/ls; mv /usr /old; ln -s /evil /usr; ln -s /bin /moved")
    await fresh.take_over(workspace, keep=KEEP)
    assert (await fresh.exec("stat -c '%F' /usr /moved; cat /bin/ls | head -c 4")).stdout.startswith(
        "directory\nsymbolic"
    )
    assert "evil" not in (await fresh.exec("cat /moved/ls | head -c 4")).stdout


async def test_more_than_the_disk_is_refused_and_nothing_waits(
    workspaces: Workspaces, small_image: UnpackedImage, fresh: Workspace
) -> None:
    async with open_one(workspaces, small_image, limits=WorkspaceLimits(disk_bytes=2**20)) as other:
        await other.exec("head -c 600000 /dev/zero > /a; ln /a /tmp/b; cp /a /tmp/c 2> /dev/null; echo x > /d")
        with pytest.raises(WorkspaceFileError, match="more bytes than allowed"):
            await fresh.take_over(other)


async def takes(workspace: Workspace, entry: bytes) -> None:
    """Let a workspace take over entries that another one is said to have."""
    reader, writer = os.pipe()
    os.write(writer, entry)
    os.close(writer)
    try:
        await workspace._on_files("take", "/", [reader], {"keep": KEEP, "work": []}, None)  # type: ignore[attr-defined]
    finally:
        os.close(reader)


async def test_no_entry_leads_to_what_is_kept(workspace: Workspace) -> None:
    """As if pid 1 of the other workspace were not ours."""
    await workspace.exec("ln -s /bin /link")
    for name in (b"bin/ls", b"link/ls", b"x/../bin/ls", b"../x", b"bin", b"tmp//x", b"."):
        entry = OBJECT.pack(FILE, len(name), 0o755, 4, 0, 0, 0) + name + b"evil" + OBJECT.pack(END, 0, 0, 0, 0, 0, 0)
        with pytest.raises(WorkspaceFileError):
            await takes(workspace, entry)
    assert (await workspace.exec("ls /bin/ls")).ok
    with pytest.raises(WorkspaceFileError):
        await takes(workspace, OBJECT.pack(HARD_LINK, 5, 0o755, 6, 0, 0, 0) + b"tmp/x" + b"bin/ls")
    assert (await workspace.exec("ls -A /tmp")).stdout == ""
