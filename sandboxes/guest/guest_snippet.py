"""Runs one snippet inside the snippet's process. Standard library only; imported by `guest.py`.

The host trusts only the first byte of the report, which is written before untrusted code runs: "S" (started), or "E"
and a text (the environment's set-up failed). After it may follow "V", a length and the value, or the claim that memory
("M") or processes ("P") ran out.
"""

from __future__ import annotations

import _sitebuiltins
import atexit
import builtins
import errno
import gc
import importlib
import json
import linecache
import os
import struct
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

import guest_files as files  # type: ignore[import-not-found]

REPORT_FD, BODY_FD = 3, 4
_BODY_PREFIX = struct.Struct("<Q")  # zygote.py packs it
MAX_VALUE_BYTES = 64 * 2**10
_SNIPPET, _SETUP = "<snippet>", "<setup>"
HIDDEN_FILES = {__file__, _SETUP}
"""Files with frames that tracebacks leave out."""
_PLAIN = (bool, int, float, str, type(None))


def add_site_builtins() -> None:
    """Add the builtins of the `site` module, which the guest does not load."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


def take_fork_hooks() -> Callable[[bool], None]:
    """Import `threading` and `random` without their hooks for forks: they take a tenth of a run.

    Returns what a snippet calls instead, with whether its parent has other threads; without them the hooks of
    `threading` have nothing to do. It calls the other hooks, and sets all of them.
    """
    hooks: list[dict[str, Any]] = []
    register, os.register_at_fork = os.register_at_fork, lambda **hook: hooks.append(hook)
    importlib.import_module("threading")
    of_threading = len(hooks)
    importlib.import_module("random")
    os.register_at_fork = register

    def after_fork(has_threads: bool) -> None:
        for hook in hooks if has_threads else hooks[of_threading:]:
            if "after_in_child" in hook:
                hook["after_in_child"]()
        for hook in hooks:
            register(**hook)

    return after_fork


def has_threads() -> bool:
    """Whether this process has threads of Python beside the main one. Not for a forked child: it takes a lock."""
    threading = sys.modules.get("threading")
    return threading is not None and threading.active_count() > 1


def report_broken_setup(text: str) -> NoReturn:
    os.write(REPORT_FD, b"E" + text.encode("utf-8", "replace")[:4000])
    os._exit(1)


def run() -> NoReturn:
    request, namespace = begin()
    _finish(_run_untrusted_code(request, namespace))


def begin() -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the request in BODY_FD, write its files, run its set-up and report the start.

    Returns the request and the namespace for the code.
    """
    request = _read_request()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    namespace = main.__dict__
    gc.enable()
    try:
        if request["setup"]:
            exec(compile(request["setup"], _SETUP, "exec"), namespace)
            sys.stdout.flush()
    except BaseException:
        report_broken_setup("the setup code raised: " + traceback.format_exc(limit=-3))
    os.write(REPORT_FD, b"S")
    return request, namespace


def _read_request() -> dict[str, Any]:
    [size] = _BODY_PREFIX.unpack(os.pread(BODY_FD, _BODY_PREFIX.size, 0))
    request: dict[str, Any] = json.loads(os.pread(BODY_FD, size, _BODY_PREFIX.size))
    offset = _BODY_PREFIX.size + size
    for path, length in request["files"]:
        try:
            files.put(path, BODY_FD, offset, length)
        except OSError as error:
            report_broken_setup(f"the file {path!r} cannot be written: {error.strerror}")
        offset += length
    os.close(BODY_FD)
    return request


def open_standard_streams() -> None:
    """Create the standard streams that all snippets inherit; creating them per run would be slower.

    Standard input is a file (/dev/null or a memory file), output and errors are pipes, which cannot seek.
    """
    read_end, write_end = os.pipe()
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(read_end)
    os.close(write_end)
    open_streams()


def open_streams() -> None:
    """Create sys.stdin, stdout and stderr on the descriptors 0 to 2."""
    # These stay open as long as the process lives.
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _run_untrusted_code(request: dict[str, Any], namespace: dict[str, Any]) -> int:
    """Return the exit code. A process forked by the code returns here, too, and must not report."""
    owner = os.getpid()
    code: str = request["code"]
    try:
        show_source(_SNIPPET, code)
        exec(compile(code, _SNIPPET, "exec"), namespace)
        if request["call"] and os.getpid() == owner:
            _report_value(_call(request["call"], namespace))
        _wait_for_threads()
    except SystemExit as end:
        return exit_code(end)
    except BaseException as error:
        if os.getpid() == owner:
            claim = exhausted_resource(error)
            attempt(lambda: os.write(REPORT_FD, claim))
        print_exception(error)
        return 1
    return 0


def show_source(name: str, code: str) -> None:
    """Let tracebacks show the source lines of the code compiled as `name`."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def _call(call: dict[str, Any], namespace: dict[str, Any]) -> Any:
    name = call["function"]
    if name not in namespace:
        raise NameError(f"name {name!r} is not defined")
    return namespace[name](*call["args"])


def _report_value(value: Any) -> None:
    _require_plain(value)
    data = json.dumps(value).encode()
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError(f"the returned value has {len(data)} bytes of JSON; at most {MAX_VALUE_BYTES} are allowed")
    frame = b"V" + struct.pack("<I", len(data)) + data
    while frame:
        frame = frame[os.write(REPORT_FD, frame) :]


def _require_plain(value: Any) -> None:
    """Refuse subclasses, too: an object that compares equal to everything must not pass."""
    kind = type(value)
    if kind in (list, tuple):
        for item in value:
            _require_plain(item)
    elif kind is dict:
        for key, item in value.items():
            if type(key) not in _PLAIN:
                raise TypeError(f"a dict with a key of type {type(key).__name__} cannot be returned as JSON")
            _require_plain(item)
    elif kind not in _PLAIN:
        raise TypeError(f"a value of type {kind.__name__} cannot be returned as JSON")


def _wait_for_threads() -> None:
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        threading._shutdown()


def exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    attempt(lambda: print(end.code, file=sys.stderr))
    return 1


def exhausted_resource(error: BaseException) -> bytes:
    """Return the resource that `error` says is exhausted: memory "M", processes "P", or nothing."""
    no_process = isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN
    no_thread = isinstance(error, RuntimeError) and "can't start new thread" in error.args
    if isinstance(error, MemoryError):
        return b"M"
    return b"P" if no_process or no_thread else b""


def print_exception(error: BaseException) -> None:
    """Print the traceback without frames of the sandbox and of the environment's set-up."""

    def show() -> None:
        report = traceback.TracebackException.from_exception(error)
        _hide_frames(report)
        print("".join(report.format()), end="", file=sys.stderr)

    if not attempt(show):
        attempt(lambda: os.write(2, type(error).__name__.encode() + b"\n"))


def _hide_frames(report: traceback.TracebackException) -> None:
    report.stack = traceback.StackSummary.from_list(
        [line for line in report.stack if line.filename not in HIDDEN_FILES]
    )
    for other in (report.__cause__, report.__context__):
        if other is not None:
            _hide_frames(other)


def _finish(code: int) -> NoReturn:
    attempt(atexit._run_exitfuncs)
    for stream in (sys.stdout, sys.stderr):
        attempt(stream.flush)
    os._exit(code)


def attempt(action: Any) -> bool:
    """Run `action` and ignore every error: untrusted code may have replaced or closed anything."""
    try:
        action()
    except BaseException:
        return False
    return True
