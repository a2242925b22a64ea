"""Schemas that are composed of parts (`allOf`, `anyOf`, `oneOf`), as OpenAPI documents mean them.

A part with ``additionalProperties: false`` refuses the properties of all other parts, so that nothing fits the whole. A
property that only the service sets may be required by another part. A base with ``oneOf`` its subtypes is a part of
each of them. All three are usual in documents, and mean what a reader expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError

if TYPE_CHECKING:
    from contrib.apis.json_schema.from_openapi import References

_KEYS = ("allOf", "anyOf", "oneOf")
_CLOSED = ("additionalProperties", "unevaluatedProperties")
_MAX_PARTS = 20_000


class Composition:
    """Rewrites the composed schemas of one document; the schemas are the document's, not converted ones."""

    def __init__(self, references: References, where: str) -> None:
        self._references = references
        self._where = where
        self._parts = 0

    def open(self, schema: dict[str, Any], pointer: str = "") -> dict[str, Any]:
        """An equal schema with parts that leave each other room: it is closed as a whole if a part of it is."""
        if not _is_composed(schema):
            return schema
        above = (pointer,) if pointer else ()
        unset = {name for name, part in self.properties(schema) if is_read_only(part)}
        result, is_closed = self._open(schema, above, unset)
        return {**result, "unevaluatedProperties": False} if is_closed else result

    def properties(self, schema: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
        """Give the names and schemas of the properties that all values of a schema have in common."""
        if not isinstance(schema, dict):
            return
        self._count()
        if isinstance(pointer := schema.get("$ref"), str) and pointer not in above:
            yield from self.properties(self._references.follow(schema, self._where), (*above, pointer))
        own = schema.get("properties")
        yield from own.items() if isinstance(own, dict) else ()
        for part in _list(schema, "allOf"):
            yield from self.properties(part, above)

    def tags(self, schema: Mapping[str, Any], alternative: Any) -> tuple[str, list[str]]:
        """Return the property that tells alternatives apart, and its values for one of them: none if they are unknown.

        An alternative that says so itself, by `enum` or `const`, is left as it is.
        """
        discriminator = schema.get("discriminator")
        name = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        pointer = alternative.get("$ref") if isinstance(alternative, dict) else None
        if not isinstance(name, str) or not isinstance(pointer, str):
            return "", []
        mapping = discriminator.get("mapping") if isinstance(discriminator, dict) else None
        default = pointer.rpartition("/")[2]
        targets = mapping.items() if isinstance(mapping, dict) else ()
        values = [value for value, target in targets if target in (pointer, default)]
        own = [part for property_name, part in self.properties(alternative) if property_name == name]
        if not values or any(not isinstance(part, dict) or part.keys() & {"enum", "const", "$ref"} for part in own):
            return "", []
        return name, list(dict.fromkeys([*values, default]))

    def _open(self, schema: Any, above: tuple[str, ...], unset: set[str]) -> tuple[Any, bool]:
        """Return a part that admits further properties, and whether it was closed; an open part is returned itself."""
        if not isinstance(schema, dict):
            return schema, False
        self._count()
        if isinstance(pointer := schema.get("$ref"), str):
            if pointer in above:
                return {}, False  # a part of itself asks for nothing more
            target = self._references.follow(schema, self._where)
            part, is_closed = self._open(target, (*above, pointer), unset)
            beside = {key: value for key, value in self._references.with_siblings(schema).items() if key != "$ref"}
            return (schema if part is target else {"allOf": [part], **beside} if beside else part), is_closed
        result = {key: value for key, value in schema.items() if key not in _CLOSED or value is not False}
        is_closed = len(result) < len(schema)
        if isinstance(names := schema.get("required"), list) and any(
            name in unset for name in names if isinstance(name, str)
        ):
            result["required"] = [name for name in names if name not in unset]
        for key in _KEYS:
            if not (items := _list(schema, key)):
                continue
            pairs = [self._open(item, above, unset) for item in items]
            flags = [flag for _, flag in pairs]
            is_closed = is_closed or (any(flags) if key == "allOf" else all(flags))
            if any(part is not item for (part, _), item in zip(pairs, items, strict=True)):
                result[key] = [part for part, _ in pairs]
                if key != "allOf" and {} in result[key]:
                    del result[key]
        is_same = result.keys() == schema.keys() and all(result[key] is schema[key] for key in schema)
        return (schema if is_same else result), is_closed

    def _count(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise UserError(f"{self._where} has a schema of more than {_MAX_PARTS} parts: exclude it")


def _is_composed(schema: Mapping[str, Any]) -> bool:
    """Whether more than one part of a schema may say what properties there are."""
    alternatives = sum(bool(_list(schema, key)) for key in _KEYS[1:])
    return bool(_list(schema, "allOf")) or alternatives > 1 or (alternatives == 1 and "properties" in schema)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    items = schema.get(key)
    return items if isinstance(items, list) else []


def is_read_only(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("readOnly") is True
