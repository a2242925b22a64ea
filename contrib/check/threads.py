"""The check of threads: plain methods run in worker threads, and not always in the same one."""

from __future__ import annotations

from contrib.check.context import CheckContext, CheckFailed, shorten
from contrib.check.strategies import Strategy
from forge_env.core.episode import Episode
from forge_env.core.types import Task
from forge_env.utils.threads import own_thread_each

_THREAD_ERRORS = ("same thread", "created in a thread", "main thread", "wrong thread", "different thread")
"""Parts of the errors that libraries raise for a call from another thread: sqlite3, signal, asyncio, playwright."""
_TIMEOUT_WORDS = ("took longer than", "timed out", "timeout")
_THREAD_ADVICE = (
    "plain methods and the constructor run in threads, and not always in the same one, but never two of an instance at "
    "once; open sqlite3 with check_same_thread=False, or open and use it in methods that are async def"
)


async def threads(context: CheckContext) -> str:
    """No call depends on the thread of an earlier one: here each call runs in a thread of its own."""
    for task in context.tasks[:2]:
        for strategy in context.strategies:
            usual = await context.episode(task, strategy)
            episode = await _episode_in_separate_threads(context, task, strategy)
            if problem := next(filter(is_thread_error, (*_texts(usual), *_texts(episode))), ""):
                raise CheckFailed(
                    f"the task {task.id!r} needs calls to come from one thread ({shorten(problem)!r}): {_THREAD_ADVICE}"
                )
            if usual.outcome.is_valid and not episode.outcome.is_valid:
                raise CheckFailed(
                    f"the task {task.id!r} ends as {episode.outcome} ({shorten(episode.error)}) when each call runs in "
                    f"another thread: {_THREAD_ADVICE}"
                )
    return "each call may come from another thread"


async def _episode_in_separate_threads(context: CheckContext, task: Task, strategy: Strategy) -> Episode:
    token = own_thread_each.set(True)
    try:
        return await context.episode(task, strategy)
    finally:
        own_thread_each.reset(token)


def _texts(episode: Episode) -> tuple[str, ...]:
    return (episode.error, *(m["content"] for m in episode.messages if m["role"] == "tool"))


def is_thread_error(text: str) -> bool:
    return any(words in text for words in _THREAD_ERRORS)


def advice(text: str) -> str:
    """Return ": " and a remedy where the text of an error tells its cause, else ""."""
    if is_thread_error(text):
        return f": {_THREAD_ADVICE}"
    if any(words in text.lower() for words in _TIMEOUT_WORDS):
        return ": it is too slow here; give its tools a longer timeout, let fewer run at once, or make them faster"
    return ""
