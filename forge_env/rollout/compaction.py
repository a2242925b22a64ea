"""A summary in the place of old turns, when a conversation has used up its share of the context.

The agent is asked for the summary as for any answer, so its tokens continue the row that it sums up, and are a turn of
the Episode. The environment sees neither the request nor the summary. Then the conversation begins again, in a new row:
with the messages that it began with (the system prompt and the task), the summary, and the last exchange if it fits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_env.core.protocols import ContextFull
from forge_env.core.types import ToolSpec
from forge_env.rollout.conversations import with_text

if TYPE_CHECKING:
    from forge_env.rollout.episode_run import EpisodeRun

COMPACT_PROMPT = (
    "Summarize the conversation so far: what was done, what was found, what is left to do. Your summary replaces it."
)
"""What asks for a summary, at the end of the last message: an expert that demonstrates summaries looks for it."""
SUMMARY = "Summary so far:\n"
"""Stands before a summary."""


async def make_room(run: EpisodeRun, tools: Sequence[ToolSpec], reason: str) -> str | None:
    """Make room in the current conversation: for `reason` the agent did not answer its next prompt.

    Returns:
        None if the agent may be asked again; otherwise why the prompt stays too long.
    """
    conversation = run.conversations.current
    if conversation.shorter:  # the last exchange does not fit beside the summary
        conversation.observation, conversation.shorter = conversation.shorter, ()
        return None
    next_turn, observation = conversation.next_turn, conversation.observation
    is_plain = next_turn is not None and next_turn.prompt is not None
    if not conversation.compact_at or not conversation.turns or conversation.auxiliary or is_plain:
        return reason
    conversation.observation = with_text(observation, COMPACT_PROMPT)
    conversation.next_turn, conversation.is_summarised = None, True
    start_time = time.perf_counter()
    try:
        turn, action = await run.act(conversation, tools)
        cut_by = run.cutting_limit(conversation, turn, action)
    except ContextFull as full:
        conversation.observation = observation
        run.info["no_summary"] = f"there was no room to write one: {full}"
        return f"{reason}; a summary has no room either"
    finally:
        conversation.next_turn, conversation.is_summarised = next_turn, False
    turn.is_summary, turn.policy_seconds = True, time.perf_counter() - start_time
    run.record(conversation, turn)
    if cut_by:
        run.info["no_summary"] = f"it was cut off by {cut_by}"
        return f"{reason}; the summary was cut off"
    run.conversations.compact(SUMMARY + action.text, observation)
    return None
