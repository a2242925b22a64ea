"""Digests of the code, files and weights that the results of an evaluation depend on, besides its settings."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import shlex
import textwrap
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
from forge_env.utils.by_value import is_importable, text_of
from forge_env.utils.digests import code_digests, file_digest, files_digests, value_digest
from forge_env.utils.targets import is_file, load, source_of, split_target

FIND_MODEL, SPLIT_ADAPTER = "agents.model_folder:find_model", "agents.model_folder:split_adapter"
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
NOT_COVERED = (
    "packages that the code imports, and modules that it imports by a computed name",
    "files and services that the code reads while it runs, where no option names them",
)
GIVEN_NOT_COVERED = "what a class or function of a notebook or script uses beside itself, and what an Agent holds"
ENDPOINT_NOT_COVERED = "what the endpoint serves under the model's name"


def depends_on(
    agent: str, factory: EnvFactory, tasks: Sequence[Task], *, adapter: str = "", agent_object: object = None
) -> dict[str, Any]:
    """The digests of everything that an evaluation depends on, by part, and a list of what they do not cover.

    Args:
        agent_object: the function or the Agent itself, if Python's code has given it.
    """
    kind, argument = split_agent(agent)
    if kind == "vllm":
        argument, adapter = load(SPLIT_ADAPTER)(argument, adapter)
        agent = f"vllm:{argument}"
    try:
        agent_digests = {**_agent_digests(agent), **_adapter_digests(adapter), **_object_digests(agent_object)}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None
    return {
        "forge_env": {"forge_env": __version__},
        "environment": environment_digests(factory),
        "agent": agent_digests,
        **task_digests(tasks),
        "not_covered": [
            *NOT_COVERED,
            *([ENDPOINT_NOT_COVERED] if kind == "openai" else []),
            *([GIVEN_NOT_COVERED] if _holds_more(agent_object) or not is_importable(factory.env_class) else []),
        ],
    }


def task_digests(tasks: Sequence[Task]) -> dict[str, Any]:
    return {"tasks": {"tasks": value_digest(list(tasks))}}


def environment_digests(factory: EnvFactory) -> dict[str, str]:
    modules = [*_modules(factory.env_class), *_named_code(factory.options)]
    files = _named_files(factory.options)
    try:
        served_digests = getattr(factory.env_class, "served_digests", {})  # of code that another machine runs
        texts = {base.__name__: text for base in factory.env_class.__mro__ if (text := text_of(base))}
        own = {f"class {name}": value_digest(text) for name, text in texts.items()}
        judge = target_digests(filter(None, [factory.group_reward]))
        of_files = {name: file_digest(path) for name, path in files.items()}
        return {**code_digests(modules), **judge, **of_files, **served_digests, **own}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def target_digests(targets: Iterable[str]) -> dict[str, str]:
    """Digests of the code that targets name, such as "own.py:loss"; a missing file has none."""
    sources = [split_target(target)[0] for target in targets]
    paths = {source: Path(source).expanduser() for source in sources if is_file(source)}
    try:
        return code_digests(
            paths.get(source, source) for source in sources if source not in paths or paths[source].is_file()
        )
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None


def changed_parts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The parts that have changed, each with the names of its changed entries.

    >>> changed({"agent": {"a.py": "1", "b.py": "2"}}, {"agent": {"a.py": "1", "b.py": "3"}})
    ['the agent (b.py)']
    """
    parts = []
    for part in (part for part in now if part != "not_covered"):
        old, new = then.get(part, {}), now[part]
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        if names:
            details = [name for name in names if name not in (part, "forge_env")]
            parts.append(_PARTS[part] + (f" ({_list_names(details)})" if details else ""))
    return parts


_PARTS = {
    "forge_env": "forge_env itself",
    "environment": "the environment",
    "agent": "the agent",
    "tasks": "the tasks",
    "training": "the code of the training",
}


def _list_names(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _modules(env_class: type[Env]) -> Iterator[str]:
    yield from (base.__module__ for base in env_class.__mro__ if base is not object)
    yield from (split_target(target)[0] for target in env_class.shared.values())
    yield from env_class.made_of


def label(value: Any) -> str:
    """Return the target of a class or function; for one that no other process can import, its module and its name."""
    return source_of(value) if is_importable(value) else f"{value.__module__}:{value.__qualname__}"


def code_of(value: Any) -> Any:
    """The function that a function of Python's code calls, or the class of an object."""
    while isinstance(value, functools.partial):
        value = value.func
    return value if inspect.isroutine(value) else type(value)


def _holds_more(value: Any) -> bool:
    """Whether a function or an Agent may hold what its code does not say."""
    return value is not None and not (inspect.isfunction(value) and is_importable(value))


def _object_digests(value: Any) -> dict[str, str]:
    """The digest of a function, or an Agent's class, that no other process can import; {} for another one."""
    code = code_of(value)
    if value is None or is_importable(code):
        return {}
    try:
        return {label(code): value_digest(text_of(code) if isinstance(code, type) else _text_of_function(code))}
    except (OSError, TypeError):  # nobody holds the text, as of `python -c`, or it is none of Python
        return {}


def _text_of_function(function: Any) -> str:
    """The text of a function; of a lambda without the call that it is an argument of, if it is the only one there."""
    text = inspect.getsource(function)
    try:
        lambdas = [node for node in ast.walk(ast.parse(textwrap.dedent(text))) if isinstance(node, ast.Lambda)]
    except SyntaxError:
        return text
    return ast.unparse(lambdas[0]) if function.__name__ == "<lambda>" and len(lambdas) == 1 else text


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value, the items of a list with commas, and the words of a command line."""
    if isinstance(value, str):
        yield value
        yield from value.split(",")
        try:
            yield from shlex.split(value)
        except ValueError:
            pass
    elif isinstance(value, Mapping):
        yield from (text for item in value.values() for text in _texts(item))
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        yield from (text for item in value for text in _texts(item))


def _named_code(options: Mapping[str, Any]) -> Iterator[str | Path]:
    """Yield the code that options name: a target, a Python file, or a registered set of tools."""
    for text in dict.fromkeys(_texts(options)):
        entry = find(text, "tools") if text.isidentifier() else None
        source, colon, _ = (entry.target if entry else text).rpartition(":")
        path = Path(source if colon else text).expanduser()
        if is_file(path.name) and path.is_file():
            yield path
        elif entry is not None and colon and not is_file(source):
            yield source


def _named_files(options: Mapping[str, Any]) -> dict[str, Path]:
    """Return the other files that options name, such as an openapi: document, or a file of tasks for each split."""
    files = {}
    for text in dict.fromkeys(_texts(options)):
        for name in (text, text.partition(":")[2], *(text.replace("{split}", split) for split in ("train", "test"))):
            path = Path(name).expanduser()
            if name and "\0" not in name and len(name) < 4096 and not is_file(name) and _is_file(path):
                files[name] = path
    return files


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text that is too long for a file name
        return False


def _agent_digests(agent: str) -> dict[str, str]:
    kind, argument = split_agent(agent)
    if kind == "scripted" and ":" in argument:
        return target_digests([argument])
    if kind in ("vllm", "checkpoint"):
        return files_digests(path for pattern in MODEL_FILES for path in _model_folder(kind, argument).glob(pattern))
    return {}


def _adapter_digests(folder: str) -> dict[str, str]:
    if not folder:
        return {}
    path = Path(folder).expanduser()  # a missing folder is reported when the agent is opened
    digests = files_digests(file for pattern in ADAPTER_FILES for file in path.glob(pattern))
    return {f"adapter/{name}": digest for name, digest in digests.items()}


def _model_folder(kind: str, name: str) -> Path:
    """Return the folder of a model; a model of the hub is downloaded."""
    has_engine = importlib.util.find_spec("vllm") is not None
    return Path(load(FIND_MODEL)(name, option=f"{kind}:") if has_engine else name).expanduser()
