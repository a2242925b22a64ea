"""Describes a target in a child process with a deadline: whatever the user's code does, the parent survives."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from forge_env.core.errors import UserError
from forge_env.registry.registry_file import Entry
from forge_env.utils.targets import split_target

IMPORT_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""The child ends itself at its deadline, with a stack trace. The parent kills it this much later."""
_CODE = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
    "from forge_env.cli.describe_target import main; main(request)"
)
_FRAME = re.compile(r'File "(.+)", line (\d+)')


def describe_in_child(
    entry: Entry, *, kind: str = "", seconds: float = IMPORT_SECONDS, to_register: bool = True
) -> dict[str, Any]:
    """Run `forge_env.cli.describe_target` on an entry's target in a child process, and return the description.

    Args:
        entry: target, options and folder; its name may be empty.
        kind: "env" or "tools" to require it, "" to detect it.
        seconds: deadline of the import.
        to_register: see `describe_target`.
    """
    request = {
        "target": entry.target,
        "name": entry.name,
        "kind": kind,
        "options": dict(entry.options),
        "folder": str(entry.folder or ""),
        "path": sys.path,
        "seconds": seconds,
        "to_register": to_register,
    }
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as trace:
        request |= {"result": result.fileno(), "trace": trace.fileno()}
        status, output = _run(request, (result.fileno(), trace.fileno()), seconds + GRACE_SECONDS)
        response = _read(result)
        if not response:
            raise UserError(_no_response(entry.target, status, _read(trace), seconds))
    description = json.loads(response)
    if "error" in description:
        raise UserError(description["error"])
    if output.strip():
        description["notes"] += [f"importing it prints text, beginning {output.strip().splitlines()[0][:80]!r}"]
    return description


def _run(request: Mapping[str, Any], files: tuple[int, ...], seconds: float) -> tuple[int | None, str]:
    """Run the child; returns its exit status, None if it was killed at the deadline, and its output."""
    child = subprocess.Popen(
        [sys.executable, "-c", _CODE, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=files,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        ended, output = _wait(child.pid, child.stdout, time.monotonic() + seconds)
    finally:
        # The child has not been reaped, so its process id still names its group: its children are killed with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()
        status = child.wait()
    return status if ended else None, output


def _wait(pid: int, output: IO[bytes], deadline: float) -> tuple[bool, str]:
    """Wait for a child to end, or the deadline; returns whether it ended, and the first 4096 bytes of its output."""
    kept = b""
    process = os.pidfd_open(pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                ready = {key.fileobj for key, _ in selector.select(left)}
                data = os.read(output.fileno(), 65536) if output in ready else b""
                kept += data[: max(0, 4096 - len(kept))]
                if process in ready:
                    return True, kept.decode(errors="replace")
                if not data:
                    selector.unregister(output)
    finally:
        os.close(process)
    return False, kept.decode(errors="replace")


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _no_response(target: str, status: int | None, trace: str, seconds: float) -> str:
    """Return why a child wrote no result. `trace` lists the innermost frame first."""
    frames = _FRAME.findall(trace)
    in_target = [frame for frame in frames if Path(frame[0]) == Path(split_target(target)[0])] or frames
    where = f" ({in_target[0][0]}, line {in_target[0][1]})" if in_target else ""
    if status is None or "Timeout" in trace:
        return f"importing {target!r} takes longer than {seconds:g} s{where}: do at import only what is quick"
    if status < 0:
        return f"importing {target!r} crashes Python with {signal.Signals(-status).name}{where}"
    return f"importing {target!r} ends the process with exit code {status}{where}"
