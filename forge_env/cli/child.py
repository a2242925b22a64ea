"""The child process that imports what a user has written, with a deadline: whatever that does, the parent lives."""

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
"""The child ends itself at its deadline, saying where it is. It is killed this much later; its own start is in that."""
_CODE = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
    "from forge_env.cli.examine import main; main(request)"
)
_FRAME = re.compile(r'File "(.+)", line (\d+)')


def examine_in_child(entry: Entry, *, kind: str = "", seconds: float = IMPORT_SECONDS) -> dict[str, Any]:
    """Import what an entry stands for in a child process, and return what `forge_env.cli.examine.examine` says of it.

    Args:
        entry: its target, options and folder; its name may be empty.
        kind: "env" or "tools" to insist on it, "" to find out.
        seconds: after which the import is given up.

    Raises:
        UserError: when the import fails, hangs or ends the process, or what is imported is neither an environment nor
            tools.
    """
    request = {
        "target": entry.target,
        "name": entry.name,
        "kind": kind,
        "options": dict(entry.options),
        "folder": str(entry.folder or ""),
        "path": sys.path,
        "seconds": seconds,
    }
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as trace:
        request |= {"result": result.fileno(), "trace": trace.fileno()}
        status, printed = _run(request, (result.fileno(), trace.fileno()), seconds + GRACE_SECONDS)
        said = _read(result)
        if not said:
            raise UserError(_died(entry.target, status, _read(trace), seconds))
    answer = json.loads(said)
    if "error" in answer:
        raise UserError(answer["error"])
    if printed.strip():
        answer["notes"] = [f"importing it prints text, beginning {printed.strip().splitlines()[0][:80]!r}"]
    return answer


def _run(request: Mapping[str, Any], files: tuple[int, ...], seconds: float) -> tuple[int | None, str]:
    """Run the child to its end; returns its exit status (None: killed at the deadline) and what it printed."""
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
        ended, printed = _wait(child.pid, child.stdout, time.monotonic() + seconds)
    finally:
        # The child has not been waited for yet, so its number still is its group's: what it has started goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()
        status = child.wait()
    return status if ended else None, printed


def _wait(pid: int, output: IO[bytes], deadline: float) -> tuple[bool, str]:
    """Wait until a child ends, or the deadline; keeps the beginning of what it prints and throws the rest away."""
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


def _died(target: str, status: int | None, trace: str, seconds: float) -> str:
    """Say why a child left no answer. Its trace lists the innermost frame first."""
    frames = _FRAME.findall(trace)
    own = [frame for frame in frames if Path(frame[0]) == Path(split_target(target)[0])] or frames
    where = f" ({own[0][0]}, line {own[0][1]})" if own else ""
    if status is None or "Timeout" in trace:
        return f"importing {target!r} takes longer than {seconds:g} s{where}: do at import only what is quick"
    if status < 0:
        return f"importing {target!r} crashes Python with {signal.Signals(-status).name}{where}"
    return f"importing {target!r} ends the process with exit code {status}{where}"
