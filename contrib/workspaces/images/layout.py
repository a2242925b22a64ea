"""Images on disk: folders in the OCI layout, and archives of `docker save`."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from contrib.workspaces.images.manifest import (
    MAX_DOCUMENT,
    Config,
    Descriptor,
    Index,
    check_digest,
    find_manifest,
    for_this_machine,
    parse,
    verify,
)
from forge_env.core.errors import UserError

_BLOCK = 2**18
_MAX_MEMBERS = 100_000
_REF = "org.opencontainers.image.ref.name"


def is_layout(path: Path) -> bool:
    return (path / "oci-layout").is_file() or ((path / "index.json").is_file() and (path / "blobs").is_dir())


class Layout:
    """An image in a folder in the OCI layout (`Source`).

    Args: tag: which of several images: the name that index.json gives it.
    """

    def __init__(self, folder: Path, tag: str = "") -> None:
        self.what = f"the image {folder}{':' if tag else ''}{tag}"
        self._folder = folder
        index = parse(Index, self._read(folder / "index.json"), f"index.json of {self.what}")
        choice = self._choice(index.manifests, tag)
        name = (choice.annotations or {}).get(_REF, tag)
        self.names: Sequence[str] = (name,) if "/" in name or ":" in name else ()
        manifest = find_manifest(self._document(choice), self._document, self.what)
        self.config = self._document(manifest.config)
        self.layers: Sequence[Descriptor] = manifest.layers

    def blob(self, layer: Descriptor) -> Iterator[bytes]:
        blob = _open(self._path(layer.digest), self.what)
        with os.fdopen(blob, "rb", buffering=0) as file:
            yield from verify(_blocks(file, os.fstat(blob).st_size), layer.digest, self._of(layer))

    def _choice(self, manifests: Sequence[Descriptor], tag: str) -> Descriptor:
        tags = {(item.annotations or {}).get(_REF, "") for item in manifests}
        if tag:
            manifests = [item for item in manifests if (item.annotations or {}).get(_REF) == tag]
            if not manifests:
                raise UserError(
                    f"{self.what} is not there; the folder has {', '.join(sorted(tags - {''})) or 'no tags'}"
                )
        elif len(tags) > 1:
            raise UserError(f"{self.what} is one of several: add :TAG, one of {', '.join(sorted(tags - {''}))}")
        if not manifests:
            raise UserError(f"{self.what} is not there: the folder has no image")
        return for_this_machine(manifests, self.what) if len(manifests) > 1 else manifests[0]

    def _document(self, descriptor: Descriptor) -> bytes:
        return check_digest(self._read(self._path(descriptor.digest)), descriptor.digest, self._of(descriptor))

    def _read(self, path: Path) -> bytes:
        with os.fdopen(_open(path, self.what), "rb") as file:
            return _within_bound(file.read(MAX_DOCUMENT + 1), self.what)

    def _path(self, digest: str) -> Path:
        return self._folder / "blobs" / digest.replace(":", "/")

    def _of(self, descriptor: Descriptor) -> str:
        return f"the blob {descriptor.digest[:19]} of {self.what}"


class _Entry(BaseModel):
    Config: str
    RepoTags: list[str] | None = None
    Layers: list[str] = Field(max_length=1000)


class Archive:
    """An image in an archive of `docker save` (`Source`). Its layers have no digests but the config's.

    Args: tag: which of several images, as "debian:12".
    """

    def __init__(self, path: Path, tag: str = "") -> None:
        self.what = f"the image {path}{':' if tag else ''}{tag}"
        self._path = path
        self._members = self._list()
        entry = self._choice(tag)
        self.names: Sequence[str] = entry.RepoTags or ()
        self.config = self._read(entry.Config)
        diff_ids = parse(Config, self.config, f"the config of {self.what}").rootfs.diff_ids
        if len(diff_ids) != len(entry.Layers):
            raise UserError(f"{self.what} is broken: {len(entry.Layers)} layers, but {len(diff_ids)} digests of layers")
        self._places = dict(zip(diff_ids, entry.Layers, strict=True))
        self.layers: Sequence[Descriptor] = [
            Descriptor(digest=digest, size=self._member(place)[1])
            for digest, place in zip(diff_ids, entry.Layers, strict=True)
        ]

    def blob(self, layer: Descriptor) -> Iterator[bytes]:
        offset, size = self._member(self._places[layer.digest])
        with os.fdopen(_open(self._path, self.what), "rb", buffering=0) as file:
            file.seek(offset)
            yield from _blocks(file, size)

    def _list(self) -> dict[str, tuple[int, int]]:
        members: dict[str, tuple[int, int]] = {}
        links: dict[str, str] = {}
        try:
            with os.fdopen(_open(self._path, self.what), "rb", buffering=0) as file:
                archive = tarfile.TarFile(fileobj=_Headers(file), errors="surrogateescape")
                while (member := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # or it keeps all of them
                    name = os.path.normpath(member.name)
                    if member.isreg():
                        members[name] = (member.offset_data, member.size)
                    elif member.issym() or member.islnk():  # of older versions of docker, for layers in common
                        base = os.path.dirname(name) if member.issym() else ""
                        links[name] = os.path.normpath(os.path.join(base, member.linkname))
                    if len(members) + len(links) > _MAX_MEMBERS:
                        raise UserError(f"{self.what} has more than {_MAX_MEMBERS} members")
        except (tarfile.TarError, ValueError) as error:
            raise UserError(f"{self.what} is no archive of `docker save` ({error})") from None
        return members | {name: members[target] for name, target in links.items() if target in members}

    def _choice(self, tag: str) -> _Entry:
        try:
            entries = TypeAdapter(list[_Entry]).validate_json(self._read("manifest.json"))
        except ValidationError as error:
            raise UserError(f"manifest.json of {self.what} is wrong: {error.errors()[0]['msg']}") from None
        tags = sorted({tag for entry in entries for tag in entry.RepoTags or ()})
        if tag:
            entries = [entry for entry in entries if tag in (entry.RepoTags or ())]
        if not entries:
            raise UserError(f"{self.what} is not there; the archive has {', '.join(tags) or 'no tags'}")
        if len(entries) > 1:
            raise UserError(f"{self.what} is one of several: add :TAG, one of {', '.join(tags)}")
        return entries[0]

    def _member(self, name: str) -> tuple[int, int]:
        try:
            return self._members[os.path.normpath(name)]
        except KeyError:
            raise UserError(f"{self.what} is no whole archive of `docker save`: it has no {name[:100]!r}") from None

    def _read(self, name: str) -> bytes:
        offset, size = self._member(name)
        with os.fdopen(_open(self._path, self.what), "rb", buffering=0) as file:
            file.seek(offset)
            return _within_bound(b"".join(_blocks(file, min(size, MAX_DOCUMENT + 1))), self.what)


class _Headers(io.RawIOBase):
    """An archive from which only headers are read: a header that would fill the memory is refused."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_DOCUMENT:
            raise ValueError("a header is too long")
        return bytes(self._file.read(size) or b"")

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


def _open(path: Path, what: str) -> int:
    """Open a regular file to read; anything else could keep the reader waiting for ever."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UserError(f"{what} is incomplete: there is no {path}") from None
    except OSError as error:
        raise UserError(f"{what} cannot be read: {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UserError(f"{what} is broken: {path} is no file")
    return file


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (block := file.read(min(size, _BLOCK))):
        size -= len(block)
        yield block


def _within_bound(data: bytes, what: str) -> bytes:
    if len(data) > MAX_DOCUMENT:
        raise UserError(f"{what} is broken: a document of it has more than {MAX_DOCUMENT} bytes")
    return data
