"""The file of `--out`: a new one, which is there once all of it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from forge_env.core.errors import InfraError
from forge_env.utils.atomic import Target


@contextmanager
def new_file(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    with Target(path) as target:
        try:
            with target.path.open("x", encoding="utf-8") as file:
                yield file
            target.commit()
        except OSError as error:
            raise InfraError(f"--out {path} could not be written: {error}; nothing is left of it") from error
