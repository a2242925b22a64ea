"""Reads the operations of an OpenAPI document: the name of a tool, its arguments, and their places in a request."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contrib.apis.json_schema.from_openapi import Converter, References, Schema, definitions_in, resolve
from contrib.apis.tool_names import free_name
from forge_env.core.errors import UserError

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
JSON, FORM, TEXT = "application/json", "application/x-www-form-urlencoded", "text/plain"
KEY_HEADER = "idempotency-key"  # not an argument: the client sends a new key with each call
_TRANSPORT = frozenset({"accept", "content-type", "authorization", "host", "content-length", "cookie", KEY_HEADER})
_STYLES = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_COMPOSED = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "dependentSchemas", "$ref"})
_MAX_DESCRIPTION = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    argument: str
    """Its name as an argument of the tool."""
    name: str
    """Its name in the document."""
    place: str
    """path, query, header or cookie."""
    style: str
    explode: bool
    is_json: bool = False
    """Whether it is sent as JSON text."""
    allows_reserved: bool = False
    """Whether reserved characters and percent-encoded ones of a query's value are sent as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    media: str
    argument: str
    """The argument that is the whole body; empty where the properties of the body are separate arguments."""
    properties: tuple[str, ...] = ()
    is_required: bool = False
    encoding: Mapping[str, Any] = field(default_factory=dict)
    """Name of a field of a form -> how the document says that it is written."""

    def part(self, name: str, value: Any) -> Parameter:
        """Return how a field of a form is written: an object is JSON unless the document says otherwise."""
        entry = self.encoding.get(name)
        entry = entry if isinstance(entry, dict) and entry.keys() & {"style", "explode", "allowReserved"} else {}
        style = entry.get("style", "form")
        explode = entry.get("explode", style in ("form", "deepObject")) is True
        return Parameter(
            argument=name,
            name=name,
            place="query",
            style=style,
            explode=explode,
            is_json=isinstance(value, dict) and not entry,
            allows_reserved=entry.get("allowReserved") is True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    name: str
    description: str
    method: str
    path: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    schema: Schema
    """JSON schema of the arguments, an object."""
    has_key: bool
    """Whether it takes the header Idempotency-Key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    method: str
    path: str
    node: Mapping[str, Any]
    shared: Any
    """Parameters of its path item."""
    servers: Any
    """Its own, or those of its path item, instead of the document's; None for none."""


def entries(document: Mapping[str, Any], references: References) -> Iterator[Entry]:
    names: set[str] = set()
    for path, item in _object(document.get("paths", {}), "the object 'paths'").items():
        if path.startswith("x-"):
            continue
        if not path.startswith("/"):
            raise UserError(f"the path {path[:100]!r} of the OpenAPI document does not begin with /")
        item = _object(references.follow(item, f"the path {path}"), f"the path {path}")
        for method in METHODS:
            if method in item:
                node = _object(item[method], f"the operation {method.upper()} {path}")
                operation_id = node.get("operationId")
                name = _tool_name(operation_id if isinstance(operation_id, str) else "", f"{method}_{path}", names)
                names.add(name)
                servers = node.get("servers") or item.get("servers")
                shared = item.get("parameters", [])
                yield Entry(name=name, method=method.upper(), path=path, node=node, shared=shared, servers=servers)


def read_operation(entry: Entry, references: References, hidden: Collection[tuple[str, str]]) -> Operation:
    """Read one operation; `hidden` has the parameters that credentials fill, as (place, name in lower case)."""
    where = f"the operation {entry.method} {entry.path}"
    converter = Converter(references, where)
    arguments: Schema = {}
    required_names: list[str] = []
    parameters: list[Parameter] = []
    nodes = _parameters(entry, references, where)
    hidden = {*hidden, *(("header", name) for name in _TRANSPORT)}
    places = [(place, name) for place, name in nodes if (place, name.lower()) not in hidden]
    for place, name in places:
        node = nodes[place, name]
        is_alone = sum(other == name for _, other in places) == 1
        parameter, schema = _parameter(node, place, name, name if is_alone else f"{place}_{name}", converter, where)
        parameters.append(parameter)
        arguments[parameter.argument] = schema
        if place == "path" or node.get("required") is True:
            required_names.append(parameter.argument)
    body = _body(entry.node, references, converter, arguments, required_names, where)
    schema = {"type": "object", "properties": arguments}
    if required_names:
        schema["required"] = required_names
    if definitions := definitions_in(arguments, converter.defs):
        schema["$defs"] = definitions
    return Operation(
        name=entry.name,
        description=_description(entry),
        method=entry.method,
        path=entry.path,
        parameters=tuple(parameters),
        body=body,
        schema=schema,
        has_key=any(place == "header" and name.lower() == KEY_HEADER for place, name in nodes),
    )


def _tool_name(hint: str, fallback: str, names: Collection[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", hint).strip("_") or re.sub(r"[^A-Za-z0-9-]+", "_", fallback).strip("_")
    return free_name(name or "operation", names)


def _description(entry: Entry) -> str:
    texts = [entry.node.get("description"), entry.node.get("summary"), f"{entry.method} {entry.path}"]
    text = next(text for text in texts if isinstance(text, str) and text.strip()).strip()
    return text if len(text) <= _MAX_DESCRIPTION else text[:_MAX_DESCRIPTION] + "..."


def _parameters(entry: Entry, references: References, where: str) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Parameters by place and name; the operation's replace its path's."""
    nodes: dict[tuple[str, str], Mapping[str, Any]] = {}
    for items in (entry.shared, entry.node.get("parameters", [])):
        if not isinstance(items, list):
            raise UserError(f"{where} has parameters that are no list")
        for item in items:
            node = _object(references.follow(item, where), f"a parameter of {where}")
            place, name = node.get("in"), node.get("name")
            if not isinstance(name, str) or not name or place not in ("path", "query", "header", "cookie"):
                raise UserError(f"{where} has a parameter without a name, or in no place that there is: {place!r:.50}")
            nodes[place, name] = node
    missing = set(re.findall(r"\{([^{}]*)\}", entry.path)) - {name for place, name in nodes if place == "path"}
    if missing:
        raise UserError(f"{where} has no parameter for {', '.join(sorted(missing))} in its path")
    return {key: node for key, node in nodes.items() if key[0] != "path" or f"{{{key[1]}}}" in entry.path}


def _parameter(
    node: Mapping[str, Any], place: str, name: str, argument: str, converter: Converter, where: str
) -> tuple[Parameter, Any]:
    style = node.get("style", _STYLES[place][0])
    if style not in _STYLES[place]:
        raise UserError(f"{where}: the parameter {name} has the style {style!r:.50}; in {place}: {_STYLES[place]}")
    content = node.get("content")
    media = next(iter(content.values()), {}) if isinstance(content, dict) else node
    schema = converter.convert(media.get("schema", {}) if isinstance(media, dict) else {})
    about = node.get("description")
    if isinstance(schema, dict) and isinstance(about, str) and about:
        schema = {**schema, "description": about}
    parameter = Parameter(
        argument=argument,
        name=name,
        place=place,
        style=style,
        explode=node.get("explode", style in ("form", "deepObject")) is True,
        is_json=isinstance(content, dict),
        allows_reserved=place == "query" and node.get("allowReserved") is True,
    )
    return parameter, schema


def _body(
    node: Mapping[str, Any],
    references: References,
    converter: Converter,
    arguments: Schema,
    required_names: list[str],
    where: str,
) -> Body | None:
    """Read the body, and add it to the arguments: its properties if they are flat, else one argument."""
    if node.get("requestBody") is None:
        return None
    body = _object(references.follow(node["requestBody"], where), f"the body of {where}")
    contents = _object(body.get("content", {}), f"the body of {where}")
    media = _media(contents, where)
    content = _object(contents[media], f"the body of {where}")
    schema = converter.convert(content.get("schema", {}))
    whole = resolve(schema, converter.defs)
    is_required, encoding = body.get("required") is True, content.get("encoding")
    common: dict[str, Any] = {"media": media, "is_required": is_required}
    common["encoding"] = encoding if isinstance(encoding, dict) else {}
    if _is_flat(whole, is_required, arguments):
        arguments |= whole["properties"]
        required_names += whole.get("required", [])
        return Body(properties=tuple(whole["properties"]), argument="", **common)
    argument = "body" if "body" not in arguments else "request_body"
    if argument in arguments:
        raise UserError(f"{where} has parameters named body and request_body beside its body")
    arguments[argument] = schema
    if is_required:
        required_names.append(argument)
    return Body(argument=argument, **common)


def _media(contents: Mapping[str, Any], where: str) -> str:
    for media in contents:
        plain = media.partition(";")[0].strip().lower()
        if plain in (JSON, FORM, TEXT, "*/*") or plain.endswith("+json"):
            return media
    kinds = ", ".join(contents) or "nothing"
    raise UserError(f"{where} takes {kinds[:200]}; JSON, forms and plain text are supported: exclude it")


def _is_flat(schema: Any, is_required: bool, arguments: Collection[str]) -> bool:
    """Whether the properties of a body can be arguments beside the parameters without a change of meaning."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object" or schema.keys() & _COMPOSED:
        return False
    properties, names = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not properties or schema.get("additionalProperties", False) is not False:
        return False
    if not isinstance(names, list) or not all(isinstance(name, str) and name in properties for name in names):
        return False
    if names and not is_required:  # an optional body with required properties: separate arguments cannot express that
        return False
    return not properties.keys() & set(arguments)


def _object(node: Any, where: str) -> dict[str, Any]:
    if not isinstance(node, dict):
        raise UserError(f"{where} of the OpenAPI document is no object")
    return node
