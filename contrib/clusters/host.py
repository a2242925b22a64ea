"""The program that makes a machine a host of runs. Start it on each machine, and name them in `launcher.workers`.

    python -m contrib.clusters.host [--address ADDRESS] [--port 22222]

It waits for a run, starts the processes that the run asks for, and then waits for the next run. Ctrl-C or SIGTERM ends
it with everything that it started. Everybody who reaches its port can run code here: Monarch asks for no password.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from forge_env.core.errors import UserError
from forge_env.runtime import remove_monarch_log
from forge_env.runtime.host_settings import PORT


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m contrib.clusters.host", description="Wait for runs.")
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    parser.add_argument("--address", default=name, help="how the other machines call this one")
    parser.add_argument("--port", type=int, default=PORT)
    options = parser.parse_args(arguments)
    try:
        note = _check(options.address, options.port)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from monarch.actor import start_worker_loop_forever

    start_worker_loop_forever(address=f"tcp://{options.address}:{options.port}", ca="trust_all_connections")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    print(f"waiting for runs at {options.address}:{options.port}{note}", flush=True)
    while True:
        time.sleep(0.5)  # without end it would lose a signal that comes just before it


def _check(address: str, port: int) -> str:
    """A note for a person about the address, or ""."""
    try:
        ip = socket.gethostbyname(address)
        socket.create_server((ip, port)).close()
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
        reason = os.strerror(number) if number else str(error)
        raise UserError(
            f"cannot listen at {address}:{port} ({reason}): give an address of this machine and a free port, "
            "--address ADDRESS --port PORT"
        ) from None
    return "; only this machine reaches that: --address ADDRESS names another" if ip.startswith("127.") else ""


def _end(number: int, frame: object) -> None:
    # Monarch's threads cannot be awaited; the processes of a run notice the end of their host.
    remove_monarch_log()
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
