"""Python programs that start at once: forks of a server that has imported what most of them import.

`WarmPython` has the server. Its `command` stands for the interpreter: it takes `-c CODE`, `-m MODULE` or a file, with
arguments, and is one process with its own standard streams, folder, environment and exit code, which hands signals on.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMES = """
torch openai rich.console rich.table rich.progress jinja2 packaging.version
forge_env.cli.main forge_env.rollout.rollout forge_env.evaluation.api envs.math envs.code_exec sandboxes.host.namespace
agents.scripted agents.renderer.rendering
"""
"""What the server imports: nothing that keeps something of its own process, as forge_env.runtime does."""


class WarmPython:
    """The server of a test session, in a folder of its own.

    Where the system has no descriptors of processes, `command` is the plain interpreter.
    """

    def __init__(self, folder: Path) -> None:
        self.command = [sys.executable]
        self._server: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "pidfd_open"):
            return
        address = folder / "warm"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen(64)
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.helpers.warm_python", str(listener.fileno())]
        self._server = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], start_new_session=True
        )
        listener.close()
        program = folder / "warm_python"
        client = [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm_client.py")), str(address)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        program.chmod(0o755)
        self.command = [str(program)]

    def close(self) -> None:
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.close()
            self._server.wait(60)


def serve(listener: socket.socket) -> tuple[list[str], list[str]]:
    """Fork for every client until stdin ends. Returns in each fork, with the arguments and the path of its modules."""
    running: dict[Any, tuple[int, int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    os._exit(0)
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    data, streams, _, _ = socket.recv_fds(client, 2**20, 3)
                    while not data.endswith(b"\n") and (more := client.recv(2**20)):
                        data += more
                    if not data.endswith(b"\n"):  # the client was killed
                        client.close()
                        continue
                    if not (pid := os.fork()):
                        for _, process, other in running.values():
                            os.close(process)
                            other.close()
                        client.close()
                        return _become(json.loads(data), streams)
                    for stream in streams:
                        os.close(stream)
                    with suppress(OSError):
                        client.sendall(f"{pid}\n".encode())
                    process = os.pidfd_open(pid)
                    running[process] = pid, process, client
                    selector.register(process, selectors.EVENT_READ)
                    selector.register(client, selectors.EVENT_READ, process)
                elif key.fileobj in running:
                    pid, process, client = running.pop(key.fileobj)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if client.fileno() in selector.get_map():
                        selector.unregister(client)
                    with suppress(OSError):  # the client was killed
                        client.sendall(f"{status}\n".encode())
                    client.close()
                    selector.unregister(process)
                    os.close(process)
                else:  # a client was killed: so is its fork
                    selector.unregister(key.fileobj)
                    os.kill(running[key.data][0], signal.SIGKILL)


def _become(work: dict[str, Any], streams: list[int]) -> tuple[list[str], list[str]]:
    """Take over the streams, the folder and the environment of a client."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(work["folder"])
    os.environ.clear()
    os.environ.update(work["environ"])
    mine = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return work["arguments"], [*mine, *(entry for entry in sys.path if entry != str(ROOT))]


def execute(arguments: list[str], path: list[str]) -> int:
    """Do what `python ARGUMENTS` does; returns the exit code."""
    kind, *rest = arguments
    main = type(sys)("__main__")
    try:
        if kind == "-c":
            sys.argv, sys.path[:] = ["-c", *rest[1:]], ["", *path]
            sys.modules["__main__"] = main
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        elif kind == "-m":
            sys.argv, sys.path[:] = ["-m", *rest[1:]], [os.getcwd(), *path]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[:] = arguments, [str(Path(kind).resolve().parent), *path]
            sys.modules["__main__"] = main
            main.__dict__.update(__file__=kind, __builtins__=__builtins__)
            exec(compile(Path(kind).read_bytes(), kind, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    ended = [1]

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(ended[0])

    atexit.register(leave)  # what is registered first runs last: to free all that is imported takes a tenth of a second
    for name in NAMES.split():
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the forks' own collections leave it out
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        arguments, path = serve(listener)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # a program may have a package of this name
    ended[0] = execute(arguments, path)


if __name__ == "__main__":
    main()
