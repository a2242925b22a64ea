"""`@tool` and `@reward`: mark functions and methods as tools and rewards.

A tool's JSON schema (draft 2020-12) comes from its signature and its Google, NumPy or Sphinx docstring; arguments are
validated and coerced by pydantic. A wrong call becomes an error message for the model.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any, NotRequired, Required, TypeVar
from weakref import WeakKeyDictionary

import docstring_parser
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from forge_env.core.errors import UserError
from forge_env.core.json_text import ARGUMENTS
from forge_env.core.plain_value import json_problem, plain
from forge_env.core.types import ToolCall, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])
Arguments = Callable[[dict[str, Any]], dict[str, Any]]
"""Coerces the arguments of a call. Raises ValueError, which names the mistake."""

_MARK = "__forge_tool__"
_PYDANTIC_TAKES_ALL = sys.version_info >= (3, 12)
"""Whether pydantic takes the TypedDicts of `typing`."""
_TEXTS_IN_TEXTS = 4
"""How often arguments are read that are JSON text within JSON text."""
_WANT_DATA = frozenset(
    {"list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "dict_type", "mapping_type"}
    | {"model_type", "model_attributes_type", "dataclass_type"}
)
"""Types of pydantic's errors about a value that is not an array or not an object."""


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
        if type(self.arguments) is not _ArgumentModel:
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
    descriptions = {p.arg_name: " ".join((p.description or "").split()) for p in doc.params}
    fields: dict[str, Any] = {}
    parameters: Sequence[inspect.Parameter] = _parameters(name, function)
    for i, parameter in enumerate(without_self(f"the tool {name}", parameters) if is_method else parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"the tool {name} has the parameter {parameter}: a model passes arguments by name only")
        annotation = (
            Any if parameter.annotation is parameter.empty else _replace_typed_dicts(parameter.annotation, name)
        )
        # An alias: the parameter may have a name that pydantic models reserve, such as "schema".
        about: dict[str, Any] = {"alias": parameter.name}
        if text := descriptions.get(parameter.name):
            about["description"] = text
        info = parameter.default
        if isinstance(info, FieldInfo):  # n: int = Field(10, ge=1)
            annotation = Annotated[annotation, info]
            if not info.is_required():
                kind = "default" if info.default_factory is None else "default_factory"
                about[kind] = getattr(info, kind)
        elif info is not parameter.empty:
            about["default"] = info
        fields[f"argument_{i}"] = (annotation, Field(**about))
    try:
        model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = without_titles(model.model_json_schema(schema_generator=_Schema))
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the tool {name} takes something that has no JSON schema: {reason}") from None
    schema.pop("additionalProperties", None)
    if problem := json_problem(schema):
        raise UserError(f"the parameters of the tool {name} have a schema that {problem}")
    description = "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
    return Tool(
        name=name,
        description=description,
        parameters=schema,
        arguments=_ArgumentModel(model),
        function=function,
        options=options or getattr(function, _MARK, None) or ToolOptions(),
        is_method=is_method,
    )


class _Schema(GenerateJsonSchema):
    """A schema that is JSON: a default or a bound that JSON cannot hold, such as infinity, is left out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def encode_default(self, dft: Any) -> Any:
        try:
            default = plain(dft)
            json.dumps(default, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise PydanticSerializationError(str(error)) from None
        return default

    def float_schema(self, schema: Any) -> dict[str, Any]:
        return super().float_schema({k: v for k, v in schema.items() if v not in (math.inf, -math.inf)})  # type: ignore[arg-type]


class _ArgumentModel:
    """Validates arguments with a pydantic model."""

    __slots__ = ("_model", "_names")

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        self._names = [(name, info.alias or name) for name, info in model.model_fields.items()]

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            values = self._values(plain(arguments))
        except ValidationError as error:
            problems = (f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}." for e in error.errors())
            raise ValueError(" ".join(problems)) from None
        arguments_by_alias = {}
        for name, alias in self._names:  # a comprehension would cost a call of its own
            arguments_by_alias[alias] = value = values[name]
            if type(value) is not str and alias in arguments and (place := _not_finite(value, alias)):
                raise ValueError(f"{place}: it must be a finite number.")
        return arguments_by_alias

    def _values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Validate; JSON text of an array or an object is taken for it if the schema wants one and takes no text."""
        for _ in range(_TEXTS_IN_TEXTS):
            try:
                return self._model.__pydantic_validator__.validate_python(arguments).__dict__
            except ValidationError as error:
                read, arguments = arguments, copy.deepcopy(arguments)
                replacements = [_read_text(arguments, item) for item in error.errors(include_url=False)]
                if not any(replacements):
                    arguments = read
                    break
        return self._model.__pydantic_validator__.validate_python(arguments).__dict__


def _not_finite(value: Any, place: str) -> str:
    """The place of a number within a value that is NaN or infinite: JSON has none, and a text or 1e999 can spell it."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else place
    if isinstance(value, Mapping):
        parts = [*value.items(), *((key, key) for key in value)]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [*enumerate(value)]
    elif isinstance(value, BaseModel):
        parts = [*value]
    elif dataclasses.is_dataclass(value):
        parts = [(part.name, getattr(value, part.name)) for part in dataclasses.fields(value)]
    else:
        return ""
    return next((place_within for key, part in parts if (place_within := _not_finite(part, f"{place}.{key}"))), "")


def _read_text(arguments: dict[str, Any], error: Any) -> bool:
    """Replace the text that an error is about by the array or object that it is the JSON of; return whether it is."""
    if error["type"] not in _WANT_DATA or not isinstance(error["input"], str):
        return False
    parent: Any = arguments
    key: Any = None
    for step in error["loc"]:  # it has steps that name the alternative of a union, too
        value = parent[key] if key is not None else parent
        if (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int)):
            parent, key = value, step
    try:
        data = json.loads(error["input"], **ARGUMENTS | {"parse_float": float})  # `_not_finite` names the place
    except (ValueError, RecursionError):
        return False
    if key is None or parent[key] != error["input"] or not isinstance(data, (list, dict)):
        return False
    parent[key] = data
    return True


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"the signature of the tool {name} cannot be read: {error}") from None


def _replace_typed_dicts(annotation: Any, tool: str, within: tuple[Any, ...] = ()) -> Any:
    """Replace TypedDicts of `typing` in an annotation: pydantic does not support them before Python 3.12."""
    if _PYDANTIC_TAKES_ALL:
        return annotation
    if typing.is_typeddict(annotation):
        if annotation in within:
            raise UserError(
                f"the tool {tool} takes {annotation.__name__}, a TypedDict of typing that contains itself: take "
                "typing_extensions.TypedDict, or a pydantic model"
            )
        fields: dict[str, Any] = {}
        for name, hint in typing.get_type_hints(annotation, include_extras=True).items():
            field_type = _replace_typed_dicts(hint, tool, (*within, annotation))
            if typing.get_origin(hint) not in (Required, NotRequired):
                field_type = (Required if name in annotation.__required_keys__ else NotRequired)[field_type]
            fields[name] = field_type
        make: Any = typing_extensions.TypedDict
        return make(annotation.__name__, fields)
    arguments = typing.get_args(annotation)
    new_arguments = tuple(_replace_typed_dicts(argument, tool, within) for argument in arguments)
    if new_arguments == arguments:
        return annotation
    origin: Any = typing.get_origin(annotation)
    union: Any = typing.Union
    return union[new_arguments] if origin is types.UnionType else origin[new_arguments]


def without_titles(schema: Any) -> Any:
    """Return a schema without titles, which cost tokens and do not help the model."""
    if isinstance(schema, dict):
        entries = {k: v for k, v in schema.items() if not (k in ("title", "$schema") and isinstance(v, str))}
        return {key: without_titles(value) for key, value in entries.items()}
    return [without_titles(item) for item in schema] if isinstance(schema, list) else schema
