"""Words are plain: phrases that a reader must decode, and participles as names, are rare.

`make check` runs this file. `python -m tests.test_plain_words` prints the count of every folder, page and package.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("forge_env", "sandboxes", "envs", "agents", "trainers", "contrib")
RIDDLE = re.compile(
    r"\bwhere\s+(?:there|it|that|they|this|these|one|none|no|nothing|any|all|both|neither)\b"
    r"|\b(?:that|those|the\s+ones?)\s+of\b|\bwhose\b|\bwhat\s+becomes\s+of\b|\b(?:by|of|with|for|from)\s+(?:which|what)\b"
    r"|\bso\s+(?:many|much|few)\b|\bthe\s+(?:former|latter)\b"
    r"|(?<!there\s)\b(?:is|are|was|were|be)\s+no\s+(?!longer\b|more\b)\w+",
    re.IGNORECASE,
)
"""Repeat the noun, say `if` or `when` for `where`, `is not a` for `is no`, and begin a sentence with its subject."""
BOUND = 2.0
"""Riddles per 1,000 words that a folder, or a page, may have."""
RATCHET: dict[int, str] = {}
"""Bounds of the folders and pages that are above it today. A bound only falls; a name goes when its text is plain."""
BOUNDS = {place: bound for bound, places in RATCHET.items() for place in places.split()}
TEXT = re.compile(
    r'^ *(?P<docstring>r?"""(?:.|\n)*?""")|"""(?:.|\n)*?"""|(?:^ *|  )(?P<comment># .*(?:\n *# .*)*)', re.M
)
CODE = re.compile(r"^```.*?^```$", re.M | re.S)

PARTICIPLE = re.compile(
    r"_*(?:[a-z]+ed|begun|bent|broken|brought|built|caught|chosen|drawn|driven|fallen|felt|forgotten|found|given|gone|got|"
    r"grown|heard|held|kept|known|laid|led|left|lent|lost|made|meant|met|paid|said|seen|sent|shown|shut|sold|spent|spoken|"
    r"stolen|taken|taught|told|torn|understood|woken|won|worn|written)"
)
GYMNASIUM = {"terminated", "truncated"}
MODELS = {"sampled", "expected", "masked", "packed", "shared", "cached", "clipped", "selected"}
NO_PARTICIPLES = {"seed", "speed", "need", "feed", "embed"}
TERMS = GYMNASIUM | MODELS | NO_PARTICIPLES
"""Participles that are terms of the field or of a library, and words that only look like one."""
NAMES_BOUND = 8.0
"""Participles among 1,000 assigned names that a package may have."""


def names(path: Path) -> Iterator[str]:
    """The names that a module gives to variables, attributes, arguments and functions."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name


def modules(package: str) -> list[Path]:
    """The modules of a package that are not tests, benchmarks or examples."""
    paths = (ROOT / package).rglob("*.py")
    return sorted(p for p in paths if not {"tests", "benchmarks", "examples"} & {*p.relative_to(ROOT).parts})


def participles(package: str) -> tuple[Counter[str], float]:
    """The participles among the names of a package, and their number among 1,000 names."""
    all_names = Counter(name for path in modules(package) for name in names(path))
    named = {n: c for n, c in all_names.items() if PARTICIPLE.fullmatch(n) and n.lstrip("_") not in TERMS}
    return Counter(named), 1000 * sum(named.values()) / max(all_names.total(), 1)


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
    sources = [path for package in PACKAGES for path in modules(package)]
    for path in sorted([*sources, *(ROOT / "docs").rglob("*.md"), *(ROOT / "contrib").rglob("*.md")]):
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


def test_names_are_nouns_and_verbs() -> None:
    for package in PACKAGES:
        found, share = participles(package)
        assert share <= NAMES_BOUND, f"{package}: {share:.1f} of 1,000 names are participles: {found.most_common(20)}"


def test_the_count_of_names_sees_each_kind_of_name(tmp_path: Path) -> None:
    source = """
def asked(given, *, seen=0, **left):
    self._kept = found = [told for told in given]
class A:
    lost: int
"""
    (module := tmp_path / "module.py").write_text(source, encoding="utf-8")
    assert {*names(module)} == {"asked", "given", "seen", "left", "_kept", "found", "told", "lost"}
    assert all(map(PARTICIPLE.fullmatch, names(module)))


if __name__ == "__main__":
    all_words, all_riddles = count()
    for folder, number in all_words.items():
        print(f"{len(all_riddles.get(folder, ())) / number * 1000:5.1f}  {number:6}  {folder}")
    for name in PACKAGES:
        print(f"{participles(name)[1]:5.1f}  participles of 1,000 names  {name}")
