"""Caches of packages that the user names, and what tells the programs of a workspace to ask them.

| kind | its URL is | who asks it |
|---|---|---|
| pypi | an index of packages, as for `pip --index-url` | pip and uv, by their variables |
| npm | a registry, as for `npm --registry` | npm, by its variable |
| apt | a caching proxy of HTTP | everything that is plain HTTP, as the packages of Debian and Ubuntu are |
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from forge_env.core.errors import UserError

APT = "apt"
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "pypi": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "npm": ("NPM_CONFIG_REGISTRY", "npm_config_registry"),
    APT: (),
}


def read_mirrors(text: str) -> tuple[tuple[str, str], ...]:
    """Read "KIND=URL,KIND=URL".

    >>> read_mirrors("apt=http://cache:3142")
    (('apt', 'http://cache:3142'),)
    """
    mirrors = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        kind, _, url = entry.partition("=")
        if kind not in _VARIABLES or not _is_plain(url) or (kind == APT and not url.startswith("http://")):
            shown = f"{kind}=..." if "@" in url else entry
            raise UserError(
                f"mirrors has {shown!r}; an entry is pypi=URL or npm=URL, of an index, or apt=http://HOST:PORT, of a "
                "caching proxy; the URL has no password, since every program of the workspace reads it"
            )
        mirrors[kind] = url
    return tuple(mirrors.items())


def address_of(url: str) -> tuple[str, int]:
    """Return host and port."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def mirror_variables(mirrors: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return the environment of programs."""
    variables = {name: url for kind, url in mirrors for name in _VARIABLES[kind]}
    if any(kind == "pypi" and url.startswith("http://") for kind, url in mirrors):
        variables["PIP_TRUSTED_HOST"] = urlsplit(dict(mirrors)["pypi"]).netloc
    return variables


def _is_plain(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_name = bool(parts.hostname) and ":" not in (parts.hostname or "")
        return parts.scheme in ("http", "https") and is_name and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
