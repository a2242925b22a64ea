"""Targets: import strings of objects, so that every process can import them by itself.

"module:attribute" is imported as usual. "path/to/file.py:attribute" is loaded from the file, which may import the files
beside it as a script does.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import operator
import sys
import threading
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from forge_env.core.errors import ForgeError, UserError, nearest
from forge_env.utils import by_value
from forge_env.utils.exits import Terminated

_loading = threading.RLock()
_importing = ContextVar("_importing", default="")
"""The target whose module this thread imports."""


def load(target: str, *, option: str = "") -> Any:
    """Import the object named "module:attribute" or "path/to/file.py:attribute".

    A file is loaded once, and again after a change.

    Args:
        option: the option that names the target, for errors, such as "--loss".
    """
    try:
        return _load(target)
    except UserError as error:
        if not option:
            raise
        text = str(error)
        raise UserError(f"{option} {text if text.startswith(repr(target)) else f'{target}: {text}'}") from error


def _load(target: str) -> Any:
    source, attribute = split_target(target)
    if source.endswith(by_value.SUFFIX):
        return by_value.read(target, Path(source), attribute)
    module = load_source(target)
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        names = {n: getattr(v, "__module__", "") for n, v in vars(module).items() if n[0] != "_"}
        own_names = [n for n, of in names.items() if of == module.__name__ or n.isupper()]  # classes, functions, values
        where = source if is_file(source) else f"module {source}"
        hint = f". {nearest(attribute, own_names)}" if own_names else ""
        raise UserError(f"{target!r}: {where} has no attribute {attribute!r}{hint}") from None


def load_source(target: str) -> ModuleType:
    source, _ = split_target(target)
    before = _importing.set(target)
    try:
        return _load_file(target, Path(source)) if is_file(source) else _load_module(target, source)
    finally:
        _importing.reset(before)


def check_not_importing(call: str) -> None:
    """Refuse a call while a target is imported, which may wait for that import for ever."""
    if target := _importing.get():
        raise UserError(
            f"{target!r} cannot be imported, for {call} is called meanwhile: write that call below "
            'if __name__ == "__main__":'
        )


def split_target(target: str) -> tuple[str, str]:
    source, _, attribute = target.rpartition(":") if isinstance(target, str) else ("", "", "")
    if not attribute or not source:
        raise UserError(
            f"{target!r} is not a target: write it as 'module:attribute' or 'path/to/file.py:attribute', "
            "for example 'envs.math:Math'"
        )
    return source, attribute


def is_file(source: str) -> bool:
    """Whether the first part of a target is a file and not a module."""
    return source.endswith(".py")


def is_path(source: str) -> bool:
    return source.endswith((".py", by_value.SUFFIX))


def source_of(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or "<" in name:
        raise UserError(f"{value!r} cannot be imported by a name: define it at the top of a module, not in a function")
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return f"{spec.origin if spec and isinstance(spec.loader, _Loader) else module}:{name}"


def add_to_path(folder: Path) -> None:
    """Append a folder to sys.path: last, so that it never hides installed packages."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def _load_module(target: str, name: str) -> ModuleType:
    top = name.partition(".")[0]
    if Path(f"{top}.py").is_file() or Path(top, "__init__.py").is_file():
        add_to_path(Path.cwd())  # as `python -m` does, but last
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"{target!r}: there is no module {name!r}") from error
        raise _import_error(target, error, file="") from error


def _load_file(target: str, path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    try:
        modified_ns = path.stat().st_mtime_ns
    except OSError:
        raise UserError(f"{target!r}: there is no file {path}") from None
    # Equal in every process that loads this file, so that objects of its classes can be pickled between them.
    digest = hashlib.blake2b(f"{path}\0{modified_ns}".encode(), digest_size=8).hexdigest()
    name = f"{path.stem}_{digest}"
    with _loading:
        return sys.modules.get(name) or _execute(target, name, path)


class _Loader(SourceFileLoader):
    """Compiles the source each time: cached bytecode misses changes within a second, and leaves files in the folder."""

    of_target = True
    """The file is the target, which every process can load."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _execute(target: str, name: str, path: Path) -> ModuleType:
    add_to_path(path.parent)
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickle and inspect look there while it is still being executed
    try:
        _check_siblings(target, path)
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise _import_error(target, error, file=str(path)) from error
    return module


def _check_siblings(target: str, path: Path) -> None:
    """Check that the modules beside a file, which it imports, are not hidden by others of the same name."""
    for line, name in _imports(parse_python(path.read_bytes(), str(path))):
        files = (path.parent / f"{name}.py", path.parent / name / "__init__.py")
        beside = [file.resolve() for file in files if file.is_file()]
        if not beside or name in sys.stdlib_module_names:
            continue
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin not in beside:
            raise UserError(
                f"{target!r} imports {name!r}, which is {origin} in this process and not {beside[0]}: "
                f"rename one of them ({path}, line {line})"
            )


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]


def _import_error(target: str, error: BaseException, *, file: str) -> BaseException:
    """Return an error with one sentence about why an import failed, and where; errors of our own stay."""
    if isinstance(error, (ForgeError, Terminated)) and not isinstance(error, UserError):
        return error
    location = _location(error, file)
    where = f" ({location})" if location and location not in str(error) else ""
    if isinstance(error, UserError):
        return UserError(f"{error}{where}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return UserError(f"{target!r} needs the package {error.name!r}, which is not installed{where}")
    if isinstance(error, SystemExit):
        return UserError(f"{target!r} cannot be imported: it ends the process with exit code {error.code!r}{where}")
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return UserError(f"{target!r} cannot be imported: {type(error).__name__}: {text}{where}")


def _location(error: BaseException, file: str) -> str:
    """Return file and line of an error: of the innermost frame in `file`, else outside of this package, else of any."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    ours = (__file__, importlib.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in ours and f.filename[0] != "<"]
    others = [f for f in frames if not Path(f.filename).is_relative_to(Path(__file__).parents[1])]
    here = [f for f in frames if f.filename == file] or others or frames
    return f"{here[-1].filename}, line {here[-1].lineno}" if here else ""


_ATTEMPTS = 20


def parse_python(source: str | bytes, filename: str = "<unknown>", *, mode: str = "exec") -> Any:
    """Do what `ast.parse` does, correctly in every thread.

    Before Python 3.13 the interpreter counts the depth of the tree in one place for all threads. Another thread that
    parses meanwhile, or a finalizer, lets `ast.parse` raise SystemError ("AST constructor recursion depth mismatch")
    for correct source, about once in 100,000 calls under load. The next attempt succeeds.
    """
    for _ in range(_ATTEMPTS):
        try:
            return ast.parse(source, filename, mode)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return ast.parse(source, filename, mode)
