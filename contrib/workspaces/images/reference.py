"""Names of images in registries: "debian:12", "ghcr.io/owner/name@sha256:...", "127.0.0.1:5000/name"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forge_env.core.errors import UserError

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    r"(?:(?P<host>(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:\d)|\[[0-9a-fA-F:]+\])(?::\d{1,5})?)/)?"
    rf"(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_HUB, _HUB_NAMES, _HUB_HOST = "docker.io", ("docker.io", "index.docker.io"), "registry-1.docker.io"
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")
_LONGEST = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image in a registry."""

    registry: str
    """As the name has it: "docker.io", "ghcr.io", "127.0.0.1:5000"."""
    repository: str
    tag: str = ""
    digest: str = ""
    """Of the manifest, or of an index of manifests; goes before the tag."""

    @property
    def host(self) -> str:
        return _HUB_HOST if self.registry == _HUB else self.registry

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine: it is spoken to by plain HTTP."""
        return _LOOPBACK.fullmatch(self.registry) is not None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}{'@' if self.digest else ''}{self.digest}"


def parse_reference(name: str) -> Reference:
    """Return what a name means; as with Docker, a name without a registry is one of docker.io.

    >>> str(parse_reference("debian"))
    'docker.io/library/debian:latest'
    """
    match = _NAME.fullmatch(name) if len(name) <= _LONGEST else None
    if match is None:
        raise UserError(
            f"{name[:_LONGEST]!r} is no name of an image: write [REGISTRY/]REPOSITORY[:TAG][@sha256:DIGEST] in small "
            "letters, for example debian:12 or ghcr.io/owner/name:1"
        )
    registry, repository, digest = match["host"] or _HUB, match["repository"], match["digest"] or ""
    if registry in _HUB_NAMES:
        registry, repository = _HUB, repository if "/" in repository else f"library/{repository}"
    tag = match["tag"] or ("" if digest else "latest")
    return Reference(registry=registry, repository=repository, tag=tag, digest=digest)


def full_name(name: str) -> str:
    """Return the whole name of an image, or the name itself if it is none of a registry."""
    try:
        return str(parse_reference(name))
    except UserError:
        return name


def short_name(name: str) -> str:
    """Return a name as people write it: without what is meant if it is left out."""
    return name.removeprefix("docker.io/").removeprefix("library/")
