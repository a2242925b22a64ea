"""Turns the schemas of an OpenAPI 3.0 or 3.1 document into JSON schemas (draft 2020-12) that stand alone.

Whatever a schema refers to goes into `$defs`, once, so that cycles are no matter and nothing is written out twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from forge_env.core.errors import UserError

Schema = dict[str, Any]

_PLAIN = frozenset(
    {"type", "enum", "const", "format", "description", "default", "deprecated", "pattern", "required", "uniqueItems"}
    | {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength"}
    | {"maxItems", "minItems", "maxContains", "minContains", "maxProperties", "minProperties", "dependentRequired"}
)
_ONE = frozenset(
    {"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})


class References:
    """Follows the references of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def follow(self, node: Any, where: str) -> Any:
        """Return what stands at the end of a chain of references; a node without one is its own end.

        Raises:
            UserError: when it leads nowhere, round in circles, or to another document.
        """
        seen: set[str] = set()
        while isinstance(node, dict) and "$ref" in node:
            pointer = node["$ref"]
            if not isinstance(pointer, str) or pointer in seen:
                raise UserError(
                    f"{where} refers to itself, or by something that is no reference: {str(pointer)[:200]!r}"
                )
            seen.add(pointer)
            node = self.at(pointer, where)
        return node

    def at(self, pointer: str, where: str) -> Any:
        """Return what a JSON pointer such as "#/components/schemas/Order" names.

        Raises:
            UserError: when there is nothing, or when it names another document.
        """
        if not pointer.startswith("#"):
            raise UserError(f"{where} refers to {pointer!r}, another document: bundle them into one first")
        node: Any = self._document
        for part in pointer[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isascii() and name.isdecimal() and int(name[:9]) < len(node):
                node = node[int(name[:9])]
            else:
                raise UserError(f"{where} refers to {pointer!r}, which is not in the document")
        return node


class Converter:
    """Converts schemas that go into one JSON schema, and gathers its `$defs`."""

    def __init__(self, references: References, where: str) -> None:
        self._references = references
        self._where = where
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, Any]] = []
        self.defs: Schema = {}

    def convert(self, schema: Any) -> Any:
        """Return a schema in draft 2020-12; what it refers to is in `defs` then.

        Raises:
            UserError: for a schema that is none.
        """
        converted = self._converted(schema)
        while self._pending:
            name, target = self._pending.pop()
            self.defs[name] = self._converted(target)
        return converted

    def _converted(self, schema: Any) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UserError(f"{self._where} has a schema that is neither an object nor true or false")
        converted = {key: schema[key] for key in schema.keys() & _PLAIN}
        converted |= {key: self._converted(schema[key]) for key in schema.keys() & _ONE}
        converted |= {
            key: [self._converted(item) for item in self._list(schema[key])] for key in schema.keys() & _SEVERAL
        }
        converted |= {key: self._named(schema[key]) for key in schema.keys() & _NAMED}
        # In the document's order, and without what other drafts mean by these words.
        converted = {key: converted[key] for key in schema if key in converted and not _is_foreign(key, converted[key])}
        if "$ref" in schema:
            converted = {"$ref": self._reference(schema["$ref"]), **converted}
        _drop_read_only(converted, schema)
        _modern_bounds(converted)
        return _with_null(converted) if schema.get("nullable") is True else converted

    def _list(self, items: Any) -> list[Any]:
        if not isinstance(items, list):
            raise UserError(f"{self._where} has a schema whose alternatives are no list")
        return items

    def _named(self, schemas: Any) -> Schema:
        if not isinstance(schemas, dict):
            raise UserError(f"{self._where} has a schema whose properties are no object")
        return {name: self._converted(schema) for name, schema in schemas.items()}

    def _reference(self, pointer: Any) -> str:
        target = self._references.follow({"$ref": pointer}, self._where)
        if pointer not in self._names:
            name = _free(re.sub(r"[^A-Za-z0-9_.-]+", "_", pointer.rpartition("/")[2])[:60] or "root", self.defs)
            self._names[pointer] = name
            self.defs[name] = {}  # taken
            self._pending.append((name, target))
        return f"#/$defs/{self._names[pointer]}"


def resolved(schema: Any, defs: Schema) -> Any:
    """Return a converted schema without the reference that it may consist of.

    What stands beside the reference, a description for example, goes over what it refers to.
    """
    while isinstance(schema, dict) and "$ref" in schema:
        target = defs[schema["$ref"].removeprefix("#/$defs/")]
        if not isinstance(target, dict):
            return target
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def used(schema: Any, defs: Schema) -> Schema:
    """Those of the definitions that a schema needs, directly or not."""
    found: Schema = {}
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            reference = node.get("$ref")
            name = reference.removeprefix("#/$defs/") if isinstance(reference, str) else None
            if name in defs and name not in found:
                found[name] = defs[name]
                nodes.append(defs[name])
            nodes += node.values()
    return {name: defs[name] for name in defs if name in found}


def _free(name: str, taken: Collection[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _is_foreign(key: str, value: Any) -> bool:
    return (key == "required" and isinstance(value, bool)) or (key == "description" and not isinstance(value, str))


def _drop_read_only(converted: Schema, schema: Schema) -> None:
    """Properties that only the service sets are none of a request's."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    names = {name for name, each in properties.items() if isinstance(each, dict) and each.get("readOnly") is True}
    for name in names:
        converted["properties"].pop(name)
    if names and isinstance(converted.get("required"), list):
        converted["required"] = [name for name in converted["required"] if name not in names]


def _modern_bounds(schema: Schema) -> None:
    """`exclusiveMinimum: true` of 3.0 says that the minimum is one; now it is a number itself."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _with_null(schema: Schema) -> Schema:
    """`nullable: true` of 3.0."""
    kind = schema.get("type")
    if isinstance(kind, str) and not schema.keys() & {"const", "allOf", "anyOf", "oneOf", "$ref", "not"}:
        schema = {**schema, "type": [kind, "null"] if kind != "null" else kind}
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        return schema
    about: Schema = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    return {**about, "anyOf": [schema, {"type": "null"}]} if schema else about
