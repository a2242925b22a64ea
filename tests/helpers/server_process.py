"""An ASGI app in a process of its own, for tests that kill a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import socket, uvicorn
{imports}
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config({app}, log_level="critical")).run(sockets=[listener])
"""


@contextmanager
def server_process(imports: str, app: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve the app that an expression names; gives the process and its base URL, and kills it at the end."""
    command = [sys.executable, "-c", CODE.format(imports=imports, app=app)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
