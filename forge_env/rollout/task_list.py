"""Calls an environment's `tasks` and checks the result.

All callers use it through `EnvFactory.tasks`: evaluations, training, Gymnasium, actors and `forge-env check`.
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from forge_env.core.errors import ForgeError, UserError
from forge_env.core.plain_value import own_task, task_problem
from forge_env.core.types import Task
from forge_env.core.user_code import NOT_CAUGHT, describe

TASKS_SECONDS = 900.0
"""Time limit of `tasks`: enough to download a dataset."""


class BadTasks(UserError):
    """`tasks` raised, took too long, or returned no valid list of tasks."""


class LateTasks(BadTasks):
    """`tasks` took too long."""


def read_tasks(
    name: str, call: Callable[[], Any], split: str, *, count: int, seconds: float = TASKS_SECONDS
) -> Sequence[Task]:
    """Call `tasks` and return the checked result: from 1 to `count` tasks.

    Args:
        seconds: time limit of the call. Python code is interrupted; a C call such as time.sleep first returns.
    """
    call_text = f"tasks({split!r}, count={count})"
    try:
        items = _call_within(seconds, call)
    except (ForgeError, KeyboardInterrupt, *NOT_CAUGHT):  # KeyboardInterrupt: Ctrl-C without an event loop
        raise
    except _TooLate as error:
        raise LateTasks(
            f"{describe(call_text, error).partition(': ')[0]} did not return within {seconds:g} s: let it end, and "
            "draw no more than `count` tasks"
        ) from None
    except NotImplementedError as error:
        raise BadTasks(str(error) or describe(call_text, error)) from None
    except BaseException as error:
        raise BadTasks(describe(call_text, error)) from error
    if inspect.iscoroutine(items):
        items.close()
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Sequence):
        raise BadTasks(f"{call_text} returned a {type(items).__name__}; return a list of forge_env.Task")
    tasks = list(islice(items, count + 1))  # a custom sequence may be endless
    if len(tasks) > count:
        raise BadTasks(f"{call_text} returned more than {count} tasks: return `count` of them")
    if not tasks and count > 0:
        raise BadTasks(f"the environment {name} has no tasks in the split {split!r}: choose another one")
    _check_tasks(split, tasks)
    own = [own_task(task) for task in tasks]  # the environment may keep what it handed out
    if isinstance(items, list) and type(items) is not list:  # one that says more of its tasks stays what it is
        same_type = copy.copy(items)
        same_type[:] = own
        return same_type
    return tuple(own) if isinstance(items, tuple) else own


def _check_tasks(split: str, tasks: Sequence[Any]) -> None:
    ids: set[str] = set()
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
        if problem := task_problem(task):
            raise BadTasks(f"{where}: {problem}")
        if task.id in ids:
            raise BadTasks(f"tasks({split!r}) holds the id {task.id!r} more than once: draw without repetition")
        ids.add(task.id)


class _TooLate(BaseException):
    """Raised inside a call that exceeds its time limit. Not an Exception, so that user code does not catch it."""


def _call_within(seconds: float, call: Callable[[], Any]) -> Any:
    """Make a call in the current thread, because objects that the module opened on import may be bound to it."""
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
        if is_late:  # a pending one is raised here, at a backward jump, as in forge_env.utils.threads
            for _ in range(100):
                pass
