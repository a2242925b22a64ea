"""Where a served gateway listens, and the token that its agents need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from contrib.external.gateway import Gateway
from contrib.external.served.app import ServedApp
from contrib.external.served.desk import Desk
from contrib.external.told import RULES, Rule
from forge_env.core.errors import UserError
from forge_env.utils.http_server import open_server
from forge_env.utils.server_settings import TOKEN_VARIABLE, ServeSettings, read_token


def address_of(listen: str) -> tuple[str, int]:
    """Split HOST:PORT."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(
            f"listen is {listen!r}; it is HOST:PORT, such as 127.0.0.1:8000, or 0.0.0.0:8000 for all addresses of this "
            "machine"
        )
    return host, int(port)


def token_of(token_file: str) -> str:
    """Return the token that agents need, from a file or from the environment."""
    token, is_new = read_token(file=Path(token_file) if token_file else None)
    if is_new:
        raise UserError(
            f"agents elsewhere need a token: set the variable {TOKEN_VARIABLE}, or the option token_file, to a text "
            "that nobody guesses; `openssl rand -hex 32` makes one"
        )
    return token


@asynccontextmanager
async def open_desk(
    desk: Desk, listen: str, max_request_bytes: int, rules: Sequence[Rule] = RULES
) -> AsyncIterator[Gateway]:
    """Serve a desk and its gateway at HOST:PORT."""
    host, port = address_of(listen)
    settings = ServeSettings(token=desk.token, host=host, port=port, max_request_bytes=max_request_bytes)
    gateway = Gateway(max_request_bytes=max_request_bytes, rules=rules)
    async with open_server(ServedApp(desk, gateway), settings.host, settings.port) as server:
        gateway.base_url = f"{server.url}/v1"
        try:
            yield gateway
        finally:
            desk.stop()
