"""Takes folders of contrib away, each with what needs it, and tries what is left: `python -m tests.take_away
[NAME...]`.

Each is tried in a copy of the tracked files: `forge-env list`, `make check`, and whether the tests of the heart can be
collected. `all` takes away every folder and runs the tests of the heart. Without names, all of it is tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 3600.0
"""After which one command is given up."""
LEFT = ("-m", "not gpu and not slow", "tests")
"""The tests of the heart."""


def needs() -> dict[str, set[str]]:
    """Return what each folder of contrib needs, by its names.toml."""
    files = sorted((ROOT / "contrib").glob("*/names.toml"))
    return {file.parent.name: set(tomllib.loads(file.read_text()).get("needs", ())) for file in files}


def with_dependents(name: str) -> set[str]:
    """Return a folder with all that need it, directly or through others; `all` is every folder."""
    every = needs()
    if name == "all":
        return set(every)
    taken = {name}
    while more := {other for other, wanted in every.items() if wanted & taken} - taken:
        taken |= more
    return taken


def left_without(taken: Collection[str], folder: Path) -> None:
    """Copy the tracked files into an empty folder, without these folders of contrib."""
    listed = run("git", "ls-files", "-z", folder=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if not any(name.startswith(f"contrib/{gone}/") for gone in taken) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    run("git", "init", "--quiet", folder=folder)  # some tests ask git for the files
    run("git", "add", "--all", folder=folder)


def run(
    *command: str, folder: Path, environ: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=check, timeout=SECONDS
    )


def commands(*, whole: bool) -> list[Sequence[str]]:
    python, programs = sys.executable, Path(sys.executable).parent
    tests = ["-n", "2", "--dist", "loadfile"] if whole else ["--collect-only"]
    return [
        [python, "-m", "forge_env", "list"],
        [str(programs / "ruff"), "format", "--check", "--quiet", "."],
        [str(programs / "ruff"), "check", "--quiet", "."],
        [str(programs / "mypy"), "--cache-dir", str(ROOT / ".mypy_cache")],
        [python, "-m", "pytest", "-q", *(f"tests/test_{name}.py" for name in ("imports", "plain_words", "lines"))],
        [python, "-m", "pytest", "-q", *tests, *LEFT],
    ]


def fails_without(name: str) -> str:
    """Return the first command that fails when a folder is taken away, with the end of what it said; "" for none."""
    taken = with_dependents(name)
    with tempfile.TemporaryDirectory(prefix="forge_env-without-") as temporary:
        folder = Path(temporary)
        left_without(taken, folder)
        environ = os.environ | {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(ROOT / ".cache")}
        for command in commands(whole=name == "all"):
            try:
                done = run(*command, folder=folder, environ=environ, check=False)
            except subprocess.TimeoutExpired as error:
                return str(error)
            if done.returncode:
                return f"{' '.join(command)}\n{(done.stdout + done.stderr)[-3000:]}"
    return ""


def main(names: Sequence[str]) -> int:
    failed = []
    for name in names or [*needs(), "all"]:
        said = fails_without(name)
        print(f"without {', '.join(sorted(with_dependents(name)))}: {said or 'all passed'}", flush=True)
        failed += [name] if said else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
