"""Which files of the installed packages a sandbox shows: those of the named ones and of what they require.

Standard library only: the agent in a container imports this, too.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import operator
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError

_MAX_MESSAGE = 48 * 2**10
"""Of the list of paths, which goes to the sandbox in one message."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?", re.DOTALL)
_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What `find_packages` finds."""

    shown: Sequence[tuple[str, str]] = ()
    """Pairs of a real path and the relative path at which it is shown; no path lies in another one."""
    imports: Sequence[str] = ()
    """Modules of the named packages, to be imported."""


def find_packages(names: Sequence[str]) -> Packages:
    """Return the files of packages and of all that they require, as their metadata says it.

    A requirement that is not installed is left out: whether a package does without it shows when it is imported.

    Args: names: modules ("numpy", "six", "google.protobuf") or distributions ("scikit-learn").

    Raises:
        UserError: a package is not installed, or there are too many files.
    """
    view = _View()
    for name in names:
        view.add(name)
    shown = sorted((target, source) for target, source in view.shown.items() if not _lies_in_another(target, view))
    packages = Packages(shown=[(source, target) for target, source in shown], imports=view.imports)
    if len(json.dumps(packages.shown)) > _MAX_MESSAGE:
        raise UserError(f"packages names {', '.join(names)}, which are {len(shown)} folders and files: name fewer.")
    return packages


def cannot_import(module: str, error: str, missing: str | None, imports: Collection[str]) -> UserError:
    """Return the error for a module that cannot be imported in the sandbox.

    Args:
        error: what the import raised.
        missing: the module that was not found, if that is why.
        imports: the modules of the named packages; others come from the setting `preimport`.
    """
    setting = "packages" if module in imports else "preimport"
    what = f"{module!r} of {setting} cannot be imported in the sandbox"
    top = (missing or "").partition(".")[0]
    if not top or top == module:
        return UserError(f"{what}: {error}; leave it out of {setting}.")
    if _spec(top) is None:
        return UserError(
            f"{what}: it needs the module {missing!r}, which is not installed here; install that, or leave {module!r} "
            f"out of {setting}."
        )
    return UserError(
        f"{what}: it needs the module {missing!r}, which its metadata does not require; add {top!r} to packages."
    )


def applies(marker: str, extras: Collection[str] = ()) -> bool:
    """Return whether the marker of a requirement holds here, for a package with `extras`. One of no sense does.

    >>> applies("python_version < '3' or extra == 'http2'"), applies("extra == 'http2'", {"http2"})
    (False, True)
    """
    try:
        tree = ast.parse(marker.replace("~=", ">=").replace("===", "==").strip(), mode="eval").body
        return any(bool(_value(tree, {**_environment(), "extra": extra})) for extra in (*extras, ""))
    except (SyntaxError, ValueError, KeyError, TypeError):
        return True


class _View:
    """The files that are shown so far."""

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}  # by the relative path at which they are shown
        self.imports: list[str] = []
        owners = importlib.metadata.packages_distributions()
        self._owners = {module: {_normal(owner) for owner in those} for module, those in owners.items()}
        self._folders: dict[str, set[tuple[str, ...]]] = {}  # of a distribution
        self._done: set[tuple[str, str]] = set()  # distribution and extra

    def add(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            self.imports.append(name)
            return
        named = self._distributions(name)
        for distribution in named:
            self._add(distribution, ("",))
        modules = [name] if top in self._owners or not named else self._modules(named)
        for module in modules or [name.replace("-", "_")]:
            self.imports.append(module)
            self._ensure(module, name)

    def _distributions(self, name: str) -> list[Distribution]:
        """Those that a module is part of, else the one of that name."""
        path = name.replace(".", "/")
        of_module = [_distribution(owner) for owner in sorted(self._owners.get(name.partition(".")[0], ()))]
        installed = [distribution for distribution in of_module if distribution is not None]
        if "." in name:
            exact = [d for d in installed if any(str(file).startswith((f"{path}/", f"{path}.")) for file in _files(d))]
            installed = exact or installed
        alone = _distribution(name) if not installed else None
        return installed or ([alone] if alone is not None else [])

    def _modules(self, distributions: Sequence[Distribution]) -> list[str]:
        """The public modules of distributions, as far as their metadata says which."""
        own = {_normal(distribution.name) for distribution in distributions}
        modules = [module for module, owners in self._owners.items() if owners & own and module.isidentifier()]
        return sorted(module for module in modules if not module.startswith("_") and _spec(module) is not None)

    def _add(self, distribution: Distribution, extras: Collection[str]) -> None:
        name = _normal(distribution.name)
        new = [extra for extra in extras if (name, extra) not in self._done]
        if not new:
            return
        if not any(done == name for done, _ in self._done):
            self._show(distribution)
        self._done |= {(name, extra) for extra in new}
        for required, its_extras in _requirements(distribution, new):
            self._add(required, ("", *its_extras))

    def _show(self, distribution: Distribution) -> None:
        files = _files(distribution)
        for file in files:
            parts = file.parts
            if parts[0] in ("..", "/", "__pycache__") or (len(parts) == 1 and file.suffix == ".pth"):
                continue
            others = self._owners.get(parts[0], set()) - {_normal(distribution.name)}
            depth = next((n for n in range(1, len(parts)) if not self._is_shared(parts[:n], others)), len(parts))
            shown = Path(*parts[:depth])
            self._take(Path(str(distribution.locate_file(shown))), shown)
        if not files:  # an old kind of metadata
            for module in (distribution.read_text("top_level.txt") or "").split():
                self._take_module(module)

    def _is_shared(self, folder: tuple[str, ...], others: Collection[str]) -> bool:
        """Whether other distributions have files in a folder, as in one of a namespace package."""
        return any(folder in self._folders_of(other) for other in others)

    def _folders_of(self, name: str) -> set[tuple[str, ...]]:
        if name not in self._folders:
            distribution = _distribution(name)
            files = _files(distribution) if distribution is not None else []
            self._folders[name] = {parent.parts for file in files for parent in file.parents}
        return self._folders[name]

    def _ensure(self, module: str, name: str) -> None:
        """Show a module that no metadata lists: of an editable install, or of a folder on the path."""
        top = module.partition(".")[0]
        if any(target.partition("/")[0].partition(".")[0] == top for target in self.shown):
            return
        if not self._take_module(top):
            raise UserError(f"package {name!r} is not installed here: install it, or leave it out of packages.")

    def _take_module(self, module: str) -> bool:
        spec = _spec(module)
        if spec is None:
            return False
        paths = [*spec.submodule_search_locations] if spec.submodule_search_locations else [spec.origin or ""]
        for path in map(Path, paths):
            self._take(path, Path(path.name))
        return any(map(os.path.exists, paths))

    def _take(self, source: Path, target: Path) -> None:
        if not source.exists():
            return
        self.shown.setdefault(target.as_posix(), str(source.resolve()))
        if source.suffix == ".py" and len(target.parts) == 1:  # its compiled form lies in a folder with that of others
            compiled = Path(importlib.util.cache_from_source(str(source)))
            if compiled.exists():
                self.shown.setdefault(f"__pycache__/{compiled.name}", str(compiled.resolve()))


def _lies_in_another(target: str, view: _View) -> bool:
    return any(parent.as_posix() in view.shown for parent in Path(target).parents)


def _files(distribution: Distribution) -> list[Path]:
    return [Path(str(file)) for file in distribution.files or ()]


def _distribution(name: str) -> Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module) if module.isidentifier() else None
    except (ImportError, ValueError):
        return None


def _requirements(distribution: Distribution, extras: Collection[str]) -> Iterator[tuple[Distribution, list[str]]]:
    """Yield the installed distributions that one with `extras` requires, and the extras of them."""
    for text in distribution.requires or ():
        match = _REQUIREMENT.match(text)
        if match is None or (match[3] and not applies(match[3], extras)):
            continue
        required = _distribution(match[1])
        if required is not None:
            yield required, [extra.strip() for extra in (match[2] or "").split(",") if extra.strip()]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _environment() -> Mapping[str, str]:
    return {
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "python_full_version": platform.python_version(),
        "implementation_name": sys.implementation.name,
        "implementation_version": platform.python_version(),
    }


def _value(node: ast.expr, environment: Mapping[str, str]) -> Any:
    """The value of a marker, whose grammar is a part of Python's. Raises KeyError, TypeError for anything else."""
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(part, environment)) for part in node.values]
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = (_value(part, environment) for part in (node.left, node.comparators[0]))
        return _compare(type(node.ops[0]), left, right, is_extra=_is_extra(node))
    if isinstance(node, ast.Name):
        return environment[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise TypeError("no part of a marker")


def _is_extra(node: ast.Compare) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "extra" for part in (node.left, *node.comparators))


def _compare(kind: type[ast.cmpop], left: str, right: str, *, is_extra: bool) -> bool:
    if is_extra:
        return _OPERATORS[kind](_normal(left), _normal(right))
    versions = [_version(text) for text in (left, right)]
    if issubclass(kind, (ast.In, ast.NotIn)) or None in versions:
        return _OPERATORS[kind](left, right)
    ours, theirs = (list(version or ()) for version in versions)
    if right.endswith(".*"):
        ours = ours[: len(theirs)]
    longest = max(len(ours), len(theirs))
    return _OPERATORS[kind](ours + [0] * (longest - len(ours)), theirs + [0] * (longest - len(theirs)))


def _version(text: str) -> tuple[int, ...] | None:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else None
