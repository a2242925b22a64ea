"""Digests of what a result hangs on: files, the code of modules, and values. Equal digests are equal content.

The code of a module is its file, and the files beside it or below its project's folder that it imports, at the top or
within a function, and so on. What is installed as a package stands there with its version instead.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_BYTES = 8
_AT_ONCE = 4
"""Files that are read at a time; a digest takes about a second for each GB, and threads share the work."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OURS = "forge_env"
"""Its code is known by its version."""


def file_digest(path: Path) -> str:
    """Digest of a file's content.

    Raises:
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_BYTES)).hexdigest()


def files_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Digests of files by their names, several read at a time.

    Raises:
        OSError: when one cannot be read.
    """
    there = sorted(set(paths))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return dict(zip((path.name for path in there), threads.map(file_digest, there), strict=True))


def value_digest(value: Any) -> str:
    """Digest of plain data, the same in every process; of other objects what they look like, without addresses."""
    return hashlib.blake2b(repr(_plain(value)).encode("utf-8", "backslashreplace"), digest_size=_BYTES).hexdigest()


def code_digests(modules: Iterable[str | Path]) -> dict[str, str]:
    """Digests of the code of modules, by name or by file: file -> digest, or package -> version."""
    found: dict[str, str] = {}
    for module in modules:
        path = module if isinstance(module, Path) else _file_of(module)
        if path is None or _top(module) == _OURS:
            continue
        if package := _installed(path):
            found |= package
            continue
        root = _root(path.resolve())
        found |= {str(file.relative_to(root)): digest for file, digest in _walk(path.resolve(), root).items()}
    return dict(sorted(found.items()))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return sorted((str(key), _plain(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(each)) for each in value)
    if isinstance(value, (str, bytes, int, float, bool)) or value is None:
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else _ADDRESS.sub("", repr(value))


def _top(module: str | Path) -> str:
    return "" if isinstance(module, Path) else module.partition(".")[0]


def _file_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _installed(path: Path) -> dict[str, str]:
    """The package that a file was installed with, and its version; empty for a file of a project."""
    for name in ("purelib", "platlib", "stdlib"):
        folder = Path(sysconfig.get_path(name))
        if path.is_relative_to(folder):
            top = path.relative_to(folder).parts[0].removesuffix(".py")
            packages = _packages().get(top, [])
            return {each: importlib.metadata.version(each) for each in packages} or {top: platform.python_version()}
    return {}


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _root(path: Path) -> Path:
    """The folder that a file's absolute imports are found in: the one that holds its outermost package."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def _walk(start: Path, root: Path) -> dict[Path, str]:
    """The digests of a file and of all below `root` that it imports."""
    found: dict[Path, str] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        content = path.read_bytes()
        found[path] = hashlib.blake2b(content, digest_size=_BYTES).hexdigest()
        waiting += [file for name in _imports(content, _package(path, root)) for file in _files(root, name)]
    return found


def _package(path: Path, root: Path) -> tuple[str, ...]:
    """The parts of the name of the package that a file belongs to."""
    return path.parent.relative_to(root).parts


@functools.lru_cache(maxsize=4096)
def _imports(content: bytes, package: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The modules that a file may mean by its imports, as the parts of their names."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return ()
    return tuple(dict.fromkeys(_named(tree, package)))


def _named(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*start, *(node.module.split(".") if node.module else ()))
            yield module
            yield from ((*module, alias.name) for alias in node.names)


def _files(root: Path, name: tuple[str, ...]) -> Iterator[Path]:
    """The files below a folder that importing a module runs: its own, and those of the packages that it is in."""
    if name[:1] == (_OURS,) or "*" in name:
        return
    for end in range(1, len(name) + 1):
        path = root.joinpath(*name[:end])
        files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
        yield from (file.resolve() for file in files if file.is_file() and file.resolve().is_relative_to(root))
