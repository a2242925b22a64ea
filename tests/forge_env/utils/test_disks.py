"""Which errors mean a full disk. A disk that is really full is in tests/system/test_faults.py."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from forge_env.utils.folders import full_disk


def test_a_full_disk_is_named_by_where_it_is_mounted(tmp_path: Path) -> None:
    output = full_disk(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "not" / "there")
    mount = output.removeprefix("the disk mounted at ").partition(" is full (")[0]
    assert Path(mount).is_mount() and tmp_path.is_relative_to(mount)
    assert output.endswith(" MB free)")
    assert (
        full_disk(OSError(errno.EDQUOT, "quota"), tmp_path) == f"there is no quota left on the disk mounted at {mount}"
    )


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), RuntimeError("unexpected pos"), ValueError()])
def test_another_error_is_no_full_disk_while_there_is_room(error: Exception, tmp_path: Path) -> None:
    assert full_disk(error, tmp_path) == ""
