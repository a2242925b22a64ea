"""The process that serves the shop: `python -m envs.tool_api.shop.process FOLDER OWNER`.

`server.ShopServer` starts it. It writes its port to standard output once it answers. It ends on SIGTERM, and by itself
when its owner is dead, which it sees by its parent having changed; unlike a pipe or a death signal, that works
whichever thread of the owner started it and whatever else the owner forked. It removes the folder then.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from pathlib import Path

import uvicorn

from envs.tool_api.shop.service import make_app

_WATCH_SECONDS = 0.25


class _Server(uvicorn.Server):
    owner = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        print(sockets[0].getsockname()[1], flush=True)
        self._watch = asyncio.create_task(self._end_with_owner())

    async def _end_with_owner(self) -> None:
        while os.getppid() == self.owner:
            await asyncio.sleep(_WATCH_SECONDS)
        self.should_exit = True


def main(folder: Path, owner: int) -> None:
    """Serve the sessions of a folder until told to stop, or until the owner is dead."""
    config = uvicorn.Config(
        make_app(folder),
        access_log=False,
        log_level="warning",
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=60,
    )
    server = _Server(config)
    server.owner = owner
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
            server.run(sockets=[listener])
    finally:
        if os.getppid() != owner:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
