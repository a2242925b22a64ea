"""Mends the messages of an MCP server before the `mcp` library checks them, and makes the text of a tool's result.

The library refuses a whole message for one wrong part. A server with a small mistake would then be a fault in every
episode. So a result becomes one part of text here, and a listing keeps only what the library must have.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from contrib.common.json_text import decoded, is_set, restored, write
from contrib.common.media import Medium

OUTPUT_SCHEMA = "forge_env/outputSchema"
"""Key in the `_meta` of a listed tool: its outputSchema, with which the library would refuse results."""
_START_KEYS = frozenset({"protocolVersion", "supportedVersions", "serverInfo", "capabilities"})
_ENVELOPE = frozenset({"_meta", "isError", "resultType", "content", "structuredContent"})


class LenientStream:
    """A stream of the messages of a server, mended. It has the methods of `mcp.shared.message` streams."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return _mend(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> LenientStream:
        return self

    async def __anext__(self) -> Any:
        return _mend(await self._stream.__anext__())

    async def __aenter__(self) -> LenientStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stream.__aexit__(*exc)


def _mend(item: Any) -> Any:
    """Return a message, or what the library gives in place of one that it cannot read."""
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCResponse

    if isinstance(item, Exception):
        message = _answer(item)
        return item if message is None else _mend(SessionMessage(message))
    if isinstance(item.message, JSONRPCResponse):
        item.message.result = _mended_result(restored(item.message.result))
    elif getattr(item.message, "params", None) is not None:
        item.message.params = restored(item.message.params)
    return item


def _answer(error: Exception) -> Any:
    """The answer in a line that is not a JSON-RPC message, such as a result that is not an object; None without one."""
    from mcp_types import ErrorData, JSONRPCError, JSONRPCResponse
    from pydantic import ValidationError

    line = restored(error.errors()[0]["input"]) if isinstance(error, ValidationError) else None
    if not isinstance(line, dict) or "method" in line:
        return None
    id_ = line.get("id")
    if isinstance(id_, bool) or not isinstance(id_, (int, str)):
        return None
    if line.get("error") is None:
        value = line.get("result")
        result = value if isinstance(value, dict) else {"content": [] if value is None else [value]}
        return JSONRPCResponse(jsonrpc="2.0", id=id_, result=result)
    error_part = line["error"]
    message = error_part.get("message") if isinstance(error_part, dict) else None
    text = message if isinstance(message, str) else _text(error_part)
    return JSONRPCError(jsonrpc="2.0", id=id_, error=ErrorData(code=0, message=text))


def _mended_result(result: dict[str, Any]) -> dict[str, Any]:
    if isinstance(result.get("tools"), list):
        cursor = result.get("nextCursor")
        fields = {key: value for key, value in result.items() if key != "nextCursor"}
        more = {"nextCursor": cursor} if isinstance(cursor, str) else {}
        return {**fields, **more, "tools": [_mended_tool(tool) for tool in result["tools"]]}
    is_whole = result.get("resultType") in (None, "complete")
    return _mended_call(result) if is_whole and not result.keys() & _START_KEYS else result


def _mended_tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    schema, hints = tool.get("inputSchema"), tool.get("annotations")
    schema = {**schema} if isinstance(schema, dict) else {}
    if schema.get("type") != "object":
        schema = {"type": "object", **{key: value for key, value in schema.items() if key != "type"}}
    fields = {key: tool[key] for key in ("name", "title", "description") if isinstance(tool.get(key), str)}
    is_read = isinstance(hints, dict) and hints.get("readOnlyHint") is True
    return {
        **fields,
        "inputSchema": schema,
        "annotations": {"readOnlyHint": is_read},
        "_meta": {OUTPUT_SCHEMA: tool["outputSchema"]} if isinstance(tool.get("outputSchema"), dict) else {},
    }


def _mended_call(result: dict[str, Any]) -> dict[str, Any]:
    structure = result.get("structuredContent")
    # Before 2026 structured content is an object; results of later versions have a type.
    is_kept = isinstance(structure, dict) or ("resultType" in result and "structuredContent" in result)
    return {
        **({"resultType": "complete"} if "resultType" in result else {}),
        **({"structuredContent": structure} if is_kept else {}),
        "content": [{"type": "text", "text": result_text(result)}],
        "isError": is_set(result.get("isError")),
    }


def result_text(result: Mapping[str, Any]) -> str:
    """Return the text of the result of `tools/call`, as it comes; images and sounds are named but not shown.

    Structured content is used only if there is no text, since servers send it in addition to an equal text. A result
    without any content is shown as JSON.
    """
    content = result.get("content")
    parts = content if isinstance(content, list) else [] if content is None else [content]
    texts = [_part(part) for part in parts]
    contents = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part for part in parts]
    has_text = any(isinstance(text, str) and text for text in contents)
    structure = result.get("structuredContent")
    if structure is not None and not has_text:
        texts.append(_text(structure))
    bare = {key: value for key, value in result.items() if key not in _ENVELOPE}
    if not parts and structure is None and bare:
        texts.append(_text(bare))
    return "\n".join(text for text in texts if text)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return _text(part)
    kind, resource = part.get("type"), part.get("resource")
    if kind in ("image", "audio"):
        data, media_type = part.get("data"), part.get("mimeType")
        return Medium(kind=kind, media_type=str(media_type or ""), data=data if isinstance(data, str) else "").note
    if kind == "text" and part.get("text") is None:
        return ""
    if kind == "resource_link":
        facts = (part.get(name) for name in ("uri", "title", "name", "description"))
        return f"[resource: {', '.join(str(fact) for fact in facts if fact)}]"
    if isinstance(resource, dict):
        text = resource["text"] if resource.get("text") is not None else _text_of_blob(resource)
        return f"[resource: {resource.get('uri')}]" if text is None else _text(text)
    return part["text"] if isinstance(part.get("text"), str) else _text(part)


def _text_of_blob(resource: Mapping[str, Any]) -> str | None:
    """The text in the bytes of a resource, if its type is one of texts."""
    if not re.match(r"text/|application/([\w.-]+\+)?(json|xml|yaml)\b", str(resource.get("mimeType"))):
        return None
    try:
        return decoded(base64.b64decode(str(resource.get("blob")), validate=True))
    except ValueError:
        return None


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return write(value, ensure_ascii=False, separators=(",", ":"))
