"""Converts the schemas of an OpenAPI 3.0 or 3.1 document to self-contained JSON schemas (draft 2020-12).

Each schema that is referred to is put into `$defs` once, so cycles are allowed and nothing is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrib.apis.json_schema.composed import Composition, is_read_only
from contrib.apis.tool_names import free_name
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
_ANNOTATIONS = frozenset({"description", "default", "deprecated"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})


class References:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._has_siblings = not str(document.get("openapi")).startswith("3.0")

    def with_siblings(self, schema: Schema) -> Schema:
        """Return a schema with the keywords beside its reference that count: before 3.1 only annotations do."""
        if "$ref" not in schema or self._has_siblings:
            return schema
        return {key: value for key, value in schema.items() if key in _ANNOTATIONS or key in ("$ref", "nullable")}

    def follow(self, node: Any, where: str) -> Any:
        """Return the end of a chain of references; a node without a reference is returned itself."""
        pointers: set[str] = set()
        while isinstance(node, dict) and "$ref" in node:
            pointer = node["$ref"]
            if not isinstance(pointer, str) or pointer in pointers:
                raise UserError(
                    f"{where} refers to itself, or by something that is no reference: {str(pointer)[:200]!r}"
                )
            pointers.add(pointer)
            node = self.at(pointer, where)
        return node

    def at(self, pointer: str, where: str) -> Any:
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
    def __init__(self, references: References, where: str) -> None:
        self._references = references
        self._where = where
        self._composition = Composition(references, where)
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, Any, str]] = []
        self.defs: Schema = {}

    def convert(self, schema: Any) -> Any:
        """Return a schema in draft 2020-12, and add the schemas that it refers to to `defs`."""
        result = self._convert(schema)
        while self._pending:
            name, target, pointer = self._pending.pop()
            self.defs[name] = self._convert(target, pointer)
        return result

    def _convert(self, schema: Any, pointer: str = "") -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise UserError(f"{self._where} has a schema that is neither an object nor true or false")
        original = self._references.with_siblings(schema)
        schema = self._composition.open(original, pointer)
        result = {key: schema[key] for key in schema.keys() & _PLAIN}
        result |= {key: self._convert(schema[key]) for key in schema.keys() & _ONE}
        for key in schema.keys() & _SEVERAL:
            if not isinstance(schema[key], list):
                raise UserError(f"{self._where} has a schema whose alternatives are no list")
            result[key] = [self._convert(item) for item in schema[key]]
        for key in result.keys() & {"anyOf", "oneOf"}:
            result[key] = list(map(self._with_tags, result[key], [original] * len(result[key]), original[key]))
        for key in schema.keys() & _NAMED:
            if not isinstance(schema[key], dict):
                raise UserError(f"{self._where} has a schema whose properties are no object")
            result[key] = {name: self._convert(part) for name, part in schema[key].items()}
        # In the order of the document, and without keywords in the meaning of other drafts.
        result = {key: result[key] for key in schema if key in result and not _is_of_other_draft(key, result[key])}
        if "$ref" in schema:
            result = {"$ref": self._reference(schema["$ref"]), **result}
        _remove_read_only(result, schema)
        _convert_bounds(result)
        _admit_several(result)
        return _with_null(result) if schema.get("nullable") is True else result

    def _with_tags(self, part: Any, schema: Schema, alternative: Any) -> Any:
        """Add to an alternative the values of the discriminator that stand for it."""
        name, values = self._composition.tags(schema, alternative)
        return {"allOf": [part], "properties": {name: {"enum": values}}} if name else part

    def _reference(self, pointer: Any) -> str:
        target = self._references.follow({"$ref": pointer}, self._where)
        if pointer not in self._names:
            name = free_name(pointer.rpartition("/")[2] or "root", self.defs)
            self._names[pointer] = name
            self.defs[name] = {}  # reserves the name
            self._pending.append((name, target, pointer))
        return f"#/$defs/{self._names[pointer]}"


def resolve(schema: Any, defs: Schema) -> Any:
    """Return a converted schema with its own reference resolved; one with more than annotations beside it is returned.

    Annotations such as a description override the target's.
    """
    while isinstance(schema, dict) and "$ref" in schema and schema.keys() <= _ANNOTATIONS | {"$ref"}:
        target = defs[schema["$ref"].removeprefix("#/$defs/")]
        if not isinstance(target, dict):
            return target
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def definitions_in(schema: Any, defs: Schema) -> Schema:
    definitions: Schema = {}
    nodes = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            reference = node.get("$ref")
            name = reference.removeprefix("#/$defs/") if isinstance(reference, str) else None
            if name in defs and name not in definitions:
                definitions[name] = defs[name]
                nodes.append(defs[name])
            nodes += node.values()
    return {name: defs[name] for name in defs if name in definitions}


def _is_of_other_draft(key: str, value: Any) -> bool:
    return (key == "required" and isinstance(value, bool)) or (key == "description" and not isinstance(value, str))


def _remove_read_only(result: Schema, schema: Schema) -> None:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    names = {name for name, property_schema in properties.items() if is_read_only(property_schema)}
    for name in names:
        result["properties"].pop(name)
    if names and isinstance(result.get("required"), list):
        result["required"] = [name for name in result["required"] if name not in names]


def _convert_bounds(schema: Schema) -> None:
    """Convert `minimum: 3, exclusiveMinimum: true` of 3.0 to `exclusiveMinimum: 3`."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and bound in schema:
                schema[exclusive] = schema.pop(bound)


def _admit_several(schema: Schema) -> None:
    """Replace `oneOf` by `anyOf`: alternatives of documents overlap, and the service decides which one is meant."""
    if "oneOf" in schema:
        alternatives = schema.pop("oneOf")
        if "anyOf" in schema:
            schema["allOf"] = [*schema.get("allOf", []), {"anyOf": alternatives}]
        else:
            schema["anyOf"] = alternatives


def _with_null(schema: Schema) -> Schema:
    kind = schema.get("type")
    if isinstance(kind, str) and not schema.keys() & {"const", "allOf", "anyOf", "oneOf", "$ref", "not"}:
        schema = {**schema, "type": [kind, "null"] if kind != "null" else kind}
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        return schema
    annotations: Schema = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    return {**annotations, "anyOf": [schema, {"type": "null"}]} if schema else annotations
