"""`@tool` and `@reward`: mark functions and methods as tools and rewards.

A tool's JSON schema (draft 2020-12) comes from its signature and its Google, NumPy or Sphinx docstring; arguments are
validated and coerced by pydantic. A wrong call becomes an error message for the model.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import docstring_parser

from forge_env.core.errors import UserError
from forge_env.core.tool_arguments import ArgumentModel, read_signature, signature_of
from forge_env.core.types import ToolCall, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])
Arguments = Callable[[dict[str, Any]], dict[str, Any]]
"""Coerces the arguments of a call. Raises ValueError, which names the mistake."""

_MARK = "__forge_tool__"


class BadCall(Exception):
    """A call that the model got wrong; its text is the error message for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """How the calls of a tool run.

    Raises:
        UserError: for a number out of range, and for retries of a tool that is not idempotent.
    """

    timeout: float = 30.0
    """Time limit of a call in seconds, after which it is stopped; waiting for a free slot does not count."""
    concurrency: int | None = None
    """Maximum number of concurrent calls in this process, over all episodes; None for no limit."""
    max_output: int = 8192
    """Maximum number of characters of a result; the rest is cut."""
    retries: int = 0
    """Number of further attempts after a call that raised, with growing pauses; only for idempotent tools."""
    idempotent: bool = False
    """Whether a second call with the same arguments has no further effect."""
    parallel: bool = False
    """Whether calls in one turn may run concurrently; otherwise they run one after another, in order."""
    fatal: tuple[type[Exception], ...] = ()
    """Exceptions that are a fault of the environment instead of an observation."""

    def __post_init__(self) -> None:
        for name in ("timeout", "concurrency", "max_output", "retries"):
            value = getattr(self, name)
            if not isinstance(value, int | float) and (name, value) != ("concurrency", None):
                raise UserError(f"a tool's {name} is {value!r:.60}; it is a number")
        if not self.timeout > 0:
            raise UserError(f"a tool's timeout is {self.timeout!r}; it is a number of seconds above 0")
        if self.concurrency is not None and self.concurrency < 1:
            raise UserError(f"a tool's concurrency is {self.concurrency!r}; it is 1 or more, or None for any number")
        if self.max_output < 1 or self.retries < 0:
            raise UserError("a tool's max_output is 1 or more, and its retries are 0 or more")
        if self.retries and not self.idempotent:
            raise UserError(
                f"a tool has retries={self.retries} and is not idempotent: add idempotent=True or leave both"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool:
    """A tool: its description for the model, the check of its arguments, and its function."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object; all episodes share it."""
    arguments: Arguments
    function: Callable[..., Any]
    """Called with the coerced arguments by keyword; a method gets the instance first."""
    options: ToolOptions = field(default_factory=ToolOptions)
    is_method: bool = False
    _semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(
        default_factory=WeakKeyDictionary
    )

    def __reduce__(self) -> Any:
        """Another process makes the tool again of its function."""
        if type(self.arguments) is not ArgumentModel:
            raise TypeError(f"the tool {self.name} belongs to a connection of this process")
        name, options, is_method = self.name, self.options, self.is_method
        return functools.partial(make_tool, self.function, name=name, options=options, is_method=is_method), ()

    @property
    def spec(self) -> ToolSpec:
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    def validate(self, call: ToolCall) -> dict[str, Any]:
        """Return the coerced arguments of a call.

        Raises:
            BadCall: with the mistake and the schema.
        """
        if call.arguments is None:
            raise BadCall(
                self._error_message(f"the arguments of {self.name} are not a JSON object. {call.error}".strip())
            )
        try:
            return self.arguments(call.arguments)
        except (ValueError, RecursionError) as error:
            raise BadCall(self._error_message(f"bad arguments for {self.name}: {error}")) from None

    def semaphore(self) -> asyncio.Semaphore | None:
        """Return the semaphore that limits concurrent calls in this process, or None without a limit."""
        if self.options.concurrency is None:
            return None
        loop = asyncio.get_running_loop()
        if loop not in self._semaphores:
            self._semaphores[loop] = asyncio.Semaphore(self.options.concurrency)
        return self._semaphores[loop]

    def _error_message(self, problem: str) -> str:
        return f"Error: {problem} Schema: {json.dumps(self.parameters, ensure_ascii=False)}"


def tool(
    function: F | None = None,
    /,
    *,
    timeout: float = 30.0,
    concurrency: int | None = None,
    max_output: int = 8192,
    retries: int = 0,
    idempotent: bool = False,
    parallel: bool = False,
    fatal: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Mark a function or method as a tool that the model may call; its docstring is the description for the model.

    The settings are fields of `ToolOptions`.

    Raises:
        UserError: for a setting that is out of range.
    """
    options = ToolOptions(
        timeout=timeout,
        concurrency=concurrency,
        max_output=max_output,
        retries=retries,
        idempotent=idempotent,
        parallel=parallel,
        fatal=fatal if isinstance(fatal, tuple) else (fatal,),
    )

    def mark(target: F) -> F:
        setattr(_check_target("@tool", target, "@tool(timeout=5)"), _MARK, options)
        return target

    return mark(function) if function is not None else mark


def reward(function: F | None = None, /, *, weight: float = 1.0) -> Any:
    """Mark a method as part of the reward, with a weight.

    Its parameters name the arguments that it gets: see `forge_env.tool_env.rubric`.

    Raises:
        UserError: for a weight that is not a number.
    """
    return _mark_weight("reward", function, weight)


def group_reward(function: F | None = None, /, *, weight: float = 1.0) -> Any:
    """Mark a method that compares the siblings of a task, as a part of the reward of each, with a weight.

    Its parameters name the arguments that it gets, and it returns one number for each sibling: see
    `forge_env.rollout.group_reward`.

    Raises:
        UserError: for a weight that is not a number.
    """
    return _mark_weight("group_reward", function, weight)


def _mark_weight(name: str, function: F | None, weight: float) -> Any:
    if not isinstance(weight, Real):
        raise UserError(f"a reward's weight is {weight!r:.60}; it is a number")

    def mark(method: F) -> F:
        setattr(_check_target(f"@{name}", method, f"@{name}(weight=0.5)"), f"__forge_{name}__", weight)
        return method

    return mark(function) if function is not None else mark


def _check_target(mark: str, target: Any, example: str) -> Any:
    """What a mark is above, if it can be marked."""
    if isinstance(target, staticmethod | type) or not callable(target):
        raise UserError(
            f"{mark} is given {target!r:.60}, which is no method: write it above a def with self, and its settings by "
            f"name, as in {example}"
        )
    return target


def without_self(what: str, parameters: Sequence[inspect.Parameter]) -> Sequence[inspect.Parameter]:
    """Return the parameters of a method but the first, which is the instance."""
    if [p.name for p in parameters[:1]] != ["self"]:
        raise UserError(f"{what} has no parameter self: write it as a method, without @staticmethod or @classmethod")
    return parameters[1:]


def is_tool(function: object) -> bool:
    """Whether a function is marked with `@tool`."""
    return hasattr(function, _MARK)


def make_tool(
    function: Callable[..., Any], *, name: str = "", options: ToolOptions | None = None, is_method: bool = False
) -> Tool:
    """Make a tool from the signature and docstring of a function.

    Args:
        function: any callable with named parameters; annotations may be builtins, Optional, Literal, Enum, list, dict,
            dataclasses, TypedDicts and pydantic models. A parameter without an annotation accepts anything.
        name: of the tool; the function's name by default.
        is_method: whether the first parameter is the instance, which is hidden from the model.
    """
    name = name or getattr(function, "__name__", type(function).__name__)
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    parameters = signature_of(name, function)
    if is_method:
        parameters = without_self(f"the tool {name}", parameters)
    descriptions = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
    arguments, schema = read_signature(name, parameters, descriptions)
    description = "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
    return Tool(
        name=name,
        description=description,
        parameters=schema,
        arguments=arguments,
        function=function,
        options=options or getattr(function, _MARK, None) or ToolOptions(),
        is_method=is_method,
    )
