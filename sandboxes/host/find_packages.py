"""Finds the files of installed packages that a sandbox shows: the named packages and everything that they require."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from forge_env.core.errors import UserError
from sandboxes.host.packages import Packages

_MAX_MESSAGE = 48 * 2**10
"""Bytes of the list of paths, which is sent to the sandbox in one message."""


def find_packages(names: Sequence[str]) -> Packages:
    """Return the files of modules ("numpy") or distributions ("scikit-learn"), and of everything that they require.

    A requirement that is not installed is left out: if a package needs it, its import fails.
    """
    view = _View()
    for name in names:
        view.add(name)
    outer = {target for target in view.paths if not any(str(p) in view.paths for p in PurePosixPath(target).parents)}
    pairs = sorted((target, source) for target, source in view.paths.items() if target in outer)
    packages = Packages(paths=[(source, target) for target, source in pairs], imports=view.imports)
    if len(json.dumps(packages.paths)) > _MAX_MESSAGE:
        raise UserError(f"packages names {', '.join(names)}, which are {len(pairs)} folders and files: name fewer.")
    return packages


class _View:
    def __init__(self) -> None:
        self.paths: dict[str, str] = {}  # by the relative path at which they are shown
        self.imports: list[str] = []
        owners = importlib.metadata.packages_distributions()
        self._owners = {module: {canonicalize_name(name) for name in names} for module, names in owners.items()}
        self._folders: dict[str, set[tuple[str, ...]]] = {}  # of a distribution
        self._visits: set[tuple[str, str]] = set()  # distribution and extra

    def add(self, name: str) -> None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            self.imports.append(name)
            return
        for distribution in (distributions := self._distributions(name)):
            self._add(distribution, ("",))
        modules = [name] if top in self._owners or not distributions else self._modules(distributions)
        for module in modules or [name.replace("-", "_")]:
            self.imports.append(module)
            self._ensure(module, name)

    def _distributions(self, name: str) -> list[Distribution]:
        """The distributions that a module is part of, else the distribution of that name."""
        path = name.replace(".", "/")
        of_module = [_distribution(owner) for owner in sorted(self._owners.get(name.partition(".")[0], ()))]
        candidates = [distribution for distribution in of_module if distribution is not None]
        if "." in name:
            exact = [d for d in candidates if any(str(file).startswith((f"{path}/", f"{path}.")) for file in _files(d))]
            candidates = exact or candidates
        alone = _distribution(name) if not candidates else None
        return candidates or ([alone] if alone is not None else [])

    def _modules(self, distributions: Sequence[Distribution]) -> list[str]:
        names = {canonicalize_name(distribution.name) for distribution in distributions}
        modules = [module for module, owners in self._owners.items() if owners & names and module.isidentifier()]
        return sorted(module for module in modules if not module.startswith("_") and _spec(module) is not None)

    def _add(self, distribution: Distribution, extras: Collection[str]) -> None:
        name = canonicalize_name(distribution.name)
        new = [extra for extra in extras if (name, extra) not in self._visits]
        if not new:
            return
        if not any(visited_name == name for visited_name, _ in self._visits):
            self._show(distribution)
        self._visits |= {(name, extra) for extra in new}
        for requirement, its_extras in _requirements(distribution, new):
            self._add(requirement, ("", *its_extras))

    def _show(self, distribution: Distribution) -> None:
        files = _files(distribution)
        for file in files:
            parts = file.parts
            if parts[0] in ("..", "/", "__pycache__") or (len(parts) == 1 and file.suffix == ".pth"):
                continue
            others = self._owners.get(parts[0], set()) - {canonicalize_name(distribution.name)}
            shared = [self._folders_of(other) for other in others]  # as those of a namespace package
            depths = (n for n in range(1, len(parts)) if not any(parts[:n] in folders for folders in shared))
            depth = next(depths, len(parts))
            top = Path(*parts[:depth])
            self._show_path(Path(str(distribution.locate_file(top))), top)
        if not files:  # metadata without a list of files
            for module in (distribution.read_text("top_level.txt") or "").split():
                self._show_module(module)

    def _folders_of(self, name: str) -> set[tuple[str, ...]]:
        if name not in self._folders:
            distribution = _distribution(name)
            files = _files(distribution) if distribution is not None else []
            self._folders[name] = {parent.parts for file in files for parent in file.parents}
        return self._folders[name]

    def _ensure(self, module: str, name: str) -> None:
        """Show a module that no metadata lists: of an editable install, or of a folder on the path."""
        top = module.partition(".")[0]
        if any(target.partition("/")[0].partition(".")[0] == top for target in self.paths):
            return
        if not self._show_module(top):
            raise UserError(f"package {name!r} is not installed here: install it, or leave it out of packages.")

    def _show_module(self, module: str) -> bool:
        spec = _spec(module)
        if spec is None:
            return False
        paths = [*spec.submodule_search_locations] if spec.submodule_search_locations else [spec.origin or ""]
        for path in map(Path, paths):
            self._show_path(path, Path(path.name))
        return any(map(os.path.exists, paths))

    def _show_path(self, source: Path, target: Path) -> None:
        if not source.exists():
            return
        self.paths.setdefault(target.as_posix(), str(source.resolve()))
        if source.suffix == ".py" and len(target.parts) == 1:  # bytecode of all single-file modules shares a folder
            bytecode = Path(importlib.util.cache_from_source(str(source)))
            if bytecode.exists():
                self.paths.setdefault(f"__pycache__/{bytecode.name}", str(bytecode.resolve()))


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


def _requirements(distribution: Distribution, extras: Collection[str]) -> Iterator[tuple[Distribution, set[str]]]:
    """Yield the installed distributions that one with `extras` requires, and their extras."""
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        dependency = _distribution(requirement.name)
        if dependency is not None:
            yield dependency, requirement.extras
