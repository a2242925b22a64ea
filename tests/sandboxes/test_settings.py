"""Which sandbox is opened: by name, by environment, and what "auto" says where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forge_env.core.errors import SandboxUnavailable, UserError
from forge_env.registry.contrib import Row
from sandboxes import open_sandbox
from sandboxes.settings import AUTO, BACKENDS, load_backend, resolve_name, with_environment
from tests.helpers.sandboxes import opened

ROOT = Path(__file__).parents[2]


async def opener(
    *, slots: int | None = None, share: float = 1.0, on: bool = False, names: tuple[str, ...] = ()
) -> None:
    """Has a setting of every kind."""


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("SLOTS", "3"), ("SHARE", "0.5"), ("ON", "1"), ("NAMES", "a, b"), ("OTHER", "x")):
        monkeypatch.setenv(f"FORGE_ENV_SANDBOX_{name}", text)
    assert with_environment("x", opener, {"slots": 8}) == {"slots": 8, "share": 0.5, "on": True, "names": ("a", "b")}


@pytest.mark.parametrize(("name", "text"), [("SLOTS", "many"), ("ON", "perhaps"), ("SHARE", "half")])
def test_malformed_settings_are_user_errors(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"FORGE_ENV_SANDBOX_{name}", text)
    with pytest.raises(UserError, match=f"FORGE_ENV_SANDBOX_{name} is '{text}'"):
        with_environment("x", opener, {})


def test_the_environment_names_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORGE_ENV_SANDBOX", raising=False)
    assert resolve_name("auto") == "auto" and resolve_name("namespace") == "namespace"
    monkeypatch.setenv("FORGE_ENV_SANDBOX", "namespace")
    assert resolve_name("auto") == "namespace"
    monkeypatch.setenv("FORGE_ENV_SANDBOX", "namepsace")
    with pytest.raises(UserError, match="Did you mean namespace"):
        resolve_name("auto")


def test_a_missing_package_is_named() -> None:
    with pytest.raises(SandboxUnavailable, match=r"^a sandbox: .*there_is_no_such_package, .*forge-env\[that\]"):
        load_backend(Row("a", "there_is_no_such_package:open", extra="that"))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_auto_never_downgrades_and_says_what_each_backend_lacks() -> None:
    """Root without CAP_SYS_ADMIN and without an engine, as in a default container; the insecure one is allowed."""
    code = """
import asyncio
from sandboxes import open_sandbox
async def main():
    async with open_sandbox() as sandbox:
        print(sandbox.capabilities)
asyncio.run(main())
"""
    weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", code]
    environ = {"PATH": os.environ["PATH"], "DOCKER_HOST": "unix:///nowhere", "FORGE_ENV_ALLOW_INSECURE_SANDBOX": "1"}
    ended = subprocess.run(weak, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    last = ended.stderr.strip().rpartition("\n")[2]
    assert ended.returncode == 1 and not ended.stdout
    assert "SandboxUnavailable: No sandbox is available" in last
    assert "namespace sandbox: the kernel refused" in last and all(f"{name} sandbox:" in last for name in AUTO)
    assert "Operation not permitted" in last and "--cap-add SYS_ADMIN" in last


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "namespace"])
async def test_a_backend_without_packages_says_what_applies(name: str) -> None:
    with pytest.raises(
        UserError, match=rf"packages is \('numpy',\), but code in the {name} sandbox imports the standard"
    ):
        async with open_sandbox(name, packages=("numpy",)):
            pass


async def test_packages_can_be_imported_or_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'no_such_package' is not installed"):
        async with open_sandbox("namespace", packages=("no_such_package",)):
            pass
    pytest.importorskip("numpy")
    monkeypatch.setenv("FORGE_ENV_SANDBOX_PACKAGES", "numpy")
    async with opened() as sandbox:
        result = await sandbox.run("import numpy as np; print(np.linalg.det(np.eye(3)), np.__file__)")
    assert result.stdout == "1.0 /packages/numpy/__init__.py\n"


def test_importing_the_package_loads_no_backend() -> None:
    code = "import sys, sandboxes; print({m for m in sys.modules if 'sandboxes.' in m} - {'sandboxes.settings'})"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
