"""The lines of every room stay near what lines.toml says: raising a number there is a line that a reviewer sees.

`python -m tests.test_lines` prints the file as the tree is now.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "lines.toml"
SOURCES = {".py", ".js", ".css", ".html", ".jinja"}
ALLOWED = 1.02


def room(path: Path) -> str:
    """Return the room of a file: a folder of a package, or the package for the files at its root."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "tests":
        return "tests"
    if parts[0] == "contrib" and "tests" in parts[2:-1]:
        return f"contrib/{parts[1]}/tests"
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def count() -> Counter[str]:
    """Return the lines of each room, tests of an outbuilding apart from its code."""
    lines: Counter[str] = Counter()
    for package in ("forge_env", "sandboxes", "envs", "agents", "trainers", "contrib", "tests"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in SOURCES and "__pycache__" not in path.parts:
                lines[room(path)] += len(path.read_text(encoding="utf-8").splitlines())
    return lines


def test_no_room_has_grown_by_more_than_two_percent() -> None:
    limits, lines = tomllib.loads(FILE.read_text(encoding="utf-8")), count()
    grown = {
        place: f"{number} lines, and lines.toml has {limits.get(place, 0)}"
        for place, number in lines.items()
        if number > ALLOWED * limits.get(place, 0)
    }
    assert grown == {}, "take lines away elsewhere in the room, or raise its number and say why in the commit"


def test_every_number_is_of_a_room() -> None:
    places = {place for place in tomllib.loads(FILE.read_text(encoding="utf-8")) if (ROOT / place).is_dir()}
    assert places <= count().keys()


if __name__ == "__main__":
    print("# Lines of every room, counted by tests/test_lines.py, which fails at 2% more.")
    for place, number in sorted(count().items()):
        print(f'"{place}" = {number}')
