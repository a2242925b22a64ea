"""The process that serves the shop: `python -m contrib.apis.shop.process FOLDER`, run under a guard by `server`.

It writes its port to standard output once it answers, and ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from contrib.apis.shop.service import make_app
from contrib.common.http_server import open_server
from forge_env.utils.run_async import run_async


async def serve(folder: Path) -> None:
    async with open_server(make_app(folder), "127.0.0.1", ws="none") as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()  # a fifth more requests per second
    run_async(serve(Path(sys.argv[1])))
