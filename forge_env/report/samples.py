"""Sample episodes: the same tasks before and after, side by side, as conversations."""

from __future__ import annotations

import json
from html import escape

from forge_env.core.episode import Episode
from forge_env.core.types import Message
from forge_env.evaluation.evaluate import is_success
from forge_env.report.numbers import short
from forge_env.report.record import RunRecord
from forge_env.report.tables import cut

MOST_SAMPLES = 4
MOST_MESSAGES = 24
LONGEST_MESSAGE = 2000
KINDS = {
    (False, True): "solved since training",
    (True, False): "no longer solved",
    (False, False): "not solved",
    (True, True): "solved before and after",
}
"""Of a task, by its success before and after."""


def samples(run: RunRecord) -> str:
    """A few tasks with what the policy did; "" where nothing was evaluated."""
    before, after = (_first_of_tasks(run, name) for name in ("before", "after"))
    both = bool(before and after)
    tasks = _choose(before, after) if both else list(after or before)[:MOST_SAMPLES]
    shown = []
    for number, task in enumerate(tasks, 1):
        sides = [
            f'<div class="side"><h4>{title}</h4>{_episode(each[task])}</div>'
            for title, each in (("before", before), ("after", after))
            if task in each
        ]
        kind = f": {KINDS[is_success(before[task]), is_success(after[task])]}" if both else ""
        shown.append(f'<h3>Task {number}{kind}</h3><div class="sides">{"".join(sides)}</div>')
    return "".join(shown)


def _first_of_tasks(run: RunRecord, name: str) -> dict[str, Episode]:
    """The first episode of each task of an evaluation."""
    found: dict[str, Episode] = {}
    evaluation = run.evaluations.get(name)
    for episode in evaluation.episodes if evaluation else ():
        found.setdefault(episode.task.id, episode)
    return found


def _choose(before: dict[str, Episode], after: dict[str, Episode]) -> list[str]:
    """Tasks of every kind, as far as there are any: one that got better, one that got worse, one failed, one solved."""
    kinds: dict[tuple[bool, bool], list[str]] = {kind: [] for kind in KINDS}
    for task in before:
        if task in after:
            kinds[is_success(before[task]), is_success(after[task])].append(task)
    chosen = [tasks[0] for tasks in kinds.values() if tasks]
    rest = [task for tasks in kinds.values() for task in tasks[1:]]
    return (chosen + rest)[:MOST_SAMPLES]


def _episode(episode: Episode) -> str:
    reward = "no reward" if episode.reward is None else f"reward {short(episode.reward)}"
    kind = "good" if is_success(episode) else "bad"
    messages = [message for message in episode.messages if message.get("role") != "system"]
    shown = "".join(map(_message, messages[:MOST_MESSAGES]))
    left = len(messages) - MOST_MESSAGES
    more = f"<p class=note>{left:,} more messages are left out.</p>" if left > 0 else ""
    error = f"<p class=note>{escape(cut(episode.error, LONGEST_MESSAGE))}</p>" if episode.error else ""
    outcome = escape(str(episode.outcome).replace("_", " "))
    return f'<p class="verdict {kind}">{escape(reward)}, {outcome}</p>{shown}{more}{error}'


ROLES = ("user", "assistant", "tool")


def _message(message: Message) -> str:
    role = str(message.get("role", ""))
    css = role if role in ROLES else "other"
    parts = []
    if content := _text(message.get("content")):
        parts.append(f"<pre>{escape(cut(content, LONGEST_MESSAGE))}</pre>")
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        name, arguments = _text(function.get("name")), _text(function.get("arguments"))
        shown = f"<pre>{escape(cut(_pretty(arguments), LONGEST_MESSAGE))}</pre>"
        parts.append(f'<div class="call"><b>{escape(cut(name, 80))}</b>{shown}</div>')
    body = "".join(parts) or '<p class="note">nothing</p>'
    return f'<div class="message {css}"><span class="role">{escape(role[:40])}</span>{body}</div>'


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _pretty(arguments: str) -> str:
    """The arguments of a call; a single text as it is, so that code reads as code."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    if isinstance(found, dict) and len(found) == 1:
        (value,) = found.values()
        if isinstance(value, str):
            return value
    return arguments
