"""The build hook of the wheel: it puts agents, contrib, envs, sandboxes and trainers below `forge_env`.

Other distributions have top-level packages of these names (`agents` is openai-agents'), and so have many projects.
Installers write two packages of one name into one folder, over each other's files, and Python imports only one of them.
So the wheel owns only names that begin with `forge_env`.

In the checkout, and in an editable install of it, the packages stay where they are.
"""

from __future__ import annotations

import ast
import itertools
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TOP = "forge_env"
MOVED = ("agents", "contrib", "envs", "sandboxes", "trainers")
OF_CONTRIB = ("tests", "benchmarks", "examples", "*.md", "*.png")
"""What the wheel leaves out of the folders of contrib."""
SHORT_NAMES = "forge_env_short_names"
DOCKERFILE = "Dockerfile.sandbox"
_NAME = re.compile(rf"({'|'.join(MOVED)})((?:\.\w+)*)(:\w[\w.]*)?")
"""A module, or a "module:object", as a text."""
_MENTION = re.compile(rf"\b(?:{'|'.join(MOVED)})\b".encode())
"""What a source contains that names a module which moves: a third of them need no parsing."""
_TARGET = re.compile(rf'"({"|".join(MOVED)})\.')
"""The beginning of one in a file that is not Python."""


class WheelLayout(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="forge_env-wheel-")
        write_wheel(Path(self.root), Path(self._folder.name))
        build_data["force_include"][self._folder.name] = "/"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def write_wheel(root: Path, folder: Path) -> None:
    """Write what the wheel of the checkout `root` installs into an empty folder."""
    for package in (TOP, *MOVED):
        target = folder / TOP if package == TOP else folder / TOP / package
        left_out = shutil.ignore_patterns("__pycache__", *(OF_CONTRIB if package == "contrib" else ()))
        shutil.copytree(root / package, target, ignore=left_out)
    for path in (folder / TOP).rglob("*.py"):
        path.write_bytes(with_long_names(path.read_bytes(), root, path.relative_to(folder).as_posix()))
    # The docker sandbox builds its image from it, wherever forge_env is installed.
    docker = folder / TOP / "contrib/docker"
    copied = [Path(shutil.copy(root / DOCKERFILE, docker))] if docker.is_dir() else []
    for path in (*copied, *(folder / TOP).rglob("names.toml")):
        path.write_text(_TARGET.sub(rf'"{TOP}.\1.', path.read_text(encoding="utf-8")), encoding="utf-8")
    shutil.copy(root / f"{SHORT_NAMES}.py", folder)
    (folder / f"{SHORT_NAMES}.pth").write_text(f"import {SHORT_NAMES}\n", encoding="utf-8")


def with_long_names(source: bytes, root: Path, file: str) -> bytes:
    """Return a source with `forge_env.` in front of every name of a module that moves; the lines stay the same.

    The names are those of imports, and texts that are the name of an existing module or a "module:object" of one.

    Raises:
        ValueError: for a name that cannot be replaced in its place, with the file and line.
    """
    if not _MENTION.search(source):
        return source
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    lines = source.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    places = set()
    for node, name in _names(nodes, root):
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        found = re.search(rf"\b{re.escape(name)}\b".encode(), source[start:end])
        # `import envs.math` binds envs, and `import forge_env.envs.math` does not.
        bound = isinstance(node, ast.alias) and not node.asname and name.partition(".")[0] in used
        if found is None or bound or id(node) in parts:
            raise ValueError(f"{file}, line {node.lineno}: {name} cannot get its name of the wheel here")
        places.add(start + found.start())
    for place in sorted(places, reverse=True):
        source = source[:place] + f"{TOP}.".encode() + source[place:]
    return source


def _names(nodes: Iterable[ast.AST], root: Path) -> Iterator[tuple[Any, str]]:
    """Yield the nodes that name a module that moves, and the name."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and node.module and _moves(node.module):
            yield node, node.module
        elif isinstance(node, ast.Import):
            yield from ((alias, alias.name) for alias in node.names if _moves(alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _NAME.fullmatch(node.value)
            if match and (match[2] or match[3]) and _is_module(root, match[1] + match[2]):
                yield node, match[1] + match[2]


def _moves(module: str) -> bool:
    return module.partition(".")[0] in MOVED


def _is_module(root: Path, name: str) -> bool:
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()
