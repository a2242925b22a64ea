"""Encodes the arguments of a call into an HTTP request, by the styles of OpenAPI 3.1.

Items are percent-encoded before they are joined, as RFC 6570 says: `["a", "b,c"]` is `a,b%2Cc`. As there, null and
empty lists and objects are undefined, and are left out.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from contrib.apis.openapi.operations import FORM, TEXT, Body, Operation, Parameter
from contrib.common.json_text import write
from forge_env.core.json_text import ExactFloat

_SEPARATORS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}
_PATH_SAFE = "/:@!$&'()*+,;=~%"
_RESERVED = ":/?@!$'()*,;="  # but [ ] #, which no query has, and & +, which would end or change a value
_quote = partial(quote, safe="")


def _quote_reserved(text: str) -> str:
    """Encode a value by RFC 6570's reserved expansion: an escape such as %2F stays as it is."""
    return re.sub(r"%25([0-9A-Fa-f]{2})", r"%\1", quote(text, safe=_RESERVED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


def encode(operation: Operation, arguments: Mapping[str, Any]) -> Encoded:
    """Return the request of a call; a ValueError says why a value cannot stand where it belongs."""
    query, headers, cookies = list[str](), dict[str, str](), list[str]()
    path = quote(operation.path, safe=_PATH_SAFE + "{}")
    for parameter in operation.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            path = path.replace("{" + quote(parameter.name, safe=_PATH_SAFE) + "}", _path_text(parameter, value))
        elif value is None or (_is_undefined(value) and not parameter.is_json):
            continue
        elif parameter.place == "query":
            query += _pairs(parameter, value)
        elif parameter.place == "header":
            headers[parameter.name] = _header_text(parameter, value)
        else:
            cookies += _pairs(parameter, value)
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    if operation.has_key:
        headers["Idempotency-Key"] = uuid.uuid4().hex  # so that a repeated request is done once
    content = _content(operation.body, arguments) if operation.body else None
    if content is not None and operation.body:
        headers["Content-Type"] = "application/json" if operation.body.media == "*/*" else operation.body.media
    return Encoded(target=path + ("?" + "&".join(query) if query else ""), headers=headers, content=content)


def _is_undefined(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return all(part is None for part in parts)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and not isinstance(value, ExactFloat):
        return str(int(value))
    return write(value, allow_nan=False)


def _members(parameter: Parameter, value: Any, encode_text: Callable[[str], str] | None = None) -> list[str]:
    """Return the items of a list; of an object the names and values, each pair as one if it is exploded."""
    to_text = encode_text or _quoting(parameter)
    if parameter.is_json:
        return [to_text(write(value, allow_nan=False))]
    if isinstance(value, list):
        return [to_text(_text(item)) for item in value if item is not None]
    if not isinstance(value, dict):
        return [to_text(_text(value))]
    pairs = [((encode_text or _quote)(key), to_text(_text(item))) for key, item in value.items() if item is not None]
    return ["=".join(pair) for pair in pairs] if parameter.explode else [part for pair in pairs for part in pair]


def _quoting(parameter: Parameter) -> Callable[[str], str]:
    return _quote_reserved if parameter.allows_reserved else _quote


def _path_text(parameter: Parameter, value: Any) -> str:
    members, name = _members(parameter, value), _quote(parameter.name)
    is_list = isinstance(value, (list, dict)) and not parameter.is_json
    if parameter.style == "label":
        separator = "." if parameter.explode else ","
        text = "." + _join(parameter, members, separator) if is_list else f".{members[0]}"
    elif parameter.style == "matrix":
        if is_list and parameter.explode:
            pairs = members if isinstance(value, dict) else [f"{name}={member}" for member in members]
        else:
            pairs = [f"{name}={','.join(members)}"]
        text = "".join(f";{pair.removesuffix('=')}" for pair in pairs)
    else:
        text = ",".join(members)
    # The last three would address another path of the service.
    if (_is_undefined(value) and not parameter.is_json) or text in ("", ".", ".."):
        literal = text if isinstance(value, str) else write(value)
        raise ValueError(f"{parameter.argument}: {literal!r} cannot stand in the path of a URL")
    return text


def _pairs(parameter: Parameter, value: Any) -> list[str]:
    name, members = _quote(parameter.name), _members(parameter, value)
    if parameter.is_json or not isinstance(value, (list, dict)):
        return [f"{name}={members[0]}"]
    if isinstance(value, dict) and parameter.style == "deepObject":
        items = [(key, item) for key, item in value.items() if item is not None]
        to_text = _quoting(parameter)
        return [f"{name}[{_quote(key)}]={to_text(_text(item))}" for key, item in items]
    if parameter.explode:
        return members if isinstance(value, dict) else [f"{name}={member}" for member in members]
    return [f"{name}={_join(parameter, members, _SEPARATORS.get(parameter.style, ','))}"]


def _join(parameter: Parameter, members: list[str], separator: str) -> str:
    if any(separator in member for member in members):
        raise ValueError(f"{parameter.argument}: {separator} separates the items here, so no item can hold it")
    return separator.join(members)


def _header_text(parameter: Parameter, value: Any) -> str:
    if isinstance(value, (list, dict)) and not parameter.is_json:
        # Only what would end an item: services do not decode the rest of a header.
        special = r"[%,=]|^ | $" if parameter.explode else r"[%,]|^ | $"
        text = ",".join(_members(parameter, value, lambda item: re.sub(special, lambda one: _quote(one[0]), item)))
    else:
        [text] = _members(parameter, value, str)
    if not (text.isascii() and text.isprintable()):
        raise ValueError(f"{parameter.argument}: a header takes printable ASCII characters only")
    return text.strip()  # spaces at the ends are not part of a value, and HTTP refuses them


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
        return "&".join(_form(body, value)).encode()
    if media == TEXT:
        return _text(value).encode()
    return write(value, allow_nan=False).encode()


def _form(body: Body, value: Mapping[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        if not _is_undefined(item):
            yield from _pairs(body.part(name, item), item)
