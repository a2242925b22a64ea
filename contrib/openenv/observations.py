"""The text that a model reads of an observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrib.apis.mcp.results import result_text
from contrib.common.json_text import is_set, write
from forge_env.core.errors import ServiceError
from forge_env.core.types import ToolFailure

_OF_SERVICE = ("transport_error", "timeout")
"""Errors of a tool call that no call could have avoided."""


def observation_text(observation: Mapping[str, Any]) -> str:
    """Return one text field as it is, and anything else as JSON, without fields that are empty.

    >>> observation_text({"board": "X..", "hint": None}), observation_text({"board": "X..", "left": 3})
    ('X..', '{"board":"X..","left":3}')
    """
    fields = {name: value for name, value in observation.items() if value is not None and value not in ("", [], {})}
    if len(fields) == 1:
        [value] = fields.values()
        if isinstance(value, str):
            return value
    return _json(fields) if fields else ""


def call_text(observation: Mapping[str, Any], url: str) -> str:
    """Return the text of the observation of a tool call; of a failed one a `ToolFailure`."""
    if "result" not in observation and "error" not in observation:
        return observation_text(observation)
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, dict):
        kind, message = str(error.get("error_type", "failed")), str(error.get("message"))
        if kind in _OF_SERVICE:
            raise ServiceError(f"the OpenEnv server {url} failed with {kind}: {message}")
        return ToolFailure(f"Error: {message}", kind=kind)
    if not isinstance(result, dict) or not isinstance(result.get("content"), list):
        return result if isinstance(result, str) else _json(result)
    text = result_text({"content": result["content"]})
    if not text:
        data = result.get("data", result.get("structured_content"))
        text = "OK (no content)" if data is None else _json(data)
    if is_set(result.get("is_error")) or is_set(result.get("isError")):
        return ToolFailure(f"Error: {text}", kind="execution_error")
    return text


def _json(value: Any) -> str:
    return write(value, ensure_ascii=False, separators=(",", ":"))
