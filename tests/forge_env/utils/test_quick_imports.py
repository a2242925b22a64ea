"""Imports without collections, and with a quick answer to the question which distribution a package comes from."""

from __future__ import annotations

import gc
from importlib import metadata
from pathlib import Path

import pytest

from forge_env.utils.quick_imports import packages_distributions, quick_imports


def test_every_package_comes_from_the_distributions_that_python_names() -> None:
    ours, pythons = packages_distributions(), metadata.packages_distributions()
    assert {name: sorted(found) for name, found in ours.items()} == {name: sorted(pythons[name]) for name in ours}
    for name in pythons.keys() - ours.keys():  # since Python 3.12 folders of data count as packages, too
        files = [path for each in pythons[name] for path in metadata.files(each) or ()]
        assert not any(path.parts[0] == name and path.suffix in (".py", ".so") for path in files), name


def test_a_distribution_without_a_list_of_files_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "odd-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: Odd\nVersion: 1.0\n\nName: of nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "Odd" not in packages_distributions().get("odd", [])
    (information / "RECORD").write_text('odd/a.py,,\n"odd/b,c.py",,\nodd_one.so,,\nodd/data.csv,,\n../bin/odd,,\n')
    assert packages_distributions()["odd"] == packages_distributions()["odd_one"] == ["Odd"]


def test_everything_is_as_before_behind_an_import_that_fails() -> None:
    pythons = metadata.packages_distributions
    with pytest.raises(ImportError), quick_imports():
        assert not gc.isenabled() and metadata.packages_distributions is not pythons
        raise ImportError
    assert gc.isenabled() and metadata.packages_distributions is pythons
    gc.unfreeze()
