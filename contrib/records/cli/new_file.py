"""The file of `--out`: a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from forge_env.core.errors import UserError


@contextmanager
def new_file(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    try:
        file = path.expanduser().open("x", encoding="utf-8")
    except FileExistsError:
        raise UserError(f"--out {path} exists already: name a new file") from None
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {error.strerror}") from None
    with file:
        yield file
