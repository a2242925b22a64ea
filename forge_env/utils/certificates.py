"""The certificates of this machine, for clients of HTTP."""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def ssl_context() -> ssl.SSLContext:
    """Read the certificates once in a process: that takes up to a tenth of a second, for a client of plain HTTP too."""
    return httpx.create_ssl_context()
