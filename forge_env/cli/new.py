"""`forge-env new`: writes a small package with a working environment, as a template."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, say
from forge_env.core.errors import UserError

TEMPLATE = Path(__file__).parent / "template"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def new(
    name: Annotated[str, typer.Argument(help="Name of the environment and its package, such as my_env.")],
    path: Annotated[Path, typer.Option(help="Folder in which the package's folder is made.")] = Path("."),
    as_json: Json = False,
) -> None:
    """Write a small package with a working environment, and register its name in this project."""
    from forge_env.cli.register import add_to_registry
    from forge_env.registry.registry import find

    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot be the name of a module: use small letters, digits and _, as in my_env")
    if name in sys.stdlib_module_names:
        what = "a module of the standard library, which the new one would hide"
        raise UserError(f"{name!r} is {what}: choose another name")
    if find(name) is not None:
        raise UserError(f"the name {name!r} is taken: `forge-env info {name}` says by what; choose another one")
    folder = (path.expanduser() / name).resolve()
    with _new_folder(folder):
        files = _write(folder, name)
        data = add_to_registry(f"{folder / name}.py:{_class_name(name)}", name=name, kind="env", options={})
    if as_json:
        emit({"name": name, "folder": str(folder), "files": files, "registry": data["registry"]})
        return
    for file in files:
        say(str(folder / file))
    say(f"{name} is registered in {data['registry']}; next: forge-env check {name}")


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make a folder; it is removed again when the block raises."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"{folder} exists already: choose another name or --path, or remove it") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{folder} cannot be written: {error.strerror}") from None
        raise


def _write(folder: Path, name: str) -> list[str]:
    files = []
    for source in sorted(TEMPLATE.rglob("*.template")):
        target = folder / _rename(source.relative_to(TEMPLATE).with_suffix("").as_posix(), name)
        target.parent.mkdir(exist_ok=True)
        target.write_text(_rename(source.read_text(encoding="utf-8"), name), encoding="utf-8")
        files.append(target.relative_to(folder).as_posix())
    return files


def _rename(text: str, name: str) -> str:
    names = {"my_env": name, "my-env": name.replace("_", "-"), "MyEnv": _class_name(name)}
    return re.sub("|".join(names), lambda match: names[match[0]], text)


def _class_name(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))
