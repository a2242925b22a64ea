"""Encodes the arguments of a call into an HTTP request, by the styles of OpenAPI."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from envs.tool_api.openapi.operations import FORM, TEXT, Body, Operation, Parameter

_SEPARATORS = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}
_PATH_SAFE = "/:@!$&'()*+,;=~%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """The arguments of `ApiClient.request`."""

    target: str
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


def encode(operation: Operation, arguments: Mapping[str, Any]) -> Encoded:
    """Return the request of a call."""
    path, query, headers, cookies = operation.path, [], {}, []
    path = quote(path, safe=_PATH_SAFE + "{}")
    for parameter in operation.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            path = path.replace("{" + quote(parameter.name, safe=_PATH_SAFE) + "}", _path_text(parameter, value))
        elif value is None:
            continue
        elif parameter.place == "query":
            query += [f"{quote(name, safe='[]')}={quote(text, safe='')}" for name, text in _pairs(parameter, value)]
        elif parameter.place == "header":
            headers[parameter.name] = _header_text(parameter, value)
        else:
            cookies += [f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in _pairs(parameter, value)]
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    if operation.has_key:
        headers["Idempotency-Key"] = uuid.uuid4().hex  # so that a repeated request is done once
    content = _content(operation.body, arguments) if operation.body else None
    if content is not None and operation.body:
        headers["Content-Type"] = "application/json" if operation.body.media == "*/*" else operation.body.media
    return Encoded(target=path + ("?" + "&".join(query) if query else ""), headers=headers, content=content)


def _text(value: Any) -> str:
    """Return a value as text of a URL or a form."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, allow_nan=False)


def _path_text(parameter: Parameter, value: Any) -> str:
    text = _joined(parameter, value)
    # These would address another path of the service.
    if text in ("", ".", ".."):
        raise ValueError(f"{parameter.argument}: {text!r} cannot stand in the path of a URL")
    if parameter.style == "label":
        return "." + text
    return f";{quote(parameter.name, safe='')}={text}" if parameter.style == "matrix" else text


def _joined(parameter: Parameter, value: Any) -> str:
    if parameter.is_json:
        return quote(json.dumps(value, allow_nan=False), safe="")
    if isinstance(value, list):
        return ",".join(quote(_text(item), safe="") for item in value)
    if isinstance(value, dict):
        between = "=" if parameter.explode else ","
        return ",".join(f"{quote(key, safe='')}{between}{quote(_text(item), safe='')}" for key, item in value.items())
    return quote(_text(value), safe="")


def _pairs(parameter: Parameter, value: Any) -> Iterator[tuple[str, str]]:
    """Give the names and values of a query or cookie parameter."""
    name, separator = parameter.name, _SEPARATORS.get(parameter.style, ",")
    if parameter.is_json:
        yield name, json.dumps(value, allow_nan=False)
    elif isinstance(value, dict) and parameter.style == "deepObject":
        yield from ((f"{name}[{key}]", _text(item)) for key, item in value.items())
    elif isinstance(value, dict) and parameter.explode:
        yield from ((key, _text(item)) for key, item in value.items())
    elif isinstance(value, list) and parameter.explode:
        yield from ((name, _text(item)) for item in value)
    elif isinstance(value, dict):
        yield name, separator.join(part for key, item in value.items() for part in (key, _text(item)))
    elif isinstance(value, list):
        yield name, separator.join(_text(item) for item in value)
    else:
        yield name, _text(value)


def _header_text(parameter: Parameter, value: Any) -> str:
    if parameter.is_json:
        text = json.dumps(value, allow_nan=False)
    elif isinstance(value, list):
        text = ",".join(_text(item) for item in value)
    elif isinstance(value, dict):
        between = "=" if parameter.explode else ","
        text = ",".join(f"{key}{between}{_text(item)}" for key, item in value.items())
    else:
        text = _text(value)
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"{parameter.argument}: a header takes printable ASCII characters only")
    return text.strip()  # spaces at the ends are no part of a value, and HTTP refuses them


def _content(body: Body, arguments: Mapping[str, Any]) -> bytes | None:
    if body.argument:
        if body.argument not in arguments:
            return None
        value = arguments[body.argument]
    else:
        value = {name: arguments[name] for name in body.properties if name in arguments}
        if not value and not body.is_required:
            return None
    media = body.media.partition(";")[0].strip().lower()
    if media == FORM and isinstance(value, dict):
        return urlencode(list(_form(value))).encode()
    if media == TEXT:
        return _text(value).encode()
    return json.dumps(value, allow_nan=False).encode()


def _form(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, item in value.items():
        for value_of_item in item if isinstance(item, list) else [item]:
            if value_of_item is not None:
                yield name, _text(value_of_item)
