"""What the installed vLLM says of its settings, read from its source: importing vLLM takes seconds.

Everything is empty where vLLM is not installed.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from forge_env.utils.syntax import parse_python

ENGINE_ARGS = "engine/arg_utils.py", "EngineArgs"
SPECULATIVE = "config/speculative.py", "SpeculativeConfig"
_BACKENDS = "v1/attention/backends/registry.py"
_WORDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@functools.cache
def field_types(file: str, name: str) -> dict[str, str]:
    """The fields of a class with the source of their types."""
    return {field: ast.unparse(line.annotation) for field, line in _fields(_class(file, name))}


@functools.cache
def choices() -> dict[str, tuple[str, ...]]:
    """The texts that a type stands for, by its name: of literals in vLLM's configs, and of attention backends."""
    found: dict[str, ast.expr] = {}
    for tree in _configs():
        for line in tree.body:
            target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
            value = getattr(line, "value", None)
            if not (isinstance(target, ast.Name) and isinstance(value, ast.Subscript)):
                continue
            if ast.unparse(value.value) == "Literal":
                found[target.id] = value.slice

    def texts(node: ast.expr) -> Iterator[str | None]:
        for each in node.elts if isinstance(node, ast.Tuple) else [node]:
            if isinstance(each, ast.Name) and each.id in found:
                yield from texts(found[each.id])
            else:
                yield each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else None

    known = {name: tuple(texts(node)) for name, node in found.items()}
    result = {name: values for name, values in known.items() if None not in values}
    backends = [line.targets[0] for line in _class(_BACKENDS, "AttentionBackendEnum") if isinstance(line, ast.Assign)]
    if names := tuple(target.id for target in backends if isinstance(target, ast.Name)):
        result["AttentionBackendEnum"] = ("auto", *names)
    return result  # type: ignore[return-value]  # without None


@functools.cache
def bounds() -> dict[str, dict[str, float]]:
    """The bounds of a number, by the setting's name: {"watermark": {"at least": 0, "below": 1}}.

    Left out are names that two of vLLM's configs give different bounds.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for tree in _configs():
        for config in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for name, line in _fields(config.body):
                if isinstance(line.value, ast.Call) and ast.unparse(line.value.func) == "Field":
                    words = {_WORDS[each.arg]: each.value for each in line.value.keywords if each.arg in _WORDS}
                    numbers = {word: ast.literal_eval(node) for word, node in words.items()}
                    found.setdefault(name, []).append(numbers)
    return {name: each[0] for name, each in found.items() if each[0] and all(other == each[0] for other in each)}


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AnnAssign]]:
    for line in body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
            yield line.target.id, line


def _class(file: str, name: str) -> list[ast.stmt]:
    """The lines of a class."""
    folder = _folder()
    tree = _parsed(folder / file) if folder else ast.Module([], [])
    return next((node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), [])


def _configs() -> list[ast.Module]:
    folder = _folder()
    return [_parsed(file) for file in sorted((folder / "config").glob("*.py"))] if folder else []


@functools.cache
def _parsed(file: Path) -> ast.Module:
    tree: ast.Module = parse_python(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return tree


def _folder() -> Path | None:
    spec = importlib.util.find_spec("vllm")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
