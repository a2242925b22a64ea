"""Workspaces of an ordinary user: no root, no control groups, one user inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from contrib.workspaces.contract import UnpackedImage
from tests.helpers.ordinary_user import USER, ordinary_python

STORY = """
import asyncio, json, os, sys
from pathlib import Path
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.core.sandbox import ExecStatus
from contrib.workspaces.contract import (Network, NetworkMode, UnpackedImage, WorkspaceLimits)
from contrib.workspaces.open import open_workspaces

async def main():
    image = UnpackedImage(root=Path(sys.argv[1]))
    async with open_workspaces("namespace") as workspaces:
        capabilities = workspaces.capabilities
        assert not capabilities.users and not capabilities.root_is_unprivileged and capabilities.seccomp
        assert capabilities.memory_limit == "rlimit" and any("as root" in text for text in capabilities.missing)
        limits = WorkspaceLimits(memory_bytes=2**27, disk_bytes=2**22, processes=40)
        workspace = await workspaces.open(image, limits=limits)
        assert (await workspace.exec("id -u; echo $HOME; pwd")).stdout == "0\\n/root\\n/\\n"
        done = await workspace.exec("echo x > /etc/new; rm /bin/wc; mv /home /house; mkdir /home; ls -d /house/agent")
        assert done.stdout == "/house/agent\\n", done
        try:
            await workspace.exec("id", user=1000)
        except UserError as error:
            assert "only the user root" in str(error)
        else:
            raise AssertionError("another user")
        shell = await workspace.open_shell()
        await shell.run("cd /tmp; x=1")
        assert (await shell.run("pwd; echo $x")).stdout == "/tmp\\n1\\n"
        await workspace.put("/a/b", b"data")
        assert await workspace.get("/a/b") == b"data"
        snapshot = await workspace.snapshot()
        fork = await workspaces.open(snapshot, limits=workspace.limits)
        seen = await fork.exec("cat /a/b /etc/new; ls /bin/wc; ls -d /house/agent")
        assert seen.stdout == "datax\\n/house/agent\\n", seen
        assert "No space left" in (await fork.exec("dd if=/dev/zero of=/tmp/x bs=1M count=9 2>&1")).stdout
        many = await fork.exec("for i in $(seq 100); do sleep 60 & done; echo started", timeout_s=20)
        assert not many.ok or many.stderr, many
        await fork.end_processes()
        large = await fork.exec("x=x; while :; do x=$x$x; done", timeout_s=30)
        assert not large.ok
        online = await workspaces.open(image, network=Network(mode=NetworkMode.ALLOWLIST, allowed_hosts=("*",)))
        assert "APT::Sandbox::User" in (await online.exec("cat $APT_CONFIG")).stdout  # apt has no user of its own
        for path in ("/etc/shadow", "/proc/1/root" + "/etc", "/sys/fs/cgroup"):
            assert not (await fork.exec(["cat", path])).ok
        os.kill(workspaces._server.pid, 9)
        try:
            await fork.exec("sleep 600")
        except SandboxError as error:
            assert "the server of the workspaces died of SIGKILL" in str(error)
        else:
            raise AssertionError("its server was killed")
        again = await workspaces.open(image)
        assert (await again.exec("id -u")).stdout == "0\\n"
        print("done", workspaces._server.pid)
asyncio.run(main())
"""


def test_an_ordinary_user_has_workspaces(small_image: UnpackedImage) -> None:
    ordinary = ordinary_python()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        image = Path(folder, "image")
        shutil.copytree(small_image.root, image, symlinks=True)
        os.chown(folder, USER, USER)
        for base, folders, names in os.walk(image):
            for name in (".", *folders, *names):
                os.chown(os.path.join(base, name), USER, USER, follow_symlinks=False)
        command = [*ordinary.command, "-c", STORY, str(image)]
        done = subprocess.run(command, env=ordinary.environ, cwd="/", capture_output=True, text=True, timeout=120)
        if "the kernel refuse" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr
        server = int(done.stdout.split()[1])
        assert not os.path.exists(f"/proc/{server}")
