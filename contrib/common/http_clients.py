"""What the clients of HTTP share: certificates, proxies of the environment, waits between two tries, and texts."""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from forge_env.core.errors import UserError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_DURATION = re.compile(rf"({_NUMBER}) ?(ms|[smhd])(?:ec(?:ond)?s?|in(?:ute)?s?|ours?|ays?)?")  # 6m0s, 12ms, 5 seconds
_RESET = re.compile(r"(x-|anthropic-)?rate-?limit-(reset(-[\w-]+)?|[\w-]+-reset)")
_LIMIT = re.compile(r"[^,]*\blimit=.*|[^,]+")  # the older form has commas within a limit
_LEFT = re.compile(r"\b(r|t|remaining|reset)=([^;,\s]+)")
_EPOCH, _EPOCH_MS = 1e9, 1e11
"""A number above these is a time since 1970, in seconds or milliseconds."""


@cache
def ssl_context() -> ssl.SSLContext:
    """Read the certificates once in a process: that takes up to a tenth of a second, for a client of plain HTTP too."""
    import httpx  # which takes a tenth of a second too

    return httpx.create_ssl_context()


def connection(url: str) -> dict[str, Any]:
    return {"verify": ssl_context(), "trust_env": False, "proxy": proxy_of(url)}


# ---- proxies ----


def is_here(host: str) -> bool:
    """Whether a host is this machine, which is asked without a proxy."""
    host = host.lower().strip("[]").rstrip(".")
    own = socket.gethostname().lower()
    if host in ("localhost", own, own.partition(".")[0]) or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for a URL; None for none, and for a URL of this machine.

    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY count in both cases. A client gets the proxy as `proxy=`, with
    `trust_env=False`.
    """
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    host = parts.hostname or ""
    if is_here(host):
        return None
    proxies = getproxies_environment()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or _is_direct(host, parts.port or (443 if scheme == "https" else 80)):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    variable = f"the environment variable {(scheme if proxies.get(scheme) else 'all').upper()}_PROXY"
    try:
        address = urlsplit(proxy)
        is_address = address.scheme in ("http", "https", "socks5", "socks5h") and address.hostname and address.port != 0
    except ValueError:
        is_address = False
    if not is_address:  # not shown: it may hold a password
        raise UserError(
            f"{variable} holds no address of a proxy: set it to http://HOST:PORT, or name {host} in NO_PROXY"
        )
    if address.scheme.startswith("socks") and find_spec("socksio") is None:
        raise UserError(
            f"{variable} names a SOCKS proxy, which needs socksio: pip install socksio, or set an HTTP proxy"
        )
    return proxy


def no_proxy(*hosts: str) -> dict[str, str]:
    """NO_PROXY for a program that is started here: what this process has, this machine, and further hosts."""
    here = ("127.0.0.1", "localhost", "::1", socket.gethostname())
    text = ",".join(dict.fromkeys(filter(None, (*_direct_hosts(), *here, *hosts))))
    return {"NO_PROXY": text, "no_proxy": text}


def _direct_hosts() -> list[str]:
    """The entries of NO_PROXY, in both cases."""
    return f"{os.environ.get('no_proxy', '')},{os.environ.get('NO_PROXY', '')}".replace(",", " ").split()


def _is_direct(host: str, port: int) -> bool:
    """Whether NO_PROXY names a host: as *, as a name with its subdomains, as an address or in a network."""
    entries = _direct_hosts()
    for entry in entries:
        with contextlib.suppress(ValueError):
            if ip_address(host) in ip_network(entry.strip("[]"), strict=False):
                return True
    names = ",".join(entry.removeprefix("*") for entry in entries)
    return "*" in entries or bool(proxy_bypass_environment(f"{host}:{port}", {"no": names}))


# ---- waits ----


@dataclass(slots=True)
class Retries:
    """When a request that has failed is sent again. Its caller knows which failures allow that."""

    first: float
    """Pause before the second try, in seconds; doubled for each further one, with jitter."""
    longest: float
    """Bound of these pauses."""
    most: float = math.inf
    """Tries after the first one."""
    until: float = math.inf
    """The time of `monotonic` by which the last try begins."""
    failures: int = 0

    def pause(self, minimum: float = 0.0) -> float | None:
        """Note a failure; return the seconds until the next try, or None for none. A server asks for `minimum`."""
        self.failures += 1
        backoff = min(self.longest, self.first * 2 ** min(self.failures - 1, 30)) * random.uniform(0.5, 1.0)
        pause = max(minimum, backoff)
        return None if self.failures > self.most or monotonic() + pause > self.until else pause


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait, at least 0; 0 if it names no time that can be read.

    `retry-after-ms` (Azure: `x-ms-`) counts before `Retry-After`, a number of seconds or a date (RFC 9110). Else it is
    the latest reset among the limits that are used up: `x-ratelimit-reset-*` (OpenAI, Azure, Groq, OpenRouter),
    `anthropic-ratelimit-*-reset`, and `RateLimit` in the forms of IETF's drafts, `"day";r=0;t=30` and
    `limit=9, remaining=0, reset=30`.
    """
    fields = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = fields.get(name, "")
        # A proxy may add a header of its own, and the client joins both with a comma, which a date has too.
        times = (_seconds(part.strip(), unit) for part in (text, *text.split(",")))
        if seconds := [time_ for time_ in times if time_ is not None]:
            return max(seconds)
    resets = [
        _seconds(value) or 0.0
        for name, value in fields.items()
        if _RESET.fullmatch(name) and (_seconds(fields.get(name.replace("reset", "remaining"), "")) or 0.0) < 1
    ]
    for limit in _LIMIT.findall(re.sub(r'"[^"]*"', "", fields.get("ratelimit", ""))):
        values = {name: _seconds(value) or 0.0 for name, value in _LEFT.findall(limit)}
        if values.get("r", values.get("remaining", 0.0)) < 1:
            resets.append(values.get("t", values.get("reset", 0.0)))
    return max(resets, default=0.0)


def _seconds(text: str, unit: float = 1.0) -> float | None:
    """The seconds of a number of units, a duration such as 6m0s, or a date; None for another text."""
    if re.fullmatch(_NUMBER, text):
        number = float(text)
        if number < _EPOCH:
            return number * unit
        return max(0.0, number / (1000 if number >= _EPOCH_MS else 1) - time())
    if re.fullmatch(rf"(?:{_DURATION.pattern})+", text):
        return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        with contextlib.suppress(ValueError, TypeError, IndexError, OverflowError):
            date = read(text)
            return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time())
    return None
