"""Docstrings, comments and pages say things plainly: phrases that a reader must decode are rare in every folder.

`make check` runs this file. `python -m tests.test_plain_words` prints the count of every folder and page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("forge_env", "sandboxes", "envs", "agents", "trainers", "contrib")
RIDDLE = re.compile(
    r"\bwhere\s+(?:there|it|that|they|this|these|one|none|no|nothing|any|all|both|neither)\b"
    r"|\b(?:that|those|the\s+ones?)\s+of\b|\bwhose\b|\bwhat\s+becomes\s+of\b|\b(?:by|of|with|for|from)\s+(?:which|what)\b"
    r"|\bso\s+(?:many|much|few)\b|\bthe\s+(?:former|latter)\b",
    re.IGNORECASE,
)
"""Repeat the noun, say `if` or `when` for `where`, and begin a sentence with its subject."""
BOUND = 2.0
"""Riddles per 1,000 words that a folder, or a page, may have."""
RATCHET: dict[int, str] = {}
"""Bounds of the folders and pages that are above it today. A bound only falls; a name goes when its text is plain."""
BOUNDS = {place: bound for bound, places in RATCHET.items() for place in places.split()}
TEXT = re.compile(
    r'^ *(?P<docstring>r?"""(?:.|\n)*?""")|"""(?:.|\n)*?"""|(?:^ *|  )(?P<comment># .*(?:\n *# .*)*)', re.M
)
CODE = re.compile(r"^```.*?^```$", re.M | re.S)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the words of each docstring and comment of a module, or of a whole page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, CODE.sub(lambda block: "\n" * block[0].count("\n"), source)
        return
    for match in TEXT.finditer(source):
        words = match["docstring"] or match["comment"]
        if words:
            yield source.count("\n", 0, match.start(match.lastgroup or 0)) + 1, words.replace("#", " ")


def count() -> tuple[Counter[str], dict[str, list[str]]]:
    """The words of every folder and page, and its riddles as `file:line: phrase`."""
    words: Counter[str] = Counter()
    riddles: dict[str, list[str]] = {}
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    modules = [path for path in modules if not {"tests", "benchmarks", "examples"} & {*path.relative_to(ROOT).parts}]
    for path in sorted([*modules, *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md")]):
        name = path.relative_to(ROOT).as_posix()
        place = name if path.suffix == ".md" else name.rpartition("/")[0]
        if place.startswith("contrib/"):
            place = "/".join(place.split("/")[:2])
        for line, text in texts(path):
            words[place] += len(text.split())
            for match in RIDDLE.finditer(text):
                number = line + text.count("\n", 0, match.start())
                riddles.setdefault(place, []).append(f"{name}:{number}: {' '.join(match[0].split())}")
    return words, riddles


def test_no_folder_or_page_has_more_riddles_than_its_bound() -> None:
    words, riddles = count()
    assert len(words) > 60  # without contrib, too
    above = {
        f"{place}: {len(found) / words[place] * 1000:.1f} per 1,000 words": found
        for place, found in riddles.items()
        if len(found) > BOUNDS.get(place, BOUND) / 1000 * words[place]
    }
    assert not above, "\n".join(f"{place}\n  " + "\n  ".join(found) for place, found in above.items())


if __name__ == "__main__":
    all_words, all_riddles = count()
    for folder, number in all_words.items():
        print(f"{len(all_riddles.get(folder, ())) / number * 1000:5.1f}  {number:6}  {folder}")
