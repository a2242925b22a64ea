"""Draws random arguments for a tool: values that fit its JSON schema, small and easy to read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.apis.json_schema.validation import target_of

WORDS = (
    *("apple", "bird", "blue", "book", "cat", "cloud", "cup", "dog", "door", "fish", "green", "hat", "house", "key"),
    *("lake", "lamp", "leaf", "map", "milk", "moon", "nine", "pen", "pink", "rain", "red", "ring", "river", "road"),
    *("rose", "salt", "sand", "ship", "six", "snow", "star", "stone", "sun", "table", "ten", "tree", "two", "wind"),
)
LARGEST = {1: 99, 2: 999, 3: 9999}
"""Level -> the largest number, where the schema has no bounds of its own."""
_DEPTH = 16  # of nesting: a schema may refer to itself
_OPTIONAL_DEPTH = 8  # optional parts are drawn while more levels than these are left
_MOST_ITEMS = 3


def draw_arguments(schema: Mapping[str, Any], rng: random.Random, *, level: int = 1) -> dict[str, Any]:
    """Return arguments that fit a tool's schema: all required ones and some optional ones."""
    arguments = _Drawing(schema, rng, level).value(schema, _DEPTH)
    if not isinstance(arguments, dict):
        raise ValueError("the schema of its arguments is no object")
    return arguments


class _Drawing:
    def __init__(self, root: Mapping[str, Any], rng: random.Random, level: int) -> None:
        self._root = root
        self._rng = rng
        self._level = level
        self._largest = LARGEST[level]

    def value(self, schema: Any, depth: int) -> Any:
        if depth == 0:
            raise ValueError("the schema of its arguments is nested too deeply")
        if not isinstance(schema, Mapping) or not schema:
            return self._rng.choice([self._integer({}), self._rng.choice(WORDS)])
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(schema["enum"])
        if "$ref" in schema:
            return self.value(self._target(schema["$ref"]), depth - 1)
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self.value(self._alternative(schema[key]), depth - 1)
        if schema.get("allOf"):
            return self.value(self._merge(schema), depth - 1)
        return self._of_type(schema, depth)

    def _target(self, reference: Any) -> Any:
        if (target := target_of(self._root, str(reference))) is None:
            raise ValueError(f"the schema of its arguments refers to {reference!r}, which is not there")
        return target

    def _alternative(self, schemas: Sequence[Any]) -> Any:
        real = [one for one in schemas if not isinstance(one, Mapping) or one.get("type") != "null"]
        return self._rng.choice(real if real and self._rng.random() < 0.8 else schemas)

    def _merge(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        whole: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            part = self._target(part["$ref"]) if "$ref" in part else part
            properties = {**whole.get("properties", {}), **part.get("properties", {})}
            required_names = [*whole.get("required", ()), *part.get("required", ())]
            whole |= part
            whole |= {"properties": properties, "required": required_names} if properties else {}
        return whole

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = self._rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "integer":
            return self._integer(schema)
        if kind == "number":
            tenths = {key: schema[key] * 10 for key in schema.keys() & {"minimum", "maximum"}}
            return self._integer({**schema, **tenths}, largest=10 * self._largest) / 10
        if kind == "boolean":
            return self._rng.random() < 0.5
        return None if kind == "null" else self._text(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, required_names = schema.get("properties", {}), schema.get("required", ())
        names = [
            name
            for name in properties
            if name in required_names or (depth > _OPTIONAL_DEPTH and self._rng.random() < 0.5)
        ]
        values = {name: self.value(properties[name], depth - 1) for name in names}
        others = schema.get("additionalProperties")
        if not properties and others is not False and _OPTIONAL_DEPTH < depth < _DEPTH:
            values |= {name: self.value(others, depth - 1) for name in self._rng.sample(WORDS, self._rng.randint(1, 2))}
        return values

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        prefix = [self.value(item_schema, depth - 1) for item_schema in schema.get("prefixItems", ())]
        least = max(schema.get("minItems", 0), len(prefix))
        most = min(schema.get("maxItems", least + _MOST_ITEMS), max(least, _MOST_ITEMS))
        items = schema.get("items", {})
        length = self._rng.randint(max(least, min(1, most)), most) if depth > _OPTIONAL_DEPTH and not prefix else least
        values = prefix + [self.value(items, depth - 1) for _ in range(length - len(prefix))]
        if not schema.get("uniqueItems"):
            return values
        return [item for i, item in enumerate(values) if item not in values[:i]]

    def _integer(self, schema: Mapping[str, Any], *, largest: int = 0) -> int:
        largest = largest or self._largest
        low, high = schema.get("minimum"), schema.get("maximum")
        if isinstance(schema.get("exclusiveMinimum"), (int, float)):
            low = schema["exclusiveMinimum"] + 1
        if isinstance(schema.get("exclusiveMaximum"), (int, float)):
            high = schema["exclusiveMaximum"] - 1
        first = int(low) if low is not None else min(0, int(high) if high is not None else 0)
        last = min(int(high) if high is not None else first + largest, max(first, 0) + largest)
        step = int(schema.get("multipleOf", 1)) or 1
        return self._rng.randint(-(-first // step), max(-(-first // step), last // step)) * step

    def _text(self, schema: Mapping[str, Any]) -> str:
        if isinstance(schema.get("format"), str) and schema["format"] in _FORMATS:
            return _FORMATS[schema["format"]].format(
                word=self._rng.choice(WORDS),
                month=self._rng.randint(1, 12),
                day=self._rng.randint(1, 28),
                hour=self._rng.randint(0, 23),
                minute=self._rng.randint(0, 59),
                hex=f"{self._rng.getrandbits(48):012x}",
            )
        text = " ".join(self._rng.choice(WORDS) for _ in range(self._rng.randint(1, self._level)))
        while len(text) < schema.get("minLength", 0):
            text += " " + self._rng.choice(WORDS)
        return text[: schema.get("maxLength", len(text))]


_FORMATS = {
    "date": "2031-{month:02}-{day:02}",
    "date-time": "2031-{month:02}-{day:02}T{hour:02}:{minute:02}:00Z",
    "time": "{hour:02}:{minute:02}:00",
    "email": "{word}@example.com",
    "uri": "https://example.com/{word}",
    "uuid": "00000000-0000-4000-8000-{hex}",
}
