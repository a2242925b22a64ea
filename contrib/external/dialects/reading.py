"""What several dialects read alike.

A run samples as its own settings say. So a parameter that would change which tokens are sampled is refused or ignored,
and the response says which.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterator, Mapping
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.common.json_text import write
from contrib.common.media import Medium
from contrib.external.requests import whole_number
from forge_env.core.types import ToolSpec

_MAX_STOPS = 16
_MEDIA = {
    "audio": "audio", "audio_url": "audio", "container_upload": "document", "document": "document", "file": "document",
    "image": "image", "image_url": "image", "input_audio": "audio", "input_file": "document", "input_image": "image",
    "video_url": "video",
}  # fmt: skip
"""The types of parts that hold no text, in all dialects, and what they are."""
_WRITTEN = ("text", "content")
"""Types of Anthropic's sources of documents that are texts."""


def tools_are_off(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return (choice.get("type") if isinstance(choice, dict) else choice) == "none"


def limit(body: Mapping[str, Any], *names: str) -> int | None:
    """The limit of tokens: of the first of some parameters that is set."""
    name = next((name for name in names if body.get(name) is not None), names[-1])
    value = whole_number(body.get(name))
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise RequestRefused(400, f"{name} is {json.dumps(value)[:80]}; it is a whole number from 1 on", param=name)
    return value


def stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    is_valid = isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)
    if not is_valid or len(texts) > _MAX_STOPS:
        raise RequestRefused(400, f"{name} is a text or up to {_MAX_STOPS} texts, none of them empty", param=name)
    return tuple(texts)


def text_of(content: Any, where: str) -> str:
    """The text of a content that is a text or a list of parts; of other media a note in a line of its own."""
    if content is None or isinstance(content, str):
        return content or ""
    whole = ""
    ends_with_note = False
    for part in content if isinstance(content, list) else [content]:
        is_note = _medium_fields(part) is not None
        text = part if isinstance(part, str) else _part(part, where)
        breaks = whole and text and (is_note or ends_with_note) and not whole.endswith("\n") and text[0] != "\n"
        whole += "\n" * bool(breaks) + text
        ends_with_note = is_note if text else ends_with_note
    return whole


def _part(part: Any, where: str) -> str:
    """The text of one part. A document of text is its text."""
    fields = _medium_fields(part)
    if isinstance(part, dict) and part.get("type") == "search_result":
        return "\n".join([str(part.get("title")), str(part.get("source")), text_of(part.get("content"), where)])
    if fields is None:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = f"a part {part['type']!r:.40}" if isinstance(part, dict) and "type" in part else "content"
            raise RequestRefused(400, f"{where} holds {kind} that is no text; the model reads text only", param=where)
        return text
    data = fields.get("data", fields.get("content"))
    if fields.get("type") in _WRITTEN and data is not None:
        about = [part[name] for name in ("title", "context") if isinstance(part.get(name), str) and part[name]]
        return "\n".join([*about, text_of(data, where)])
    if (medium := medium_of(part)) is None:
        raise RequestRefused(
            400, f"{where} holds a part {part['type']!r:.40} without data, a URL or the id of a file", param=where
        )
    return medium.note


def medium_of(part: Any) -> Medium | None:
    """The image, sound or document that a part holds; None if it holds none."""
    fields = _medium_fields(part)
    if fields is None or fields.get("type") in _WRITTEN:
        return None
    kind = _MEDIA[part["type"]]
    values = {name: value for name, value in fields.items() if isinstance(value, str) and value}
    media_type = values.get("media_type") or values.get("mimeType") or ""
    if not media_type and kind == "audio" and "format" in values:
        media_type = f"audio/{values['format']}"
    media_type = media_type or mimetypes.guess_type(values.get("filename", ""))[0] or ""
    if data := values.get("data") or values.get("file_data"):
        is_url = data[:5].lower() == "data:"
        return Medium.at(kind, data, media_type) if is_url else Medium(kind=kind, media_type=media_type, data=data)
    url = next((values[name] for name in ("url", "image_url", "file_url", "file_id") if name in values), "")
    return Medium.at(kind, url, media_type) if url else None


def media_in(value: Any) -> Iterator[Medium]:
    """The images, sounds and documents in the messages of a request, wherever they are."""
    open_ = [value]
    while open_:
        value = open_.pop()
        if (medium := medium_of(value)) is not None:
            yield medium
        elif isinstance(value, (dict, list)):
            open_ += value.values() if isinstance(value, dict) else value


def _medium_fields(part: Any) -> Mapping[str, Any] | None:
    """What says where the content of a part is: in Anthropic's source, in the object of OpenAI's, or in the part."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _MEDIA:
        return None
    fields = part.get("source", part.get(kind, part))
    return fields if isinstance(fields, dict) else {"url": fields}


def call_of(id_: Any, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else write({} if arguments is None else arguments)
    return {
        "id": id_ if isinstance(id_, str) else "",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def tool_of(name: str, description: Any, parameters: Any) -> ToolSpec:
    if parameters is not None and not isinstance(parameters, dict):
        value = json.dumps(parameters)[:80]
        raise RequestRefused(400, f"the schema of the tool {name!r:.80} is {value}; it is an object", param="tools")
    schema = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"type": "function", "function": {"name": name, "description": str(description or ""), "parameters": schema}}
