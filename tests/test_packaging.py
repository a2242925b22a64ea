"""The wheel holds the five packages and nothing else; the pins are plain pins."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import forge_env

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("forge_env", "sandboxes", "envs", "agents", "trainers")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PINS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"forge_env-{forge_env.__version__}-py3-none-any.whl"
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel_files: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel_files}
    assert tops == {*PACKAGES, f"forge_env-{forge_env.__version__}.dist-info"}


def test_the_wheel_holds_every_source_and_data_file(wheel_files: set[str]) -> None:
    sources = {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    # The image of the docker sandbox is built from it where forge_env is installed.
    sources.add("sandboxes/Dockerfile.sandbox")
    assert {name for name in wheel_files if ".dist-info/" not in name} == sources
    assert "agents/renderer/qwen3_chat_template.jinja" in wheel_files


def test_every_folder_that_a_test_imports_from_is_shipped_with_the_tests() -> None:
    shipped = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    assert "tests" in shipped
    nodes = [node for path in (REPOSITORY / "tests").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    assert {name.partition(".")[0] for name in imported} & folders <= {*shipped}


def test_the_versions_agree() -> None:
    assert PROJECT["project"]["version"] == forge_env.__version__


def test_constraints_are_names_and_versions_only() -> None:
    assert [line for line in PINS if not re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*", line)] == []
    names = [line.partition("==")[0] for line in PINS]
    assert names == sorted(set(names))


def test_every_requirement_is_pinned() -> None:
    pinned = {line.partition("==")[0]: line.partition("==")[2] for line in PINS}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"], "torchstore==0.1.2"]
    wanted += [item for name in ("agents", "train", "cpu", "docker") for item in extras[name]]
    for requirement in wanted:
        name, exact = re.fullmatch(r"([a-z0-9-]+)(?:\[[^]]*\])?(?:==(.+)|[<>].*)?", requirement).groups()  # type: ignore[union-attr]
        if name == "forge-env":
            continue
        assert name in pinned, f"{name} has no pin: refresh constraints.txt as CONTRIBUTING.md says"
        assert exact in (None, pinned[name]), (
            f"{name} is {exact} in pyproject.toml and {pinned[name]} in constraints.txt"
        )
