"""What the numbers of an evaluation hang on beside its settings: the code, files and weights behind the names."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_env import __version__
from forge_env.core.env import Env
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.registry.agent_spec import split_agent
from forge_env.registry.registry import find
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.digests import code_digests, file_digest, files_digests, value_digest
from forge_env.utils.targets import is_file, load, split_target

FIND_MODEL = "agents.model_folder:find_model"
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
NOT_COVERED = (
    "packages that the code imports, and modules that it imports by a computed name",
    "files and services that the code reads while it runs, where no option names them",
)
OF_AN_ENDPOINT = "what the endpoint serves under the model's name"


def depends_on(agent: str, factory: EnvFactory, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the digests of what an evaluation measures, by part, and in words what they leave out.

    Args:
        agent: as a command line names it.
        factory: of the environment.
        tasks: all of them, in order.

    Raises:
        UserError: for a model that is not there, or a file that cannot be read.
    """
    try:
        behind_agent = _agent(agent)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None
    return {
        "forge_env": {"forge_env": __version__},
        "environment": environment_digests(factory),
        "agent": behind_agent,
        "tasks": {"tasks": value_digest(tasks)},
        "not_covered": [*NOT_COVERED, *([OF_AN_ENDPOINT] if split_agent(agent)[0] == "openai" else [])],
    }


def environment_digests(factory: EnvFactory) -> dict[str, str]:
    """Digests of the code of an environment and of the files that its options name.

    Raises:
        UserError: for a file that cannot be read.
    """
    modules = [*_modules(factory.env_class), *_named_code(factory.options)]
    files = _named_files(factory.options)
    try:
        return {**code_digests(modules), **{name: file_digest(path) for name, path in files.items()}}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def changed(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the parts that are not what they were, each with what changed in it.

    >>> changed({"agent": {"a.py": "1", "b.py": "2"}}, {"agent": {"a.py": "1", "b.py": "3"}})
    ['the agent (b.py)']
    """
    found = []
    for part in (part for part in now if part != "not_covered"):
        was, is_now = then.get(part, {}), now[part]
        names = sorted(name for name in was.keys() | is_now.keys() if was.get(name) != is_now.get(name))
        if names:
            own = [name for name in names if name not in (part, "forge_env")]
            found.append(_PARTS[part] + (f" ({_listed(own)})" if own else ""))
    return found


_PARTS = {"forge_env": "forge_env itself", "environment": "the environment", "agent": "the agent", "tasks": "the tasks"}


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _modules(env_class: type[Env]) -> Iterator[str]:
    """The modules that a class, its bases and what its episodes share are written in."""
    yield from (each.__module__ for each in env_class.__mro__ if each is not object)
    yield from (split_target(target)[0] for target in env_class.shared.values())
    yield from env_class.made_of


def _texts(value: Any) -> Iterator[str]:
    """The texts within a value, and the words of each: a list is written with commas, a command with blanks."""
    if isinstance(value, str):
        yield value
        yield from value.split(",")
        try:
            yield from shlex.split(value)
        except ValueError:
            pass
    elif isinstance(value, Mapping):
        yield from (text for each in value.values() for text in _texts(each))
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        yield from (text for each in value for text in _texts(each))


def _named_code(options: Mapping[str, Any]) -> Iterator[str | Path]:
    """The code that options name: a target, a Python file, a registered set of tools."""
    for text in dict.fromkeys(_texts(options)):
        entry = find(text, "tools") if text.isidentifier() else None
        source, colon, _ = (entry.target if entry else text).rpartition(":")
        path = Path(source if colon else text).expanduser()
        if is_file(path.name) and path.is_file():
            yield path
        elif entry is not None and colon and not is_file(source):
            yield source


def _named_files(options: Mapping[str, Any]) -> dict[str, Path]:
    """The other files that options name, as an openapi: document or a file of tasks for each split."""
    found = {}
    for text in dict.fromkeys(_texts(options)):
        for name in (text, text.partition(":")[2], *(text.replace("{split}", split) for split in ("train", "test"))):
            path = Path(name).expanduser()
            if name and "\0" not in name and len(name) < 4096 and not is_file(name) and _is_file(path):
                found[name] = path
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for a file
        return False


def _agent(agent: str) -> dict[str, str]:
    kind, rest = split_agent(agent)
    if kind == "scripted" and ":" in rest:
        source = split_target(rest)[0]
        path = Path(source).expanduser()
        return code_digests([path] if is_file(source) and path.is_file() else [] if is_file(source) else [source])
    if kind in ("vllm", "checkpoint"):
        return files_digests(path for pattern in MODEL_FILES for path in _model(kind, rest).glob(pattern))
    return {}


def _model(kind: str, name: str) -> Path:
    """The folder of a model; one of the hub is downloaded."""
    if kind == "checkpoint":
        return Path(name).expanduser() / "model"  # its opener says what is missing, and for vllm: too
    if importlib.util.find_spec("vllm") is None:
        return Path(name).expanduser()
    found: Path = load(FIND_MODEL)(name, option="vllm:")
    return found
