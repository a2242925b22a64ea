"""Checks the arguments of a call against a foreign JSON schema, and converts values of the wrong type.

Converted are text to numbers, numbers to text, 5.0 to the integer 5, and JSON text to lists and objects, where the
schema asks for them.
Pydantic converts the arguments of functions in the same way.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from contrib.common.json_text import write
from contrib.common.patterns import linear_pattern
from forge_env.core.errors import UserError
from forge_env.core.json_text import ARGUMENTS

_ROUNDS = 5  # a converted value may show further errors, once for each level of JSON text in JSON text
_MAX_PROBLEMS, _MAX_TEXT = 3, 200


class SchemaArguments:
    """Callable as `forge_env.core.tools.Tool.arguments`; made from a schema of type object."""

    def __init__(self, schema: Mapping[str, Any], *, where: str) -> None:
        self._validator = _validator(schema, where, converts=True)

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        value = copy.deepcopy(arguments)
        for _ in range(_ROUNDS):
            errors = _errors(self._validator, value)
            if not errors:
                return value
            conversions = [_convert(value, error) for error in errors]
            if not any(conversions):
                break
        raise ValueError("; ".join(_problem(error) for error in _errors(self._validator, value)[:_MAX_PROBLEMS]) + ".")


def output_check(schema: Mapping[str, Any]) -> Callable[[Any], str]:
    """Return a check of results: how a value breaks the schema, or why the schema is none; "" if it fits."""
    try:
        validator = _validator(schema, "it")
    except UserError as error:
        problem = str(error)
        return lambda value: problem

    def check(value: Any) -> str:
        try:
            errors = _errors(validator, value, 1)
        except ValueError as error:
            return str(error)
        return _problem(errors[0]) if errors else ""

    return check


def _errors(validator: Any, value: Any, most: int = 1000) -> list[Any]:
    try:
        return list(islice(validator.iter_errors(value), most))
    except OverflowError:  # `multipleOf` divides by a fraction as a float, which holds no such number
        raise ValueError("a number in it is too large") from None


def _validator(schema: Mapping[str, Any], where: str, *, converts: bool = False) -> Any:
    try:
        from jsonschema import exceptions, validators
        from referencing import Registry
    except ImportError:
        raise UserError("tools with JSON schemas need jsonschema: pip install 'forge-env[tools]'") from None
    dialect = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        for part in _parts(schema):
            _check_part(dialect, json.dumps(part, allow_nan=False))
        for node in _objects(schema):
            _check_node(schema, node, where)
    except exceptions.SchemaError as error:
        raise UserError(f"{where} has a JSON schema that is none: {_cut(error.message)}") from None
    except ValueError:
        raise UserError(f"{where} has a JSON schema with infinity or NaN in it, which JSON does not have") from None
    except RecursionError:
        raise UserError(f"{where} has a JSON schema that is nested too deeply") from None
    keywords: dict[str, Any] = {"pattern": _pattern, "patternProperties": _pattern_properties}
    keywords["additionalProperties"] = _additional_properties
    types = dialect.TYPE_CHECKER
    if converts:  # else 5.0 is an integer, which not every service reads as one
        types = types.redefine("integer", lambda _, value: _is_integer(value))
    # An empty registry: by default jsonschema would fetch the targets of references from the network.
    return validators.extend(dialect, keywords, type_checker=types)(schema, registry=Registry())


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Split a schema into parts. The tools of one service share most parts, and each is checked once."""
    frame = dict(schema)
    for key in ("properties", "$defs"):
        if isinstance(frame.get(key), dict):
            yield from frame.pop(key).values()
    yield frame


@functools.lru_cache(1024)
def _check_part(dialect: Any, text: str) -> None:
    # Without formats: a valid pattern of ECMAScript may be invalid in Python.
    dialect.check_schema(json.loads(text), format_checker=None)


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _objects(item)


def _check_node(schema: Any, node: Mapping[str, Any], where: str) -> None:
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if isinstance(node.get(keyword), str):
            _check_reference(schema, node[keyword], where)
    patterns = node.get("patternProperties")
    for pattern in patterns if isinstance(patterns, dict) else ():
        try:
            re.compile(pattern)
        except re.error:
            problem = f"has properties by the pattern {pattern[:100]!r}, which Python cannot read"
            raise UserError(f"{where} {problem}") from None


def _check_reference(schema: Any, reference: str, where: str) -> None:
    """Check that the target of a reference exists; jsonschema would follow it at each call."""
    if reference != "#" and not reference.startswith("#/"):
        raise UserError(f"{where} has a JSON schema that refers to {reference!r}, outside of itself")
    if not isinstance(target_of(schema, reference), (dict, bool)):
        raise UserError(f"{where} has a JSON schema that refers to {reference!r}, which is not there")


def target_of(node: Any, reference: str) -> Any:
    """Return what a reference within a schema names; None if it is not there.

    >>> target_of({"$defs": {"a/b": {"type": "null"}}}, "#/$defs/a~1b")
    {'type': 'null'}
    """
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword `pattern`; a pattern that cannot be matched in linear time accepts all text.

    Those are patterns with lookaround or back-references; the service checks them. A model may write any text, and
    Python's `re` takes exponential time for some pairs of pattern and text.
    """
    from jsonschema import ValidationError

    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword `patternProperties`; a pattern that cannot be matched in linear time matches no property."""
    if validator.is_type(instance, "object"):
        for pattern, part in patterns.items():
            for name in filter(lambda name: _matches(pattern, name, otherwise=False), instance):
                yield from validator.descend(instance[name], part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """The keyword `additionalProperties`; a pattern that cannot be matched in linear time accepts every name."""
    from jsonschema import ValidationError

    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [name for name in instance if name not in properties and not any(_matches(p, name) for p in patterns)]
    if validator.is_type(part, "object"):
        for name in extra:
            yield from validator.descend(instance[name], part, path=name)
    elif part is False and extra:
        names = ", ".join(map(repr, extra))
        verb = "was" if len(extra) == 1 else "were"
        yield ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _matches(pattern: str, text: str, *, otherwise: bool = True) -> bool:
    """Whether a pattern matches anywhere in a text; `otherwise` if it cannot be matched in linear time."""
    try:
        return linear_pattern(pattern)(text)
    except ValueError:
        return otherwise


def _convert(value: dict[str, Any], error: Any) -> bool:
    """Convert the value that an error is about, in place; return whether that was possible."""
    if error.validator in ("anyOf", "oneOf"):  # integers first: 5.0 becomes 5 rather than "5.0"
        causes = sorted(error.context, key=lambda cause: cause.validator_value != "integer")
        return any(_convert(value, cause) for cause in causes)
    path = list(error.absolute_path)
    if error.validator != "type" or not path:
        return False
    types = error.validator_value
    kinds = [types] if isinstance(types, str) else sorted(types, key="integer".__ne__)
    parent: Any = value
    for step in path[:-1]:
        parent = parent[step]
    for kind in kinds:
        is_converted, new_value = _try_convert(kind, parent[path[-1]])
        if is_converted:
            parent[path[-1]] = new_value
            return True
    return False


def _try_convert(kind: str, value: Any) -> tuple[bool, Any]:
    """Return whether a value can be converted to another JSON type, and the converted value."""
    if kind == "string":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number, write(value) if is_number else value
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        number = Decimal(str(value))  # a float does not hold 9007199254740993.0
        return number == number.to_integral_value(), int(number)
    if not isinstance(value, str):
        return False, value
    try:
        text = value.strip().lower() if kind == "boolean" else value
        read = json.loads(text, **ARGUMENTS)
    except (ValueError, RecursionError):
        return False, value
    fits = {
        "integer": _is_integer(read),
        "number": _is_integer(read) or isinstance(read, float),
        "boolean": isinstance(read, bool),
        "array": isinstance(read, list),
        "object": isinstance(read, dict),
        "null": read is None,
    }
    return fits.get(kind, False), read


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _problem(error: Any) -> str:
    """The path and message of an error; of alternatives, the best match's."""
    from jsonschema.exceptions import best_match, relevance

    deepest = best_match([error], key=lambda one: (_is_tag(one), relevance(one))) or error
    path = ".".join(str(step) for step in deepest.absolute_path)
    return f"{path}: {_cut(deepest.message)}" if path else _cut(deepest.message)


def _is_tag(error: Any) -> bool:
    """Whether another alternative was meant: a constant, or the value of a discriminator, is not this one's."""
    if error.validator != "enum" or error.parent is None:
        return bool(error.validator == "const")
    index, *path = error.relative_schema_path
    return path[::2] == ["properties", "enum"] and "allOf" in error.parent.validator_value[index]  # by `from_openapi`


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "..."
