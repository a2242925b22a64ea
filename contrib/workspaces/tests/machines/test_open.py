"""Opening a backend of workspaces: settings, and one sentence for what cannot be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forge_env
from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.open import open_workspace, open_workspaces
from forge_env.core.errors import SandboxUnavailable, UserError

ROOT = Path(forge_env.__file__).parents[1]
CODE = """
import asyncio
from forge_env.core.errors import UserError
from contrib.workspaces.open import open_workspaces

async def main():
    try:
        async with open_workspaces():
            print("opened")
    except UserError as error:
        print(error)

asyncio.run(main())
"""


async def test_one_workspace_with_a_backend_of_its_own(small_image: UnpackedImage) -> None:
    try:
        async with open_workspace(small_image, spares=0) as workspace:
            assert (await workspace.exec("echo on")).stdout == "on\n"
    except SandboxUnavailable as error:
        pytest.skip(str(error))


async def test_unknown_names_and_settings_are_refused() -> None:
    for backend, settings, text in (
        ("namespaces", {}, "Did you mean namespace"),
        ("dockers", {}, "Did you mean docker"),
        ("namespace", {"spare": 1}, "Did you mean spares"),
        ("namespace", {"spares": 1000}, "spares must be between"),
    ):
        with pytest.raises(UserError, match=text):
            async with open_workspaces(backend, **settings):  # type: ignore[arg-type]
                pass


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_kernel_that_refuses_is_named_with_the_remedy() -> None:
    weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", CODE]
    environ = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "PATH": os.environ["PATH"],
        "DOCKER_HOST": "unix:///nowhere/docker.sock",
    }
    done = subprocess.run(weak, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert "the kernel refused to isolate" in done.stdout and "CAP_SYS_ADMIN" in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_workspaces_open_where_proc_is_read_only(small_image: UnpackedImage) -> None:
    """As in containers that mask it: id maps and scores are written there."""
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from contrib.workspaces.contract import UnpackedImage\n"
        "from contrib.workspaces.open import open_workspace\n"
        "async def main():\n"
        "    async with open_workspace(UnpackedImage(root=Path(sys.argv[1])), 'namespace') as workspace:\n"
        "        print((await workspace.exec('cat /proc/self/oom_score_adj')).stdout)\n"
        "asyncio.run(main())\n"
    )
    script = 'mount -o remount,bind,ro /proc && exec "$@"'
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", sys.executable, "-c", code]
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [*command, str(small_image.root)], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    if "mount:" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.strip() == "1000", done.stderr
