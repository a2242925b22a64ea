"""Where a server listens, who may use it, and its bounds."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from contrib.common.http_server import MAX_REQUEST_BYTES
from forge_env.core.errors import UserError

TOKEN_VARIABLE = "FORGE_ENV_TOKEN"
"""Environment variable with the token, of a server and of its clients."""
MIN_TOKEN = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # what a bearer token may hold, RFC 6750


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    token: str
    """Every request needs it, as ``Authorization: Bearer TOKEN``."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 is any free port."""
    max_sessions: int = 1024
    """Open sessions; a further one is refused until one ends."""
    idle_seconds: float = 3600.0
    """A session without a request for so long is ended. An agent may think for half an hour between two steps."""
    max_request_bytes: int = MAX_REQUEST_BYTES

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"--port {self.port} is no port: give one from 1 to 65535, or 0 for any free port")
        if self.max_sessions < 1 or self.max_request_bytes < 1024 or not self.idle_seconds > 0:
            raise UserError(
                f"--max-sessions {self.max_sessions}, --max-request-bytes {self.max_request_bytes} and --idle-seconds "
                f"{self.idle_seconds:g} are at least 1, at least 1024 and above 0"
            )

    @property
    def is_local(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_token(token: str = "", file: Path | None = None) -> tuple[str, bool]:
    """Return the token of a server, and whether it was made here: nothing gave one.

    Args:
        token: as given on the command line.
        file: that holds it; without both, the environment variable FORGE_ENV_TOKEN is read.
    """
    if token and file is not None:
        raise UserError("--token and --token-file are both given: one of them holds the token")
    if file is not None:
        try:
            text, source = file.expanduser().read_text(encoding="utf-8").strip(), f"the file {file}"
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--token-file {file} cannot be read: {getattr(error, 'strerror', error)}") from None
    else:
        text, source = token or os.environ.get(TOKEN_VARIABLE, "").strip(), "--token" if token else TOKEN_VARIABLE
        if not text:
            return secrets.token_urlsafe(32), True
    if len(text) < MIN_TOKEN or not _TOKEN.fullmatch(text):
        raise UserError(
            f"the token of {source} is not of {MIN_TOKEN} or more letters, digits and -._~+/= (it is not shown): leave "
            "it out, and one is made"
        )
    return text, False
