"""Unpacked images in the cache: by id, with their layers, and by name.

layers/DIGEST/files     an unpacked layer, by the digest of its uncompressed content
images/ID/root          the root file system of an image, of hard links to the files of its layers
images/ID/image.json    how commands run in it, and which layers it has
names/NAME              the id of the image that has this name
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.images.cache import Cancelled, callers_event, hold_entry, images_folder
from contrib.workspaces.images.manifest import Config, Descriptor, Source, check_platform, parse
from contrib.workspaces.images.reference import full_name
from contrib.workspaces.images.unpack import DEFAULT_UNPACK_LIMITS, UnpackLimits, no_room, unpack_layer
from forge_env.core.errors import UserError

_AT_ONCE = 3
"""Layers that are fetched and unpacked at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image in the cache."""

    id: str
    """64 hexadecimal digits: the digest of its config."""
    image: UnpackedImage
    layers: tuple[str, ...]
    """Digests of its layers, 64 hexadecimal digits each."""
    bytes: int
    """Of the files of its layers."""
    names: tuple[str, ...]


def add_image(
    source: Source,
    *,
    names: Iterable[str] = (),
    limits: UnpackLimits = DEFAULT_UNPACK_LIMITS,
    progress: Callable[[str], None] = lambda line: None,
) -> UnpackedImage:
    """Unpack an image into the cache, unless it is there; layers that are there are not fetched again.

    Args:
        names: given to the image; another image that has one of them loses it.
        progress: is told a line when a layer is there. From any thread.
    """
    config = parse(Config, source.config, f"the config of {source.what}")
    check_platform(config, source.what)
    if len(config.rootfs.diff_ids) != len(source.layers):
        raise UserError(
            f"{source.what} is broken: {len(source.layers)} layers, but {len(config.rootfs.diff_ids)} digests of layers"
        )
    image_id = sha256(source.config).hexdigest()

    def build(folder: Path) -> None:
        try:
            _build(folder, source, config, limits, progress)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_room(folder, source.what) from None
            raise UserError(f"{source.what} cannot be unpacked: {error}") from None

    with hold_entry(f"images/{image_id}", build, wait_s=limits.wall_s) as folder:
        image = load(folder).image
        for name in names:
            _give_name(name, image)
        return image


def stored_images() -> list[StoredImage]:
    return [load(folder) for folder in sorted((images_folder() / "images").glob("[0-9a-f]*"))]


def load(folder: Path) -> StoredImage:
    try:
        record = json.loads((folder / "image.json").read_text())
        run = {name: record[name] for name in ("env", "workdir", "user", "architecture")}
        run |= {name: tuple(record[name]) for name in ("entrypoint", "command")}
        image = UnpackedImage(root=folder / "root", digest=f"sha256:{folder.name}", **run)
        names = tuple(sorted(name for name, image_id in named_images().items() if image_id == folder.name))
        layers, size = tuple(record["layers"]), int(record["bytes"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the image {folder} of the cache is broken ({error!r}): remove the folder") from None
    return StoredImage(id=folder.name, image=image, layers=layers, bytes=size, names=names)


def named_images() -> dict[str, str]:
    """Return the names in the cache, and the ids of their images."""
    folder = images_folder() / "names"
    return {unquote(path.name): path.read_text() for path in sorted(folder.glob("*")) if path.name[0] != "."}


def _give_name(name: str, image: UnpackedImage) -> None:
    folder = images_folder() / "names"
    folder.mkdir(parents=True, exist_ok=True)
    file, path = tempfile.mkstemp(prefix=".", dir=folder)
    with os.fdopen(file, "w") as target:
        target.write(image.digest.removeprefix("sha256:"))
    os.replace(path, _place_of(name))


def forget_name(name: str) -> None:
    _place_of(name).unlink(missing_ok=True)


def find_named(name: str) -> UnpackedImage | None:
    """Return the image of a name, or of the beginning of an id of at least 12 digits; None if there is none."""
    try:
        image_id = _place_of(name).read_text()
    except OSError:  # also of a name that is too long for a file
        return _by_id(name)
    folder = images_folder() / "images" / image_id
    return load(folder).image if folder.is_dir() else None


def _place_of(name: str) -> Path:
    return images_folder() / "names" / quote(full_name(name), safe="")


def _by_id(name: str) -> UnpackedImage | None:
    digits = name.removeprefix("sha256:")
    if len(digits) < 12 or set(digits) - set("0123456789abcdef"):
        return None
    matches = sorted((images_folder() / "images").glob(f"{digits}*"))
    return load(matches[0]).image if len(matches) == 1 else None


def _build(folder: Path, source: Source, config: Config, limits: UnpackLimits, progress: Callable[[str], None]) -> None:
    root = folder / "root"
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    with ExitStack() as stack:
        layers = list(_held_layers(stack, source, config.rootfs.diff_ids, limits, progress))
        for layer in layers:
            add_layer(str(layer / "files"), str(root))
        if layers:
            copy_attributes(str(layers[-1] / "files"), str(root))
    record = {
        "env": config.env,
        "workdir": config.workdir,
        "user": config.run.User or "",
        "entrypoint": config.run.Entrypoint or [],
        "command": config.run.Cmd or [],
        "architecture": config.architecture,
        "layers": [layer.name for layer in layers],
        "bytes": sum(json.loads((layer / "layer.json").read_text())["bytes"] for layer in layers),
    }
    (folder / "image.json").write_text(json.dumps(record))


def _held_layers(
    stack: ExitStack, source: Source, diff_ids: list[str], limits: UnpackLimits, progress: Callable[[str], None]
) -> Iterator[Path]:
    """Unpack the layers that are not in the cache, some at a time; hold and yield all of them, in their order."""
    cancel_event = callers_event()

    def hold(diff_id: str, layer: Descriptor) -> tuple[ExitStack, Path]:
        what = f"the layer {layer.digest[:19]} of {source.what}"

        def build(folder: Path) -> None:
            files = folder / "files"
            files.mkdir(mode=0o755)
            result = unpack_layer(source.blob(layer), files, what=what, limits=limits, cancel_event=cancel_event)
            if result.diff_id != diff_id:
                raise UserError(f"{what} is broken: it unpacks to {result.diff_id}, but the image says {diff_id}")
            (folder / "layer.json").write_text(json.dumps({"bytes": result.bytes, "left_out": result.left_out}))
            progress(f"unpacked {layer.digest[:19]}, {result.files} files, {result.bytes / 1e6:.1f} MB")

        own = ExitStack()
        try:
            name = f"layers/{_digits(diff_id, source)}"
            return own, own.enter_context(hold_entry(name, build, wait_s=limits.wall_s, cancel_event=cancel_event))
        except BaseException:
            cancel_event.set()
            raise

    layer_of = dict(zip(diff_ids, source.layers, strict=True))
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="layer") as executor:
        futures = {diff_id: executor.submit(hold, diff_id, layer) for diff_id, layer in layer_of.items()}
        try:
            failures = [future.exception() for future in futures.values()]
        except BaseException:
            cancel_event.set()
            raise
        finally:
            for future in futures.values():
                if not future.cancel() and future.exception() is None:
                    stack.push(future.result()[0])
    for failure in sorted((one for one in failures if one), key=lambda one: isinstance(one, Cancelled)):
        raise failure
    for diff_id in diff_ids:
        yield futures[diff_id].result()[1]


def _digits(digest: str, source: Source) -> str:
    method, _, digits = digest.partition(":")
    if method != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise UserError(f"{source.what} is broken: {digest[:80]!r} is no digest of a layer")
    return digits


_WHITEOUT, _OPAQUE, _IMPLIED = ".wh.", ".wh..wh..opq", ".wh..wh.implied"  # as guest_unpack.py leaves them


def add_layer(layer: str, root: str) -> None:
    """Put the files of a layer over a root file system's, and take away the files that its whiteouts name.

    Args:
        layer: as `guest_unpack.py` leaves it. It may be linked to, and must not be changed later.
    """
    with os.scandir(layer) as entries:
        members = list(entries)
    # Whiteouts first: they speak of the layers below, never of this one.
    for entry in members:
        if entry.name == _OPAQUE:
            for name in os.listdir(root):
                _remove(f"{root}/{name}")
        elif entry.name.startswith(_WHITEOUT) and entry.name != _IMPLIED:
            _remove(f"{root}/{entry.name[len(_WHITEOUT) :]}")
    for entry in members:
        if entry.name.startswith(_WHITEOUT):
            continue
        target = f"{root}/{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            _link(entry.path, target)
        else:
            is_new = _make_folder(target)
            add_layer(entry.path, target)
            if is_new or not os.path.lexists(f"{entry.path}/{_IMPLIED}"):
                copy_attributes(entry.path, target)


def copy_attributes(source: str, target: str) -> None:
    info = os.lstat(source)
    if os.geteuid() == 0:
        os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_mtime_ns, info.st_mtime_ns))


def _make_folder(path: str) -> bool:
    """Make a folder in the place of whatever else is there; return whether it is new."""
    try:
        os.mkdir(path, 0o755)
        return True
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return False
    os.unlink(path)
    os.mkdir(path, 0o755)
    return True


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        _remove(target)
        _link(source, target)
    except OSError as failure:
        if failure.errno != errno.EMLINK:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
        if os.geteuid() == 0:
            info = os.lstat(source)
            os.lchown(target, info.st_uid, info.st_gid)
            os.chmod(target, stat.S_IMODE(info.st_mode))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        shutil.rmtree(path)
