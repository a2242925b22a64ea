"""How an answer of an endpoint ended: what providers send as its finish reason, and what that makes of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Ending(Enum):
    """What a finish reason makes of an answer; of several in one stream, the last of these counts."""

    WHOLE = 0
    CUT = 1
    FULL = 2
    """The context is full: a cut answer if anything was written."""
    BROKEN = 3
    """The endpoint has failed, or has taken the answer back: there is no answer."""


_ENDINGS = {
    Ending.WHOLE: "stop tool_calls tool_call tool_use function_call end_turn stop_sequence eos eos_token endoftext "
    "complete completed done null none",
    Ending.CUT: "length max_tokens max_output_tokens max_new_tokens max_length token_limit repetition",
    Ending.FULL: "model_length error_limit context_length_exceeded context_window_exceeded "
    "model_context_window_exceeded",
}
_BY_REASON = {reason: ending for ending, reasons in _ENDINGS.items() for reason in reasons.split()}


def ending_of(reason: Any) -> Ending:
    """What a finish reason means. None is whole, as some servers send none; a reason that nobody knows is broken."""
    if isinstance(reason, Mapping):  # SGLang's own form
        reason = reason.get("type")
    name = str(reason or None).lower().replace("-", "_").rpartition(".")[2].removeprefix("finish_reason_")
    return _BY_REASON.get(name, Ending.BROKEN)
