"""Files of other users: what lies where they can write does not run as this user. Each attack has its control."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from forge_env.cli.main import main
from forge_env.registry import registry_file
from forge_env.registry.registry import entries, load_entry
from forge_env.registry.registry_file import FILE, RegistryFile, project_file
from forge_env.utils.owners import path_problem

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory below a folder that somebody else has put a registry into."""
    monkeypatch.setattr(registry_file, "_with_warning", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("FORGE_ENV_REGISTRY", raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    work = tmp_path / "shared" / "work"
    work.mkdir(parents=True, mode=0o755)
    monkeypatch.chdir(work)
    return work


def plant(folder: Path, *, owner: int = 0, mode: int = 0o644) -> Path:
    """Put a registry into a folder whose tool leaves a file when it is imported; returns that file's path."""
    proof = folder / "ran"
    (folder / ".forge_env").mkdir(exist_ok=True)
    (folder / "bad.py").write_text(
        f"from pathlib import Path\nPath({str(proof)!r}).touch()\ndef add(a: int) -> int:\n    'Add.'\n    return a\n"
    )
    (folder / FILE).write_text("planted: {kind: tools, target: 'bad.py:add'}\n")
    (folder / FILE).chmod(mode)
    if owner:
        for path in (folder / FILE, folder / ".forge_env", folder / "bad.py"):
            os.chown(path, owner, owner)
    return proof


def runs(file: RegistryFile) -> None:
    """The control: what a file names does run as this user where nothing asks whose it is."""
    load_entry(RegistryFile(file.path).read()["planted"])


def names() -> set[str]:
    return {entry.name for entry in entries()}


@needs_root
def test_a_registry_of_another_user_in_a_folder_above_is_not_read(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proof = plant(project.parent, owner=NOBODY)
    caplog.set_level(logging.WARNING)
    assert "planted" not in names() and "planted" not in names()
    assert not proof.exists()
    [told] = [record.getMessage() for record in caplog.records]
    assert "belongs to the user 'nobody'" in told and f"FORGE_ENV_REGISTRY={project.parent / FILE}" in told
    assert project_file().path == project / FILE  # where `register` writes
    runs(RegistryFile(project.parent / FILE))
    assert proof.exists()


@needs_root
def test_a_registry_that_the_user_names_is_read_whosever_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(project.parent, owner=NOBODY)
    monkeypatch.setenv("FORGE_ENV_REGISTRY", str(project.parent / FILE))
    assert "planted" in names()


@needs_root
def test_a_file_of_ours_in_a_folder_of_another_user_is_not_read(project: Path) -> None:
    """A link to it, or the file itself that was moved: its relative targets are that user's files."""
    proof = plant(project.parent)
    os.chown(project.parent, NOBODY, NOBODY)
    assert "planted" not in names() and not proof.exists()
    runs(RegistryFile(project.parent / FILE))
    assert proof.exists()


def test_a_registry_that_every_user_can_write_to_is_not_read(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    proof = plant(project.parent, mode=0o666)
    assert "planted" not in names() and not proof.exists()
    assert f"`chmod go-w {project.parent / FILE}`" in caplog.text
    (project.parent / FILE).chmod(0o644)
    assert "planted" in names()
    for folder in (project.parent, project.parent / ".forge_env"):
        folder.chmod(0o777)
        assert "planted" not in names()
        folder.chmod(0o755)
    runs(RegistryFile(project.parent / FILE))
    assert proof.exists()


@needs_root
def test_a_link_that_leads_through_a_folder_of_another_user_is_not_followed(project: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    proof = plant(theirs)
    os.chown(theirs, NOBODY, NOBODY)
    (project / ".forge_env").mkdir()
    (project / FILE).symlink_to(theirs / FILE)
    assert "planted" not in names() and not proof.exists()
    os.chown(theirs, 0, 0)
    assert "planted" in names()
    os.chown(project / FILE, NOBODY, NOBODY, follow_symlinks=False)
    assert "planted" not in names()
    runs(RegistryFile(project / FILE))
    assert proof.exists()


@needs_root
def test_register_and_list_agree_on_a_folder_of_another_user(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "sums.py").write_text("def add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n")
    os.chown(project, NOBODY, NOBODY)
    assert main(["register", "sums.py:add"]) == 2
    refused = capfd.readouterr().err
    assert "cannot be made: " in refused and "belongs to the user" in refused
    assert not (project / ".forge_env").exists()
    monkeypatch.setenv("FORGE_ENV_REGISTRY", str(project / FILE))
    assert main(["register", "sums.py:add"]) == main(["list"]) == 0
    assert "add" in capfd.readouterr().out.split()
    monkeypatch.delenv("FORGE_ENV_REGISTRY")
    assert main(["list"]) == 0
    assert "add" not in capfd.readouterr().out.split()


def test_the_search_ends_at_the_projects_root(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path)
    assert "planted" in names()
    (project / "pyproject.toml").touch()  # one project with several packages in it
    (tmp_path / ".git").mkdir()
    assert "planted" in names()
    (project.parent / ".git").touch()
    assert "planted" not in names()
    (project.parent / ".git").unlink()
    assert "planted" in names()
    monkeypatch.setenv("HOME", str(project.parent))
    assert "planted" not in names()


@needs_root
def test_root_reads_what_belongs_to_the_user_who_called_sudo(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(project.parent, owner=NOBODY)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert "planted" in names()


def test_a_folder_whose_files_cannot_be_replaced_by_others_is_passed(tmp_path: Path) -> None:
    """As /tmp: everybody writes there, and nobody to what is another's."""
    shared = tmp_path / "like_tmp"
    shared.mkdir()
    plant(shared)
    shared.chmod(0o1777)
    assert path_problem(shared / FILE, below=shared) == ""
    shared.chmod(0o777)
    assert path_problem(shared / FILE, below=shared) == f"{shared} can be written by every user"
