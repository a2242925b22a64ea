"""Images in a Docker engine: an unpacked image is imported once by its digest, and a snapshot is an image, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tarfile
import threading
from pathlib import Path

from contrib.docker.engine import Engine
from contrib.docker.owner import labels, remove_images
from contrib.workspaces.contract import UnpackedImage
from forge_env.core.errors import SandboxError

REPOSITORY = "forge-env-image"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class Images:
    """The images that one backend needs. An image without a digest is imported for this backend alone.

    Args: engine: closed with it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._imports: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._own: set[str] = set()

    async def import_image(self, image: UnpackedImage) -> str:
        """Return the engine's id of an image, which is imported at first. Raises SandboxError."""
        digest = _DIGEST.fullmatch(image.digest)
        key = ("", digest[1]) if digest else (str(image.root), "")
        task = self._imports.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._imports[key] = asyncio.create_task(self._import(image.root, key[1]))
        return await asyncio.shield(task)

    async def commit(self, container: str) -> str:
        """Return the id of a new image with the files of a container. Raises SandboxError."""
        api = self._engine.client.api
        answer = await self._engine.call(api.commit, container, changes=_with_labels(labels()))
        return str(answer["Id"])

    async def remove(self, *images: str) -> None:
        """Remove images, and not those that they are based on; see `remove_images`. Raises SandboxError."""
        await remove_images(self._engine, list(images))

    async def close(self) -> None:
        """Remove what was imported for this backend alone."""
        for task in self._imports.values():
            with contextlib.suppress(SandboxError):
                await task
        with contextlib.suppress(SandboxError):
            await self.remove(*self._own)
        self._engine.close()

    async def _import(self, root: Path, digest: str) -> str:
        api, name = self._engine.client.api, f"{REPOSITORY}:{digest[:32]}"
        if digest:
            try:
                return str((await self._engine.call(api.inspect_image, name))["Id"])
            except SandboxError as error:
                if not self._engine.is_missing(error):
                    raise
        image_labels = {"forge-env.image": f"sha256:{digest}"} if digest else labels()
        answer = await self._engine.call(self._send, root, REPOSITORY if digest else None, digest[:32], image_labels)
        identity = str(answer["status"])
        if not digest:
            self._own.add(identity)
        return identity

    def _send(self, root: Path, repository: str | None, tag: str, image_labels: dict[str, str]) -> dict[str, str]:
        """Import a folder while it is packed. Blocks. Raises OSError, or an error of the engine."""
        reader, writer = os.pipe()
        failures: list[Exception] = []

        def pack() -> None:
            try:
                with os.fdopen(writer, "wb") as pipe:
                    _pack(root, pipe)
            except Exception as error:  # the other thread raises it
                failures.append(error)

        packing = threading.Thread(target=pack, daemon=True)
        packing.start()
        try:
            with os.fdopen(reader, "rb") as source:
                api = self._engine.client.api
                text = api.import_image_from_stream(source, repository, tag or None, changes=_with_labels(image_labels))
        finally:
            packing.join()  # at the latest, the end of the reader has ended it
        if failures:
            raise OSError(f"the image {root} could not be packed: {failures[0]}") from failures[0]
        return _last_answer(text)


def _pack(root: Path, pipe: object) -> None:
    def normalize(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uname = entry.gname = ""
        if os.geteuid() != 0:
            entry.uid = entry.gid = 0  # an ordinary user owns all files of an image that he has unpacked
        # No devices; and no pipes, since the engine itself opens files of an image (etc/passwd), and would wait.
        return None if entry.isdev() else entry

    with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        tar.add(root, arcname=".", filter=normalize)


def _with_labels(image_labels: dict[str, str]) -> list[str]:
    return [f'LABEL "{name}"="{value}"' for name, value in image_labels.items()]


def _last_answer(text: str) -> dict[str, str]:
    """Return the last of the engine's JSON lines. Raises OSError if it reports an error."""
    import json

    last: dict[str, str] = json.loads(text.strip().splitlines()[-1])
    if "status" not in last:
        raise OSError(last.get("error", "it did not import the image"))
    return last
