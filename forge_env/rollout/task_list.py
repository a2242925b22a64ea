"""What an environment's `tasks` gives, with every check that holds wherever tasks are drawn.

`EnvFactory.tasks` is the way to it: for evaluations, training, Gymnasium, actors and `forge-env check` alike.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from forge_env.core.errors import ForgeError, UserError
from forge_env.core.message_shape import wrong_with_json, wrong_with_messages
from forge_env.core.types import Task
from forge_env.core.user_code import NOT_CAUGHT, describe

TASKS_SECONDS = 900.0
"""What `tasks` has to return: time to download a data set, and an end where it never does."""


class BadTasks(UserError):
    """`tasks` raised, took too long, or returned what is no list of tasks."""


def read_tasks(
    name: str, call: Callable[[], Any], split: str, *, count: int, seconds: float = TASKS_SECONDS
) -> Sequence[Task]:
    """Return what a call of an environment's `tasks` gives, checked: `count` tasks at most, and one at least.

    Args:
        name: of the environment.
        call: `tasks` with all that it is given.
        split: that it is asked for, for the sentences.
        count: the tasks that it is asked for.
        seconds: after which a call that runs Python code is ended. One that waits in a C call, as time.sleep, ends when
            that returns.

    Raises:
        BadTasks: for whatever it raises; for what is no sequence of tasks, more than `count` of them or none, an id
            that comes up twice, a prompt that is no list of messages, and what cannot be written as JSON.
        UserError: what `tasks` raises as such: a split that is not there, or more tasks than there are.
    """
    what = f"tasks({split!r}, count={count})"
    try:
        items = _within(seconds, call)
    except (ForgeError, KeyboardInterrupt, *NOT_CAUGHT):  # a Ctrl-C, where no event loop runs
        raise
    except _TooLate as error:
        raise BadTasks(
            f"{describe(what, error).partition(': ')[0]} did not return within {seconds:g} s: let it end, and draw no "
            "more than `count` tasks"
        ) from None
    except NotImplementedError as error:
        raise BadTasks(str(error) or describe(what, error)) from None
    except BaseException as error:
        raise BadTasks(describe(what, error)) from error
    if inspect.iscoroutine(items):
        items.close()
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Sequence):
        raise BadTasks(f"{what} returned a {type(items).__name__}; return a list of forge_env.Task")
    tasks = list(islice(items, count + 1))  # a sequence of a user's own may have no end
    if len(tasks) > count:
        raise BadTasks(f"{what} returned more than {count} tasks: return `count` of them")
    if not tasks and count > 0:
        raise BadTasks(f"the environment {name} has no tasks in the split {split!r}: choose another one")
    _examine(split, tasks)
    return items if isinstance(items, (list, tuple)) else tasks


def _examine(split: str, tasks: Sequence[Any]) -> None:
    seen: set[str] = set()
    for number, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise BadTasks(
                f"tasks({split!r}) returned a list whose item {number} is a {type(task).__name__}; return a list of "
                "forge_env.Task"
            )
        where = f"the task {task.id!r} of the split {split!r}"
        if not isinstance(task.id, str):
            raise BadTasks(f"{where} has an id that is no text; leave it out for a hash of the content")
        if isinstance(task.prompt, str):
            raise BadTasks(
                f"{where} has a text as its prompt; a prompt is a tuple of messages: write "
                'prompt=({"role": "user", "content": "..."},)'
            )
        if problem := wrong_with_messages(task.prompt):
            raise BadTasks(f"{where}: in its prompt, {problem}")
        if not isinstance(task.metadata, Mapping):
            raise BadTasks(f"{where}: its metadata is a {type(task.metadata).__name__}; it is a dict")
        for part, value in (("target", task.target), ("metadata", dict(task.metadata))):
            if problem := wrong_with_json(value):
                raise BadTasks(f"{where}: its {part} {problem}")
        if task.id in seen:
            raise BadTasks(f"tasks({split!r}) holds the id {task.id!r} more than once: draw without repetition")
        seen.add(task.id)


class _TooLate(BaseException):
    """Raised inside a call that takes too long. Not an Exception: a user's own handlers let it pass."""


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Make a call in this very thread, as what a user opened at its import may belong to it.

    Raises:
        _TooLate: at a bytecode of the call, when the seconds are over.
    """
    lock, thread = threading.Lock(), threading.get_ident()
    is_running, is_late = True, False

    def end() -> None:
        nonlocal is_late
        with lock:
            if is_running:
                is_late = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLate))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        return call()
    finally:
        timer.cancel()
        with lock:
            is_running = False
        if is_late:  # where it has not arrived yet it does now, at a jump backwards, as in forge_env.utils.threads
            for _ in range(100):
                pass
