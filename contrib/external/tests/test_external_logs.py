"""Requests as a coding agent has sent them: rows, and why they began.

The logs are of mini-swe-agent 2.4.6, run as `mini_swe_program.py` runs it, before a gateway whose model called bash
three times. A line is a request of /v1/chat/completions as it was sent, and the message that answered it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contrib.external.tests.external_playing import Check, Play
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Message, Outcome

LOGS = Path(__file__).with_name("logs")
LIMITS = EpisodeLimits(max_turns=20, max_tokens=40_000)


def read(mode: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (LOGS / f"mini_swe_agent_{mode}.jsonl").read_text().splitlines()]


def as_written(message: dict[str, Any]) -> Message:
    """A recorded answer as a model writes it."""
    calls = [
        {"type": "function", "function": {"name": call["name"], "arguments": json.loads(call["arguments"])}}
        for call in (item["function"] for item in message.get("tool_calls") or ())
    ]
    return {"role": "assistant", "content": message["content"] or "", **({"tool_calls": calls} if calls else {})}


async def replayed(log: list[dict[str, Any]], play: Play, check: Check) -> Episode:
    """Send the requests of a log; the model answers as it did."""
    async with play(*(as_written(line["response"]) for line in log), limits=LIMITS) as program:
        for line in log:
            request = {k: v for k, v in line["request"].items() if k != "extra_body"}
            answer = (await program.client.chat.completions.create(**request)).choices[0].message
            assert json.loads(answer.tool_calls[0].function.arguments) == json.loads(
                line["response"]["tool_calls"][0]["function"]["arguments"]
            )
        episode = await program.end()
    assert (episode.outcome, len(episode.turns)) == (Outcome.SCORED, len(log))
    check(episode)
    return episode


async def test_a_system_prompt_that_stays_is_one_row(play: Play, check: Check) -> None:
    log = read("fixed")
    assert len(log[0]["request"]["messages"][0]["content"]) > 2000
    episode = await replayed(log, play, check)
    assert len(episode.rows) == 1 and episode.lineage == () and "repeated_tokens" not in episode.info


async def test_a_system_prompt_that_is_edited_begins_a_row_each_time(play: Play, check: Check) -> None:
    log = read("edited")
    episode = await replayed(log, play, check)
    assert len(episode.rows) == len(log) == 3
    at = log[0]["request"]["messages"][0]["content"].index("Calls so far: ") + len("Calls so far: ")
    began = episode.lineage[1:]
    assert [(row.turn, row.kind, row.parent) for row in began] == [(1, "system_prompt", 0), (2, "system_prompt", 1)]
    for calls, row in enumerate(began):
        assert f"the system prompt differs at character {at}: " in row.why
        assert f"so far: {calls}" in row.why and f"so far: {calls + 1}" in row.why
    # The prompts share what is before the edit only: almost all of it is read again.
    first, second, third = episode.rows
    assert len(first.token_ids) < len(second.token_ids) < len(third.token_ids)
    assert episode.is_trainable


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ("window", "dropped_messages", "messages 2 to 3 of the earlier conversation"),
        ("tools", "tools", "the tools differ: bash changed"),
        ("output", "edited_message", "message 3 (tool) differs at character"),
    ],
)
async def test_the_same_agent_with_another_memory(change: str, kind: str, words: str, play: Play, check: Check) -> None:
    """The third request of the log as an agent sends it that forgets, has other tools, or shortens old output."""
    log = read("fixed")
    request = log[2]["request"]
    if change == "window":
        del request["messages"][2:4]
    elif change == "tools":
        request["tools"][0]["function"]["description"] += " Carefully."
    else:
        request["messages"][3]["content"] = "(shortened)"
    episode = await replayed(log, play, check)
    row = episode.lineage[1]
    assert (len(episode.rows), row.turn, row.kind) == (2, 2, kind)
    assert words in row.why
