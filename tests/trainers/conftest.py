"""Plans of runs that begin with the same folder of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agents.served_tokenizer import ServedTokenizer


class OncePerFolder(ServedTokenizer):
    """Starts no process for files of which one has found, in these tests, that they have one meaning: that takes a
    second of each plan."""

    fine: ClassVar[set[str]] = set()

    def __init__(self, folder: Path) -> None:
        files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".safetensors")
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.name.encode() + path.read_bytes())
        self._files, self._is_known = digest.hexdigest(), digest.hexdigest() in self.fine
        if not self._is_known:
            super().__init__(folder)

    def __exit__(self, *_: object) -> None:
        if not self._is_known:
            super().__exit__()

    def check(self) -> str:
        difference = "" if self._is_known else super().check()
        if not difference:
            self.fine.add(self._files)
        return difference


@pytest.fixture(autouse=True, scope="module")
def _once_per_folder() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agents.served_tokenizer.ServedTokenizer", OncePerFolder)
        yield
