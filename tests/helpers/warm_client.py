"""The process that a warm program is to its caller: `python -I -S warm_client.py ADDRESS ARGUMENTS`.

It gives the server its standard streams, folder and environment, hands signals on, and ends as the fork ends.
"""

import json
import os
import signal
import socket
import sys

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    server = socket.socket(socket.AF_UNIX)
    server.connect(sys.argv[1])
    work = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environ": dict(os.environ)}
    data = json.dumps(work).encode() + b"\n"
    sent = socket.send_fds(server, [data], [0, 1, 2])
    server.sendall(data[sent:])
    with server.makefile() as answers:
        pid = int(answers.readline())
        for number in HANDED_ON:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        status = int(answers.readline())
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
