"""The arguments of a tool: their JSON schema, read from its signature, and the check of those of a call by pydantic."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NotRequired, Required

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError

from forge_env.core.errors import UserError
from forge_env.core.json_text import ARGUMENTS
from forge_env.core.plain_value import json_problem, plain

_PYDANTIC_TAKES_ALL = sys.version_info >= (3, 12)
"""Whether pydantic takes the TypedDicts of `typing`."""
_TEXTS_IN_TEXTS = 4
"""How often arguments are read that are JSON text within JSON text."""
_WANT_DATA = frozenset(
    {"list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "dict_type", "mapping_type"}
    | {"model_type", "model_attributes_type", "dataclass_type"}
)
"""Types of pydantic's errors about a value that is not an array or not an object."""


def signature_of(name: str, function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"the signature of the tool {name} cannot be read: {error}") from None


def read_signature(
    name: str, parameters: Sequence[inspect.Parameter], descriptions: Mapping[str, str]
) -> tuple[ArgumentModel, dict[str, Any]]:
    fields: dict[str, Any] = {}
    for i, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"the tool {name} has the parameter {parameter}: a model passes arguments by name only")
        is_typed = parameter.annotation is not parameter.empty
        annotation = _replace_typed_dicts(parameter.annotation, name) if is_typed else Any
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
    return ArgumentModel(model), schema


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


class ArgumentModel:
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
            if type(value) is not str and (place := _boolean(arguments.get(alias), value, alias)):
                raise ValueError(f"{place}: it must be a number, and true and false are none.")
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


def _boolean(given: Any, value: Any, place: str) -> str:
    """The place of true or false that was taken for a number; pydantic takes them for 1 and 0."""
    if isinstance(given, bool):
        return place if type(value) in (int, float) else ""
    if isinstance(given, list) and isinstance(value, (list, tuple)):
        parts = [(f"{place}.{key}", *both) for key, both in enumerate(zip(given, value, strict=False))]
    elif isinstance(given, Mapping) and isinstance(value, Mapping):
        parts = [(f"{place}.{key}", part, value.get(key)) for key, part in given.items()]
    else:
        return ""
    return next((place_within for where, one, other in parts if (place_within := _boolean(one, other, where))), "")


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
