"""The check of threads: plain methods run in threads, and not always in the same one."""

from __future__ import annotations

from forge_env.check.moves import Move
from forge_env.check.subject import Failed, Subject
from forge_env.core.episode import Episode
from forge_env.core.types import Task
from forge_env.utils.threads import own_thread_each

_OF_ONE_THREAD = ("same thread", "created in a thread", "main thread", "wrong thread", "different thread")
"""What libraries say of a call from a thread that is not theirs: sqlite3, signal, asyncio, playwright."""
_TOO_SLOW = ("took longer than", "timed out", "timeout")
_THREADS = (
    "plain methods run in threads, and not always in the same one; open sqlite3 with check_same_thread=False, or write "
    "the methods that use it as async def"
)


async def threads(subject: Subject) -> str:
    """No call depends on the thread of an earlier one: each has one of its own here."""
    for task in subject.tasks[:2]:
        for move in subject.moves:
            usual = await subject.episode(task, move)
            episode = await _apart(subject, task, move)
            if problem := next(filter(is_of_one_thread, (*_words(usual), *_words(episode))), ""):
                raise Failed(
                    f"the task {task.id!r} needs calls to come from one thread ({problem[:160]!r}): {_THREADS}"
                )
            if usual.outcome.is_valid and not episode.outcome.is_valid:
                raise Failed(
                    f"the task {task.id!r} ends as {episode.outcome} ({episode.error[:160]}) when each call runs in "
                    f"another thread: {_THREADS}"
                )
    return "each call may come from another thread"


async def _apart(subject: Subject, task: Task, move: Move) -> Episode:
    token = own_thread_each.set(True)
    try:
        return await subject.episode(task, move)
    finally:
        own_thread_each.reset(token)


def _words(episode: Episode) -> tuple[str, ...]:
    """What the environment said, and what it raised."""
    return (episode.error, *(m["content"] for m in episode.messages if m["role"] == "tool"))


def is_of_one_thread(text: str) -> bool:
    return any(words in text for words in _OF_ONE_THREAD)


def advice(text: str) -> str:
    """Return what to do about an error, where its words tell the cause; it begins with a colon."""
    if is_of_one_thread(text):
        return f": {_THREADS}"
    if is_too_slow(text):
        return ": it is too slow here; give its tools a longer timeout, let fewer run at once, or make them faster"
    return ""


def is_too_slow(text: str) -> bool:
    return any(words in text.lower() for words in _TOO_SLOW)
