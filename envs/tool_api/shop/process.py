"""The process that serves the shop: `python -m envs.tool_api.shop.process FOLDER`, run under a guard by `server`.

It writes its port to standard output once it answers, and ends on SIGTERM.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn

from envs.tool_api.shop.service import make_app
from forge_env.serve.http_server import open_listener


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        print(sockets[0].getsockname()[1], flush=True)


def main(folder: Path) -> None:
    """Serve the sessions of a folder until told to stop."""
    config = uvicorn.Config(
        make_app(folder),
        access_log=False,
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=60,
    )
    with open_listener("127.0.0.1", 0) as listener:
        _Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
