"""Images as files, made by tests: layers of tar entries, OCI layouts and archives of `docker save`."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrib.workspaces.images.manifest import MACHINE

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


def entry(name: str, data: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of a layer: a file, unless `type` says otherwise."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(data), 0o644, 1_700_000_000
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    return member, data


def folder(name: str, **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, **{"type": tarfile.DIRTYPE, "mode": 0o755} | attributes)


def link(name: str, target: str, **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, **{"type": tarfile.SYMTYPE, "linkname": target} | attributes)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=kind) as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()


def layer_of(root: Path) -> bytes:
    """Return a layer with all files of a folder."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(root, arcname=".")
    return target.getvalue()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def zip_layer(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # the same bytes at any time


@dataclass
class ImageFiles:
    """An image to be written in one format or another.

    Args: compress: makes a blob of a layer.
    """

    layers: Sequence[bytes]
    architecture: str = MACHINE
    run: dict[str, Any] = field(default_factory=dict)
    compress: Callable[[bytes], bytes] = zip_layer

    @property
    def config(self) -> bytes:
        rootfs = {"type": "layers", "diff_ids": [digest_of(data) for data in self.layers]}
        config = {"architecture": self.architecture, "os": "linux", "config": self.run, "rootfs": rootfs}
        return json.dumps(config).encode()

    def blobs(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the descriptor of the manifest, and all blobs by digest."""
        layers = [self.compress(data) for data in self.layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _descriptor(self.config, CONFIG_TYPE),
            "layers": [_descriptor(blob, LAYER_TYPE) for blob in layers],
        }
        document = json.dumps(manifest).encode()
        platform = {"os": "linux", "architecture": self.architecture}
        blobs = {digest_of(blob): blob for blob in (self.config, document, *layers)}
        return {**_descriptor(document, MANIFEST_TYPE), "platform": platform}, blobs


def write_layout(path: Path, images: dict[str, ImageFiles] | ImageFiles) -> Path:
    """Write an OCI layout. Args: images: by tag, or one without a tag."""
    by_tag = {"": images} if isinstance(images, ImageFiles) else images
    manifests = []
    (path / "blobs/sha256").mkdir(parents=True)
    for tag, image in by_tag.items():
        descriptor, blobs = image.blobs()
        annotations = {"org.opencontainers.image.ref.name": tag} if tag else {}
        manifests.append({**descriptor, "annotations": annotations})
        for digest, blob in blobs.items():
            (path / "blobs" / digest.replace(":", "/")).write_bytes(blob)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))
    return path


def write_archive(path: Path, images: dict[str, ImageFiles]) -> Path:
    """Write an archive as `docker save` does. Args: images: by name."""
    entries, files = [], {}
    for name, image in images.items():
        config = f"{digest_of(image.config)[7:]}.json"
        places = [f"{digest_of(data)[7:]}/layer.tar" for data in image.layers]
        files |= {config: image.config, **dict(zip(places, image.layers, strict=True))}
        entries.append({"Config": config, "RepoTags": [name], "Layers": places})
    files["manifest.json"] = json.dumps(entries).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def _descriptor(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(blob), "size": len(blob)}
