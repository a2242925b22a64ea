"""What the model is told of an MCP tool's result."""

from __future__ import annotations

import json
from typing import Any

from forge_env.core.types import ToolFailure

MCP_ERROR = "mcp_error"
"""Kind of the failure of a call that the server answered with an error."""


def result_text(result: Any) -> str:
    """Return the text of a `CallToolResult`; images and sounds are named but not shown.

    That of a call that failed is a `ToolFailure`. Structured content stands in where there is no text: servers send it
    beside a text that says the same.
    """
    parts = [_part(content) for content in result.content]
    has_text = any(content.type == "text" for content in result.content)
    if result.structured_content is not None and not has_text:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    text = "\n".join(part for part in parts if part)
    if result.is_error:
        return ToolFailure(f"Error: {text or 'the tool failed and did not say why'}", kind=MCP_ERROR)
    return text or "OK (no content)"


def _part(content: Any) -> str:
    if content.type == "text":
        return str(content.text)
    if content.type in ("image", "audio"):
        return f"[{content.type}: {content.mime_type}, {len(content.data) * 3 // 4} bytes]"
    if content.type == "resource_link":
        return f"[resource: {content.uri}]"
    text = getattr(content.resource, "text", None)
    return text if text is not None else f"[resource: {content.resource.uri}]"
