"""Digests of files, of the code of modules, and of values. Equal digests mean equal content.

The code of a module is its file and, recursively, the files of the same project that it imports, at the top or within a
function, and those that it names beside it, as `Path(__file__).with_name("prices.toml")`. For an installed package, its
version takes the place of the digest.
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

from forge_env.utils.targets import parse_python

_DIGEST_BYTES = 8
_READERS = 4
"""Threads that read files; one thread takes about a second for each GB."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_BESIDE = re.compile(rb"""\.with_name\(["']([\w.-]+)["']\)""")
"""A file that a module reads beside itself."""
_FORGE_ENV = "forge_env"
"""Not digested: its version is recorded instead."""


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()


def files_digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files by their names; several files are read concurrently."""
    unique = sorted(set(paths))
    with ThreadPoolExecutor(_READERS) as threads:
        return dict(zip((path.name for path in unique), threads.map(file_digest, unique), strict=True))


def value_digest(value: Any) -> str:
    """Return the digest of plain data, equal in every process; other objects count by repr, without addresses."""
    text = repr(_plain(value)).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def code_digests(modules: Iterable[str | Path]) -> dict[str, str]:
    """Return the digests of the code of modules, given by name or file: file -> digest, or package -> version."""
    digests: dict[str, str] = {}
    for module in modules:
        path = module if isinstance(module, Path) else _file_of(module)
        is_ours = isinstance(module, str) and module.partition(".")[0] == _FORGE_ENV
        if path is None or is_ours:
            continue
        if package := _distribution(path):
            digests |= package
            continue
        # The folder that resolves a file's absolute imports: the one that holds its outermost package.
        root = path.resolve().parent
        while (root / "__init__.py").is_file():
            root = root.parent
        digests |= {str(file.relative_to(root)): digest for file, digest in _walk(path.resolve(), root).items()}
    return dict(sorted(digests.items()))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return sorted((str(key), _plain(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_plain(item)) for item in value)
    if isinstance(value, (str, bytes, int, float, bool)) or value is None:
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else _ADDRESS.sub("", repr(value))


def _file_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _distribution(path: Path) -> dict[str, str]:
    """Return the package that a file was installed with, and its version; empty for a file of a project."""
    for name in ("purelib", "platlib", "stdlib"):
        folder = Path(sysconfig.get_path(name))
        if path.is_relative_to(folder):
            top = path.relative_to(folder).parts[0].removesuffix(".py")
            packages = _packages().get(top, [])
            versions = {package: importlib.metadata.version(package) for package in packages}
            return versions or {top: platform.python_version()}
    return {}


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _walk(start: Path, root: Path) -> dict[Path, str]:
    """Return the digests of a file, of all files below `root` that it imports, and of those that it names beside it."""
    digests: dict[Path, str] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in digests:
            continue
        content = path.read_bytes()
        digests[path] = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
        package = path.parent.relative_to(root).parts
        waiting += [file for name in _imports(content, package) for file in _files(root, name)]
        beside = (path.with_name(name.decode()) for name in _BESIDE.findall(content))
        waiting += [file for file in beside if file.is_file()]
    return digests


@functools.lru_cache(maxsize=4096)
def _imports(content: bytes, package: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    try:
        tree = parse_python(content)
    except (SyntaxError, ValueError):
        return ()
    return tuple(dict.fromkeys(_imported_names(tree, package)))


def _imported_names(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*start, *(node.module.split(".") if node.module else ()))
            yield module
            yield from ((*module, alias.name) for alias in node.names)


def _files(root: Path, name: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files below a folder that the import of a module runs: its own, and its packages'."""
    if name[:1] == (_FORGE_ENV,) or "*" in name:
        return
    for end in range(1, len(name) + 1):
        path = root.joinpath(*name[:end])
        files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
        yield from (file.resolve() for file in files if file.is_file() and file.resolve().is_relative_to(root))
