"""Readers of texts that models write take time in proportion to the text; see tests/test_readers.py."""

from __future__ import annotations

import pytest

from agents.renderer import dialects
from contrib.external import conversations, scoring
from contrib.external.requests import ProgramRequest
from contrib.external.responses import ProgramReply
from forge_env.core.types import Action
from tests.test_readers import SIZES, call_of, slow_attacks


def reply_to(text: str) -> ProgramReply:
    """What a program is given of an answer whose calls cannot be read."""
    content, calls = dialects.parse(text, "hermes")
    action = Action(message={"role": "assistant", "content": content}, tool_calls=calls)
    return ProgramReply.of(action, ProgramRequest(model="m", stop=("\n\n\n\n", "END")), turn=0)


READERS = {
    "result of a program": lambda text: scoring.read_result(None, text, ""),
    "message of a program": lambda text: conversations.content_of(
        {"role": "a", "content": text, "tool_calls": [call_of(text)]}
    ),
    "reply to a program": reply_to,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(name: str, size: int) -> None:
    assert slow_attacks(READERS[name], size) == {}
