"""Serves the cells of one session inside the session's process. Standard library only; imported by `guest.py`.

Host to guest: one JSON message with descriptors per request. Guest to host: one `_ANSWER` per request. Untrusted code
shares this interpreter and may change anything here, so the host takes no verdict from an answer.
"""

from __future__ import annotations

import ast
import errno
import json
import linecache
import math
import os
import resource
import socket
import struct
import sys
import time
from typing import Any, NoReturn

import guest_files as files  # type: ignore[import-not-found]
import guest_snippet as snippet  # type: ignore[import-not-found]

_ANSWER = struct.Struct("<IBcdq")
"""Number of the request, exit code or errno, what ran out ("M", "P" or a zero byte), CPU seconds, peak memory bytes."""
_MAX_MESSAGE, _MAX_FDS = 64 * 2**10, 2
_MAX_SOURCES = 256
_SELF, _CHILDREN = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN


def serve() -> NoReturn:
    """Run the set-up in BODY_FD, then requests one by one until the host closes its end."""
    try:
        request, namespace = snippet.begin()
        Server(namespace, echo=request["echo"]).serve()
    except BaseException as error:  # for example, untrusted code has used up memory or descriptors
        snippet.print_exception(error)
    os._exit(1)


class Server:
    def __init__(self, namespace: dict[str, Any], *, echo: bool) -> None:
        self._namespace = namespace
        self._echo = echo
        self._control = socket.socket(fileno=snippet.REPORT_FD)
        self._owner = os.getpid()
        self._cells = 0
        snippet.HIDDEN_FILES.add(__file__)

    def serve(self) -> NoReturn:
        while True:
            data, fds, flags, _ = socket.recv_fds(self._control, _MAX_MESSAGE, _MAX_FDS)
            if not data:
                os._exit(0)
            message = json.loads(data)
            cpu_s = _cpu_s()
            code, resource_code = self._answer(message, fds, flags)
            if os.getpid() != self._owner:
                os._exit(code)  # a process forked by the cell: only the original process answers
            peak = resource.getrusage(_SELF).ru_maxrss * 1024
            os.write(snippet.REPORT_FD, _ANSWER.pack(message["number"], code, resource_code, _cpu_s() - cpu_s, peak))

    def _answer(self, message: dict[str, Any], fds: list[int], flags: int) -> tuple[int, bytes]:
        if message["do"] == "run":
            return self._run(message, fds, flags)
        try:
            _require_all(fds, flags)
            if message["do"] == "put":
                files.put(message["path"], fds[0])
            else:
                files.get(message["path"], fds[0], message["max_bytes"])
        except OSError as error:
            return (error.errno or errno.EIO) & 0xFF, b"\0"
        finally:
            _close(fds)
        return 0, b"\0"

    def _run(self, message: dict[str, Any], fds: list[int], flags: int) -> tuple[int, bytes]:
        """Return the exit code of the cell as if it were a script, and the exhausted resource."""
        name = self._next_name()
        resource_code = b"\0"
        try:
            _require_all(fds, flags)
            code = _read(fds[0]).decode("utf-8", "surrogatepass")
            _set_stdin(fds[1:])
            _allow_cpu(message["cpu_s"])
            snippet.show_source(name, code)
            self._execute(code, name)
            exit_code = 0
        except SystemExit as end:
            exit_code = snippet.exit_code(end)
        except BaseException as error:
            resource_code = snippet.exhausted_resource(error) or resource_code
            snippet.print_exception(error)
            exit_code = 1
        for stream in (sys.stdout, sys.stderr):
            snippet.attempt(stream.flush)
        return exit_code, resource_code

    def _next_name(self) -> str:
        self._cells += 1
        linecache.cache.pop(f"<cell {self._cells - _MAX_SOURCES}>", None)
        return f"<cell {self._cells}>"

    def _execute(self, code: str, name: str) -> None:
        if not self._echo:
            exec(compile(code, name, "exec"), self._namespace)
            return
        tree: Any = compile(code, name, "exec", ast.PyCF_ONLY_AST)
        last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
        exec(compile(tree, name, "exec"), self._namespace)
        exec(compile(ast.Interactive(last), name, "single"), self._namespace)


def _require_all(fds: list[int], flags: int) -> None:
    """Raise OSError if descriptors of a message are missing: the kernel drops what has no number here."""
    if flags & socket.MSG_CTRUNC:
        _close(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _set_stdin(fds: list[int]) -> None:
    fd = fds[0] if fds else os.open("/dev/null", os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115


def _allow_cpu(cpu_s: int) -> None:
    """Raise the soft CPU limit for a cell: the kernel counts from the start of the process."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(time.process_time() + cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _cpu_s() -> float:
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (_SELF, _CHILDREN)))
