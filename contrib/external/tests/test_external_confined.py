"""What a program in a sandbox is shown; contrib/external/tests/test_external_sandbox.py runs some."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contrib.external.confined import check_shown, installation
from forge_env.core.errors import UserError


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's programs are of that user")
def test_a_folder_that_its_user_may_not_read_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(UserError, match="may not read"):
        check_shown([str(tmp_path)])
    tmp_path.chmod(0o755)
    check_shown([str(tmp_path)])


def test_a_home_folder_is_not_shown() -> None:
    for folder in (Path.home(), Path.home().parent, Path("/")):
        with pytest.raises(UserError, match="would see all of"):
            check_shown([str(folder)])


def test_a_program_is_shown_with_what_it_needs(tmp_path: Path) -> None:
    venv, base = tmp_path / "venv", tmp_path / "python"
    for folder in (venv / "bin", venv / "lib", venv / "secrets", base / "bin", base / "lib", base / "secrets"):
        folder.mkdir(parents=True)
    (base / "bin" / "python3").touch()
    (venv / "bin" / "python").symlink_to(base / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.11\n")
    needed = {venv / "bin", venv / "lib", venv / "pyvenv.cfg", base / "bin", base / "lib"}
    assert set(installation(str(venv / "bin" / "python"))) == set(map(str, needed))
    assert installation("/usr/bin/env") == []
