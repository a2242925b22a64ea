"""A result names the commit of the code that made it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import machine


def test_the_commit_of_a_changed_tree_is_dirty_but_not_by_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "REPOSITORY", tmp_path)
    monkeypatch.setenv("COMMIT", "named")
    assert machine.describe()["commit"] == "named", "outside of a repository"
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for file in (tmp_path / "code.py", results / "old.json"):
        file.write_text("1")
    as_someone = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*as_someone, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=tmp_path, capture_output=True, text=True)
    (results / "old.json").write_text("2")
    assert machine.describe()["commit"] == head.stdout.strip()
    (tmp_path / "code.py").write_text("2")
    assert machine.describe()["commit"] == head.stdout.strip() + "-dirty"
