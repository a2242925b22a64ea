"""Folders in /tmp whose names anybody can guess: those that another user has made are not used."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forge_env.runtime.actor import HEADERS, VARIABLE, keep_compiled

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


def test_compiled_code_in_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    for name in (VARIABLE, HEADERS):
        monkeypatch.setenv(name, "")  # so that it is as it was at the end
        del os.environ[name]
    cache = tmp_path / "forge_env" / "torchinductor"
    cache.mkdir(parents=True)
    os.chown(cache, NOBODY, NOBODY)
    keep_compiled()
    assert VARIABLE not in os.environ and os.environ[HEADERS] == "0"
    os.chown(cache, os.geteuid(), -1)
    keep_compiled()
    assert os.environ[VARIABLE] == str(cache)


def test_a_log_in_a_folder_of_another_user_is_not_removed(tmp_path: Path) -> None:
    """A link in the place of the folder would have a file of that name removed wherever it points to."""
    folder = Path("/tmp") / f"{getpass.getuser()}_{os.getpid()}"
    log = tmp_path / "monarch_log_x.log"
    log.touch()
    environment = {**os.environ, "LOGNAME": folder.name, "MONARCH_LOG_SUFFIX": "x"}
    command = [sys.executable, "-c", "from forge_env.runtime import remove_monarch_log; remove_monarch_log()"]
    folder.symlink_to(tmp_path)
    try:
        subprocess.run(command, env=environment, check=True)
        assert log.exists()
    finally:
        folder.unlink()
    folder.mkdir()
    (folder / log.name).touch()
    subprocess.run(command, env=environment, check=True)
    assert not folder.exists()
