"""Runs the shop for the episodes of one process: starts the service, opens a session for each, reads their state.

The service is a separate process: a thread would share the interpreter lock with the event loop that runs the
episodes. Beside a busy event loop a thread answered less than 100 requests/s, and a process 1,300, as many as beside an
idle one. Sessions are files in a private folder: the host opens, reads and removes them without the service, and the
service has no operation that could give a model the session of another episode.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import sqlite3
import sys
from contextlib import closing

from contrib.apis.shop.content import Shop
from contrib.apis.shop.database import State, open_database, read_state, session_path, write_database
from contrib.apis.shop.session_folder import SessionFolder
from contrib.common.guard import guarded
from contrib.common.programs import stop
from forge_env.core.errors import ServiceError, UserError
from forge_env.utils.exits import how_it_ended

_START_SECONDS, _STOP_SECONDS = 60.0, 5.0


class ShopServer:
    """One service for any number of sessions."""

    base_url: str
    """URL of the service, such as http://127.0.0.1:40123; its OpenAPI document is at /openapi.json."""

    async def __aenter__(self) -> ShopServer:
        for package in ("fastapi", "uvicorn"):
            if importlib.util.find_spec(package) is None:
                raise UserError(f"the shop needs {package}: pip install 'forge-env[tools]'")
        self._folder = SessionFolder()
        try:
            self._process = await self._spawn()
            try:
                self.base_url = f"http://127.0.0.1:{await self._port()}"
            except BaseException:
                await stop(self._process, _STOP_SECONDS)
                raise
        except BaseException:
            self._folder.remove()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await stop(self._process, _STOP_SECONDS)
        finally:
            self._folder.remove()

    def open(self, shop: Shop) -> str:
        """Start a session with the content of a shop; returns its token, which goes into the Authorization header."""
        if self._process.returncode is not None:
            raise ServiceError(f"the shop's process {how_it_ended(self._process.returncode)}")
        token = secrets.token_urlsafe(32)
        write_database(shop, session_path(self._folder.path, token))
        return token

    def state(self, token: str) -> State:
        try:
            with closing(open_database(session_path(self._folder.path, token))) as db:
                return read_state(db)
        except sqlite3.Error as error:
            raise ServiceError(f"the state of a shop cannot be read: {error}") from error

    def close(self, token: str) -> None:
        """End a session; its token is invalid afterwards. May be called again."""
        session_path(self._folder.path, token).unlink(missing_ok=True)

    async def _spawn(self) -> asyncio.subprocess.Process:
        # The child gets the import path of this process. In a session of its own, Ctrl-C does not stop it first.
        path, folder = os.pathsep.join(entry or os.getcwd() for entry in sys.path), str(self._folder.path)
        return await asyncio.create_subprocess_exec(
            *guarded([sys.executable, "-m", "contrib.apis.shop.process", folder], folder=folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[self._folder.descriptor],
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    async def _port(self) -> int:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise ServiceError(f"the shop did not start within {_START_SECONDS:g} s") from None
        if not line:
            raise ServiceError(f"the shop's process {how_it_ended(await self._process.wait())} at its start")
        return int(line)
