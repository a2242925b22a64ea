"""Runs a container that must not outlive its owner: `python -I -S keeper.py SECONDS NAME DOCKER RUN...`.

The container NAME is removed when standard input ends, as it does when the owner dies, on SIGTERM, after SECONDS, and
when the command ends by itself. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

_POLL_SECONDS = 0.25
_REMOVE_SECONDS = 60.0


def main(seconds: float, name: str, command: list[str]) -> int:
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda signal_number, frame: signals.append(signal_number))
    deadline = time.monotonic() + seconds
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        while child.poll() is None and not signals and time.monotonic() < deadline:
            readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
            if readable and not os.read(0, 4096):
                break
    finally:
        remove = [command[0], "rm", "--force", "--volumes", name]
        subprocess.run(remove, capture_output=True, timeout=_REMOVE_SECONDS, check=False)
        if child.poll() is None:
            child.kill()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
