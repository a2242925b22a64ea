"""Classes that no other process can import, such as those of a notebook or of `__main__`: a file has them by value.

The target of such a class is "RUN/environment.pkl:Sums". Its file holds the class as cloudpickle writes it, the text of
its definition, and the folders that this process imports from. A file is used like a Python file: loading it runs code.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import functools
import inspect
import linecache
import os
import pickle
import subprocess
import sys
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from forge_env.core.errors import UserError

SUFFIX = ".pkl"
_unwritten: dict[Path, bytes] = {}
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
"""The classes of this process. To load one again would replace its functions, and what it holds, by copies."""
_texts: WeakKeyDictionary[type, str] = WeakKeyDictionary()

copyreg.pickle(type(dataclasses.MISSING), lambda _: "MISSING")  # a copy of it would be a default of each field


def is_importable(value: Any) -> bool:
    """Whether another process can import a class or a function by its name."""
    module = sys.modules.get(value.__module__)
    if module is None or module.__name__ == "__main__" or module.__spec__ is None:
        return False
    member: Any = module
    for name in value.__qualname__.split("."):
        member = getattr(member, name, None)
    if member is not value:
        return False
    return hasattr(module.__spec__.loader, "of_target") or _is_found(module.__name__.partition(".")[0])


@functools.cache
def _is_found(package: str) -> bool:
    """Whether a new process finds a package; this one may have further folders on its path."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return not subprocess.run([sys.executable, "-c", code, package], stdin=subprocess.DEVNULL).returncode


def put(value: type, file: Path) -> str:
    """Take a class for a file, and return its target. Until `write`, the file is known in this process only."""
    import cloudpickle

    _resolve(value, set())
    module = sys.modules.get(value.__module__)
    if module is not None and module.__spec__ is None:  # a script, which is __mp_main__ in a process of its pool
        cloudpickle.register_pickle_by_value(module)
    try:
        by_value = cloudpickle.dumps(value)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"the class {value.__name__} cannot reach another process: {type(error).__name__}: {reason}; make what it "
            "holds in its constructor, or move the class to a file of its own"
        ) from error
    texts = {base.__qualname__: text for base in value.__mro__ if (text := text_of(base))}
    content = {
        "id": uuid.uuid4().hex,
        "python": sys.version_info[:2],
        "name": value.__name__,
        "path": [os.path.abspath(folder) for folder in sys.path],
        "texts": texts,
        "class": by_value,
    }
    _classes[content["id"]] = value
    _unwritten[file.absolute()] = pickle.dumps(content)
    return f"{file.absolute()}:{value.__name__}"


def _resolve(value: Any, visited_ids: set[Any]) -> None:
    """Make types of the annotations that are texts: another process does not have the names in them."""
    if value in visited_ids or (isinstance(value, type) and is_importable(value)):
        return
    visited_ids.add(value)
    parts: list[Any] = [*value.__bases__, *_functions(value)] if isinstance(value, type) else []
    try:
        hints = typing.get_type_hints(value, include_extras=True)
        value.__annotations__ = {name: hints[name] for name in value.__annotations__}
        for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
            field.type = hints[field.name]
        parts += hints.values()
    except (NameError, TypeError, AttributeError):
        pass
    for part in parts:  # they grow
        if isinstance(part, type | FunctionType):
            _resolve(part, visited_ids)
        parts += typing.get_args(part)


def write(target: str) -> None:
    """Write the file of a target of `put`; another target needs none."""
    file = Path(target.rpartition(":")[0])
    if (content := _unwritten.pop(file, None)) is not None:
        file.touch(0o600)  # a class may hold a secret
        file.write_bytes(content)


def read(target: str, file: Path, name: str) -> type:
    content = _unwritten.get(file.expanduser().absolute())
    try:
        record = pickle.loads(file.expanduser().read_bytes() if content is None else content)
        if record["python"] != sys.version_info[:2]:
            raise ValueError("another version of Python wrote it, {}.{}".format(*record["python"]))
        sys.path += [folder for folder in record["path"] if folder not in sys.path]  # last: it hides nothing
        value = _classes.get(record["id"]) or pickle.loads(record["class"])
        _classes[record["id"]] = value
    except FileNotFoundError:
        raise UserError(f"{target!r}: there is no file {file}") from None
    except Exception as error:
        raise UserError(f"{target!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if record["name"] != name:
        raise UserError(f"{target!r}: {file} holds the class {record['name']}, and no {name}")
    for base in value.__mro__:
        if base.__qualname__ in record["texts"]:
            _texts[base] = record["texts"][base.__qualname__]
    return value


def text_of(value: type) -> str:
    """The definition of a class outside of modules; "" for another class, or if Python does not know the text."""
    if is_importable(value):
        return ""
    return _texts.get(value) or next(_definitions(value), "")


def _definitions(value: type) -> Iterator[str]:
    for function in _functions(value):
        lines, first = linecache.getlines(function.__code__.co_filename), function.__code__.co_firstlineno
        try:
            nodes = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.ClassDef)]
        except SyntaxError:
            continue
        for node in nodes:
            if node.name == value.__name__ and node.lineno <= first <= (node.end_lineno or 0):
                yield "".join(lines[node.lineno - 1 : node.end_lineno])


def _functions(value: type) -> Iterator[FunctionType]:
    for member in vars(value).values():
        outer: Any = getattr(member, "__func__", getattr(member, "fget", member))
        for function in (outer, inspect.unwrap(outer) if callable(outer) else None):
            if isinstance(function, FunctionType) and function.__qualname__.startswith(f"{value.__qualname__}."):
                yield function
