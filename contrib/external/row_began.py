"""Where a request that begins a row comes from: the conversation that it branches from, and what differs from that."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from contrib.external.conversations import Content, ProgramConversation
from contrib.external.requests import ProgramRequest
from forge_env.core.protocols import RowBegan
from forge_env.core.types import ToolSpec

_BEFORE, _AFTER = 12, 28
"""Characters of a message that are shown around the first one that differs."""
_CALLED = 8
"""Characters that an argument has at least, if the prompt of a sub-agent is known by it."""
_NAMES = 4
"""Names of tools that a sentence lists."""


def why_row_began(
    request: ProgramRequest, contents: Sequence[Content], earlier: Sequence[ProgramConversation]
) -> RowBegan:
    """Return why a request continues no conversation, and which conversation it branches from.

    Args:
        request: that begins a conversation.
        contents: of its messages.
        earlier: the conversations before it. Auxiliary ones are left out: the work does not come from them.
    """
    facts = request.told
    earlier = [item for item in earlier if item.has_begun and not item.auxiliary]
    began = _of_earlier(request, contents, earlier) if earlier else RowBegan("", "")
    if facts.auxiliary:
        began = began._replace(kind="auxiliary", why=facts.auxiliary)
    return began._replace(agent=facts.agent)


def _of_earlier(
    request: ProgramRequest, contents: Sequence[Content], earlier: Sequence[ProgramConversation]
) -> RowBegan:
    if request.prompt is not None:
        return _of_text(request.prompt, earlier)
    facts = request.told
    same_agent = [item for item in earlier if facts.agent and item.agent == facts.agent]
    callers = [item for item in earlier if facts.parent and item.agent == facts.parent]
    if callers and not same_agent:  # the first request of an agent that another one has called
        caller, turns = _called_by(callers, contents)
        if caller is None:
            caller = _nearest(callers, contents) or callers[-1]
            turns = _answers(caller, contents) or caller.turns
        why = f"{facts.parent_field} names the agent that it works for"
        return RowBegan("sub_agent", why, caller.number, turns, facts.parent_field)
    if nearest := _nearest(same_agent or earlier, contents):
        reason = _difference_of(request, contents, nearest)
        return reason._replace(parent=nearest.number, turns=_answers(nearest, contents), known_by="messages")
    caller, turns = _called_by(earlier, contents)
    if caller is not None:
        return RowBegan("sub_agent", "its text is an argument of an earlier call", caller.number, turns, "call")
    independent = RowBegan(
        "independent", "it shares no message with an earlier conversation, except for a system prompt"
    )
    if not same_agent:
        return independent
    return independent._replace(parent=same_agent[-1].number, turns=same_agent[-1].turns, known_by=facts.agent_field)


def _nearest(earlier: Sequence[ProgramConversation], contents: Sequence[Content]) -> ProgramConversation | None:
    """The conversation that has the most messages of a request, system prompts apart; None if none has any."""
    own = Counter(content for content in contents if content[0] != "system")
    shared = {
        item.number: (Counter(item.history) & own).total() or _adds_to_first(item.history, contents) for item in earlier
    }
    nearest = max(
        earlier, key=lambda item: (shared[item.number], _common(item.history, contents), item.number), default=None
    )
    return nearest if nearest is not None and shared[nearest.number] else None


def _adds_to_first(history: Sequence[Content], contents: Sequence[Content]) -> bool:
    """Whether the first message after the system prompt is a known conversation's, with more text at its end."""
    was, now = (next((item for item in items if item[0] != "system"), None) for items in (history, contents))
    return was is not None and now is not None and _adds_to(was, now)


def _adds_to(was: Content, now: Content) -> bool:
    return was[0] == now[0] and bool(was[1]) and not was[2] and now[1].startswith(was[1])


def _answers(item: ProgramConversation, contents: Sequence[Content]) -> int:
    """How many answers of a conversation a request has at its beginning."""
    same = _common(item.contents_so_far, contents)
    return sum(end <= same for end in item.ends)


def _called_by(
    earlier: Sequence[ProgramConversation], contents: Sequence[Content]
) -> tuple[ProgramConversation | None, int]:
    """The last conversation with a call that has the text of a request as an argument, and the number of its answers
    up to that call."""
    texts = [text for role, text, _ in contents if role == "user"]
    for item in reversed(earlier):
        for at in reversed(range(len(item.contents_so_far))):
            values = [value for _, arguments in item.contents_so_far[at][2] for value in _texts_of(arguments)]
            if any(text.rstrip().endswith(value) for value in values for text in texts):
                return item, sum(end <= at for end in item.ends) + 1
    return None, 0


def _texts_of(arguments: str) -> list[str]:
    """The texts among the arguments of a call, but for short ones, which any prompt may end with."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    items = values.values() if isinstance(values, dict) else ()
    return [text.strip() for text in items if isinstance(text, str) and len(text.strip()) >= _CALLED]


def _difference_of(request: ProgramRequest, contents: Sequence[Content], nearest: ProgramConversation) -> RowBegan:
    if nearest.is_asked:
        count = _common(nearest.history, contents)
        return RowBegan(
            "parallel", f"it came while a request that begins with the same {_messages(count)} was being answered"
        )
    return (
        _of_system_prompts(nearest.history, contents)
        or _of_tools(nearest.tools, request.tools)
        or _of_messages(nearest.history, contents)
    )


def _of_text(prompt: str | Sequence[int], earlier: Sequence[ProgramConversation]) -> RowBegan:
    if not isinstance(prompt, str):
        return RowBegan("independent", "a prompt of token ids always begins a row")
    texts = [item.text for item in earlier if item.text]
    nearest = max(texts, key=lambda text: _common(text, prompt), default="")
    if not _common(nearest, prompt):
        return RowBegan("independent", "its prompt does not begin as an earlier one")
    return RowBegan("edited_message", f"the prompt {_difference(nearest, prompt)}")


def _of_system_prompts(history: Sequence[Content], contents: Sequence[Content]) -> RowBegan | None:
    was, now = (_excerpt(items[0]) if items[0][0] == "system" else "" for items in (history, contents))
    return None if was == now else RowBegan("system_prompt", f"the system prompt {_difference(was, now)}")


def _of_tools(was: Sequence[ToolSpec], now: Sequence[ToolSpec]) -> RowBegan | None:
    if was == now:
        return None
    before, after = ({tool["function"]["name"]: tool for tool in tools} for tools in (was, now))
    differing = [name for name in after if name in before and before[name] != after[name]]
    parts = {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": differing,
    }
    sentence = ", ".join(f"{_names(names)} {what}" for what, names in parts.items() if names)
    return RowBegan("tools", f"the tools differ: {sentence or 'they have another order'}")


def _of_messages(history: Sequence[Content], contents: Sequence[Content]) -> RowBegan:
    """Compare the messages of a request with a conversation that has the same system prompt."""
    same = _common(history, contents)
    old, new = history[same:], contents[same:]
    if not new:
        return RowBegan("repeated", f"it repeats {_messages(same)} of an earlier conversation, and adds nothing")
    if not old:
        return RowBegan("sub_agent", f"another agent goes on from {_messages(same)} of an earlier conversation")
    if _adds_to(old[0], new[0]):
        return RowBegan("edited_message", f"{_edit_of(same, old[0], new[0])}: text was added to it")
    places: dict[Content, int] = {}
    for i, content in enumerate(old):
        places.setdefault(content, i)
    at = next((i for i, content in enumerate(new) if content in places), None)
    if at is None:
        # Nothing of the rest comes again: the rest was edited, if its roles did stay, or is gone.
        is_edited = [role for role, *_ in old] == [role for role, *_ in new[: len(old)]]
        num_missing, at = (1, 1) if is_edited else (len(old), 0)
    else:
        num_missing = places[new[at]]
    if num_missing == at:
        return RowBegan("edited_message", _edit_of(same, old[0], new[0]))
    if num_missing < at:
        count = f"{_messages(at - num_missing)} more than before"
        return RowBegan("inserted_messages", f"it has {count}, from message {same} ({new[0][0]}) on: {_start(new[0])}")
    last = same + num_missing - 1
    which = f"message {same}" if num_missing == 1 else f"messages {same} to {last}"
    return RowBegan(
        "dropped_messages",
        f"{which} of the earlier conversation, from the {old[0][0]}'s {_start(old[0])} on, became {_messages(at)}; "
        f"message {same} is now the {new[0][0]}'s {_start(new[0])}",
    )


def _edit_of(number: int, was: Content, now: Content) -> str:
    if was[0] != now[0]:
        return f"message {number} is of the role {now[0]}, and was of {was[0]}"
    return f"message {number} ({now[0]}) {_difference(_excerpt(was), _excerpt(now))}"


def _difference(was: str, now: str) -> str:
    at = _common(was, now)
    old, new = (repr(text[max(0, at - _BEFORE) : at + _AFTER]) for text in (was, now))
    return f"differs at character {at}: {old} became {new}"


def _excerpt(content: Content) -> str:
    """What a model reads of a message, as one text."""
    _, text, calls = content
    return " ".join([text, *(f"{name}({arguments})" for name, arguments in calls)]).strip()


def _start(content: Content) -> str:
    return repr(_excerpt(content)[: _BEFORE + _AFTER])


def _names(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMES} more"] * (len(names) > _NAMES)
    return " and ".join(filter(None, [", ".join(f"{name:.40}" for name in names[:_NAMES]), *more]))


def _messages(count: int) -> str:
    return f"{count} message" if count == 1 else f"{count} messages"


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The number of leading messages, or characters, that two sequences of one type share."""
    # Slices are compared as a whole: a history may have millions of characters.
    return bisect_left(range(min(len(a), len(b))), True, key=lambda n: a[: n + 1] != b[: n + 1])
