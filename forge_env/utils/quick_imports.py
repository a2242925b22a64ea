"""Imports of large packages, without what slows them down."""

from __future__ import annotations

import atexit
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import PurePosixPath

_NAME = re.compile(r"^Name:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_MODULES = (".py", ".so")


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import packages in this context without collections, and exclude what they leave from later ones.

    Collections are a fifth of the time of an import. transformers asks which distribution each package comes from. With
    300 distributions, Python's own answer takes one to two seconds, since it parses all of their metadata.
    """
    was_on, slow = gc.isenabled(), metadata.packages_distributions
    gc.disable()
    metadata.packages_distributions = packages_distributions
    try:
        yield
    finally:
        metadata.packages_distributions = slow
        gc.freeze()
        atexit.register(gc.unfreeze)  # the interpreter frees them at its end, and no library complains of a leak
        (gc.enable if was_on else gc.disable)()


def packages_distributions() -> dict[str, list[str]]:
    """The distributions of each top-level package: `importlib.metadata.packages_distributions` for packages of code."""
    packages = defaultdict(list)
    for distribution in metadata.distributions():
        name = _NAME.search(distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or "")
        declared = (distribution.read_text("top_level.txt") or "").split()
        for package in declared or _top_level(distribution):
            packages[package].append(name[1] if name else distribution.metadata["Name"])
    return dict(packages)


def _top_level(distribution: metadata.Distribution) -> set[str]:
    record = distribution.read_text("RECORD")
    lines = map(str, distribution.files or ()) if record is None else record.splitlines()
    paths = (line.partition(",")[0].strip('"') for line in lines)
    first = {
        path.partition("/")[0] if "/" in path else PurePosixPath(path).stem for path in paths if path.endswith(_MODULES)
    }
    return {name for name in first if name.isidentifier()}
