"""What an image says of itself: the documents of the OCI image format, and Docker's, which have the same fields.

A document comes from outside: it is checked, and what is wrong with it is one sentence.
"""

from __future__ import annotations

import hashlib
import json
import platform
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError

from forge_env.core.errors import UserError

MAX_DOCUMENT = 4 * 2**20
"""Bytes of an index, a manifest or a config."""
DIGEST = r"^sha256:[0-9a-f]{64}$"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""The architecture of this machine, as images name it."""
_MAX_LAYERS, _NESTED = 1000, 3


class Platform(BaseModel):
    os: str = ""
    architecture: str = ""


class Descriptor(BaseModel):
    """Names a blob."""

    mediaType: str = ""
    digest: str = Field(pattern=DIGEST)
    size: int = Field(ge=0)
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class Manifest(BaseModel):
    config: Descriptor
    layers: list[Descriptor] = Field(max_length=_MAX_LAYERS)


class Index(BaseModel):
    manifests: list[Descriptor]


class _Run(BaseModel):
    Env: list[str] | None = None
    WorkingDir: str | None = None
    User: str | None = None
    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None


class _Files(BaseModel):
    diff_ids: list[str] = Field(max_length=_MAX_LAYERS)


class Config(BaseModel):
    """The config of an image: its digest is the id of the image."""

    architecture: str = ""
    os: str = ""
    config: _Run | None = None
    rootfs: _Files

    @property
    def run(self) -> _Run:
        return self.config or _Run()

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, _, value in (entry.partition("=") for entry in self.run.Env or ()) if name}

    @property
    def workdir(self) -> str:
        return posixpath.normpath(posixpath.join("/", self.run.WorkingDir or ""))


Document = TypeVar("Document", bound=BaseModel)


class Source(Protocol):
    """An image that is not unpacked yet."""

    what: str
    """Names it in messages."""
    names: Sequence[str]
    """Names that it has there, as "debian:12"; may be empty."""
    config: bytes
    layers: Sequence[Descriptor]
    """From the bottom up, one for each of the config's diff_ids."""

    def blob(self, layer: Descriptor) -> Iterator[bytes]:
        """Yield the content of a layer, perhaps compressed. Raises UserError if it is not there or broken."""
        ...


def parse(kind: type[Document], data: bytes, what: str) -> Document:
    """Return a checked document. Raises UserError with the first thing that is wrong."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise UserError(f"{what} is no sound {kind.__name__.lower()}: {place}: {first['msg']}") from None


def find_manifest(document: bytes, fetch: Callable[[Descriptor], bytes], what: str) -> Manifest:
    """Return the manifest for this machine that a document is, or that an index of indices leads to.

    Args: fetch: returns a further document.
    """
    for _ in range(_NESTED):
        if "manifests" not in keys_of(document):
            break
        document = fetch(for_this_machine(parse(Index, document, f"the index of {what}").manifests, what))
    return parse(Manifest, document, f"the manifest of {what}")


def check_digest(data: bytes, digest: str, what: str) -> bytes:
    """Return the data. Raises UserError if it has another digest."""
    return b"".join(verify((data,), digest, what))


def verify(blocks: Iterator[bytes] | Sequence[bytes], digest: str, what: str) -> Iterator[bytes]:
    """Yield the blocks. Raises UserError in the end if they have another digest."""
    content = hashlib.sha256()
    for block in blocks:
        content.update(block)
        yield block
    result = f"sha256:{content.hexdigest()}"
    if result != digest:
        raise UserError(f"{what} is broken: its content has the digest {result}, not {digest}; get it again")


def for_this_machine(manifests: Sequence[Descriptor], what: str) -> Descriptor:
    """Return the manifest of an index that is for this machine."""
    for manifest in manifests:
        if manifest.platform is None and len(manifests) == 1:
            return manifest
        if manifest.platform and (manifest.platform.os, manifest.platform.architecture) == ("linux", MACHINE):
            return manifest
    others = sorted(
        {f"{item.platform.os}/{item.platform.architecture}" for item in manifests if item.platform}
        - {"unknown/unknown"}  # documents beside the images: signatures, lists of parts
    )
    raise UserError(f"{what} is for {', '.join(others) or 'no machine'}, but this machine is linux/{MACHINE}")


def check_platform(config: Config, what: str) -> None:
    """Raises UserError if an image is for another machine."""
    system, machine = config.os or "linux", config.architecture or MACHINE
    if (system, machine) != ("linux", MACHINE):
        raise UserError(f"{what} is for {system}/{machine}, but this machine is linux/{MACHINE}")


def keys_of(document: bytes) -> frozenset[str]:
    """The fields of a document, which tell its kind; none if it is not a JSON object."""
    try:
        content = json.loads(document)
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(content) if isinstance(content, dict) else frozenset()
