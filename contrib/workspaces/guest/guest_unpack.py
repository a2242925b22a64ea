"""Unpacks one layer of an image: `python -I -S -X utf8 guest_unpack.py ORDER GUEST`, with the layer on standard input.

Run by path, with only the standard library and, from the folder GUEST, `guest_kernel`;
`contrib/workspaces/images/unpack.py`
starts it. A layer may be hostile: it is read by a process that has the folder of the layer as its root, no network, no
other processes, nearly no privileges, and limits on memory, time, bytes and files.

    launcher -> unpacker (pid 1 of its namespaces) -> decompressor

The report, one line of JSON, goes to standard output. Whiteouts stay as the empty files ".wh.NAME" that they are in the
layer; a folder that the layer only implies has the empty file IMPLIED in it.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import sys
import tarfile
from typing import Any

sys.path.insert(0, sys.argv[2])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_mounts as mounts  # type: ignore[import-not-found]
from guest_unpack_stream import (  # type: ignore[import-not-found]
    BLOCK,
    ZSTD,
    Decompressor,
    Failed,
    Refused,
    Stream,
    decompress,
    explain,
    write,
)

del sys.path[:2]

WHITEOUT, RESERVED = ".wh.", ".wh..wh."
OPAQUE, IMPLIED = ".wh..wh..opq", ".wh..wh.implied"
_MAX_DEPTH, _MAX_PATH = 200, 2048
_MAX_ID, _MAX_TIME = 2**31 - 1, 2**33
_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID = 0, 1, 3, 4
_PADDING, _HEADERS = 2**24, 2**11
"""Bytes of a stream in addition to its files': behind its end, and for each file."""


def main() -> None:
    order = json.loads(sys.argv[1])
    kernel.die_with_parent()
    if os.getppid() != order["owner"]:
        os._exit(1)
    try:
        is_root, uid, gid = os.geteuid() == 0, os.geteuid(), os.getegid()
        flags = kernel.NEWPID | kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP
        kernel.unshare(flags if is_root else flags | kernel.NEWUSER)
        if not is_root:
            kernel.map_ids(0, uid, gid)
        child = os.fork()
    except OSError as failure:
        _report({"isolation": str(failure)})
        os._exit(1)
    if child:
        os.close(0)
        os.waitpid(child, 0)
        os._exit(0)
    kernel.die_with_parent()
    _report(_unpack(order, owners=is_root))


def _unpack(order: dict[str, Any], *, owners: bool) -> dict[str, Any]:
    try:
        first = os.read(0, BLOCK)
        if first.startswith(ZSTD):
            sys.path.append(order["zstandard"])
            import zstandard  # noqa: F401  it cannot be found from inside

        _confine(order)
    except ImportError:
        return {"zstandard": True}
    except OSError as failure:
        return {"isolation": str(failure)}
    try:
        most = order["bytes"] + _PADDING + _HEADERS * order["files"]
        decompressor = Decompressor(decompress(first), most)
        layer = Layer(Stream(decompressor.blocks()), order["bytes"], order["files"], owners=owners)
        layer.unpack()
        return {
            "diff_id": f"sha256:{decompressor.digest}",
            "bytes": layer.bytes,
            "files": layer.files,
            "left_out": layer.left_out,
        }
    except Failed as failed:
        report: dict[str, Any] = failed.args[0]
        return report
    except Exception as failure:
        return explain(failure)


def _confine(order: dict[str, Any]) -> None:
    """Make the folder of the layer the root of this process, and give up what it does not need. Raises OSError."""
    mounts.make_private()
    tree = mounts.copy_tree(order["folder"])
    mounts.set_attributes(tree, mounts.NOSUID | mounts.NODEV | mounts.NOEXEC)
    mounts.attach(tree, order["folder"])
    os.chdir(order["folder"])
    mounts.enter_root_here()
    os.umask(0)
    kernel.lower_small_limits()
    seconds = int(order["seconds"]) + 1
    for kind, value in (
        (resource.RLIMIT_AS, order["memory_bytes"]),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, order["bytes"]),
        (resource.RLIMIT_NOFILE, 1024),
    ):
        kernel.lower(kind, value)
    lockdown = kernel.Lockdown(base64.b64decode(order["filter"]))
    lockdown.keep_capabilities((_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID))
    kernel.set_dumpable(False)
    kernel.die_with_parent()
    lockdown.filter_calls()


class Layer:
    """Makes the files of a layer below the root of this process."""

    def __init__(self, stream: Stream, max_bytes: int, max_files: int, *, owners: bool) -> None:
        self.stream = stream
        self.max_bytes, self.max_files, self.owners = max_bytes, max_files, owners
        self.bytes = self.files = self.left_out = 0
        self.folders: dict[str, tuple[int, int, int, float]] = {}
        """Path -> mode, owner, group, time: set in the end, when nothing is made in them any more."""
        self.real_folders: dict[str, str] = {"": ""}
        """Folders by their names in the layer -> their real paths."""

    def unpack(self) -> None:
        archive = tarfile.TarFile(
            name="layer",
            fileobj=self.stream,
            encoding="utf-8",
            errors="surrogateescape",
        )
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # or it keeps all of them
            self.files += 1
            if self.files > self.max_files:
                raise Refused(f"it has more than {self.max_files} files, the limit")
            self.make(member)
        self.stream.drain()
        for path in sorted(self.folders, key=lambda path: path.count("/"), reverse=True):
            self.finish_folder(path, *self.folders[path])

    def make(self, member: tarfile.TarInfo) -> None:
        if not (0 <= member.uid <= _MAX_ID and 0 <= member.gid <= _MAX_ID and member.size >= 0):
            raise Refused(f"{member.name!r} has an owner or a size that cannot be")
        parts = _parts(member.name)
        if not parts:
            if member.isdir():
                self.folders["."] = _attributes(member)
            return
        *above, name = parts
        if name.startswith(WHITEOUT) and not self.is_marker(name):
            self.left_out += 1
            return
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            self.left_out += 1  # devices, FIFOs: a workspace has its own /dev
            return
        folder = self.folder(above)
        path = f"{folder}/{name}" if folder else name
        if name.startswith(WHITEOUT):
            os.close(self.create(path))
        elif member.isdir():
            self.make_folder(path, member)
        elif member.issym():
            self.make_link(path, member)
        elif member.islnk():
            *above, name = _parts(member.linkname) or [""]
            folder = self.folder(above)
            self.link(f"{folder}/{name}" if folder else name, path)
        else:
            self.make_file(path, member)

    def is_marker(self, name: str) -> bool:
        if name[len(WHITEOUT) :] in ("", ".", ".."):
            raise Refused(f"the whiteout {name!r} names no file")
        return name == OPAQUE or not name.startswith(RESERVED)

    def folder(self, above: list[str]) -> str:
        """Return the real path of a folder; one that is not there is made, and marked as implied.

        Links on the way are followed, as other tools do; the root of this process is the layer, so that none leads out.
        """
        name = "/".join(above)
        if name in self.real_folders:
            return self.real_folders[name]
        real = os.path.realpath(f"/{name}").lstrip("/")
        if real.count("/") >= _MAX_DEPTH or len(real) > _MAX_PATH:
            raise Refused(f"{name[:100]!r} has too many folders above it")
        so_far = ""
        for part in real.split("/") if real else ():
            so_far = f"{so_far}/{part}" if so_far else part
            try:
                os.mkdir(so_far, 0o755)
            except FileExistsError:
                continue
            os.close(os.open(f"{so_far}/{IMPLIED}", os.O_WRONLY | os.O_CREAT, 0o600))
        self.real_folders[name] = real
        return real

    def make_folder(self, path: str, member: tarfile.TarInfo) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if os.path.islink(path) or not os.path.isdir(path):
                self.remove(path)
                os.mkdir(path, 0o700)
            elif os.path.lexists(f"{path}/{IMPLIED}"):
                os.unlink(f"{path}/{IMPLIED}")
        self.folders[path] = _attributes(member)

    def make_file(self, path: str, member: tarfile.TarInfo) -> None:
        self.bytes += member.size
        if self.bytes > self.max_bytes:
            raise Refused(f"its files have more than {self.max_bytes} bytes, the limit")
        fd = self.create(path)
        try:
            if member.sparse is None:
                self.copy(fd, member.size, path)
            else:
                self.copy_parts(fd, member)
            if self.owners:
                os.fchown(fd, member.uid, member.gid)
            os.fchmod(fd, member.mode & 0o7777)
            _set_time(fd, member.mtime)
        finally:
            os.close(fd)

    def copy(self, fd: int, size: int, path: str) -> None:
        for part in self.stream.some(size):
            size -= len(part)
            write(fd, part)
        if size:
            raise Refused(f"it ends too early, in {path!r}")

    def copy_parts(self, fd: int, member: tarfile.TarInfo) -> None:
        """Write a file with holes: only the parts that are none."""
        parts: Any = member.sparse
        for offset, size in parts:
            if offset < 0 or size < 0 or offset + size > member.size:
                raise Refused(f"the parts of {member.name!r} are not in it")
            os.lseek(fd, offset, os.SEEK_SET)
            self.copy(fd, size, member.name)
        os.ftruncate(fd, member.size)

    def make_link(self, path: str, member: tarfile.TarInfo) -> None:
        try:
            os.symlink(member.linkname, path)
        except FileExistsError:
            self.remove(path)
            os.symlink(member.linkname, path)
        if self.owners:
            os.lchown(path, member.uid, member.gid)
        _set_time(path, member.mtime)

    def link(self, target: str, path: str) -> None:
        try:
            os.link(target, path, follow_symlinks=False)
        except FileExistsError:
            if target != path:
                self.remove(path)
                os.link(target, path, follow_symlinks=False)
        except OSError as failure:
            raise Refused(f"the hard link {path!r} to {target!r} cannot be made ({failure.strerror})") from None

    def create(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o600)
        except FileExistsError:
            self.remove(path)
            return os.open(path, flags, 0o600)

    def remove(self, path: str) -> None:
        """Remove what an earlier entry of the layer has made."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self.real_folders = {"": ""}

    def finish_folder(self, path: str, mode: int, uid: int, gid: int, time: float) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return  # a later entry has replaced it
        try:
            if self.owners:
                os.fchown(fd, uid, gid)
            else:
                mode |= 0o700  # whoever is not root must be able to read, and to remove it
            os.fchmod(fd, mode)
            _set_time(fd, time)
        finally:
            os.close(fd)


def _parts(name: str) -> list[str]:
    """Return the parts of a path below the root. Raises Refused if it leads out, or is too long."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused(f"the path {name[:100]!r} leads out of the image")
    if len(parts) > _MAX_DEPTH or len(name) > _MAX_PATH:
        raise Refused(f"the path {name[:100]!r}... is too long")
    return parts


def _attributes(member: tarfile.TarInfo) -> tuple[int, int, int, float]:
    return member.mode & 0o7777, member.uid, member.gid, member.mtime


def _set_time(file: int | str, time: float) -> None:
    nanoseconds = int(time * 1e9) if 0 <= time <= _MAX_TIME else 0  # false for a NaN, too
    if isinstance(file, int):
        os.utime(file, ns=(nanoseconds, nanoseconds))
    else:
        os.utime(file, ns=(nanoseconds, nanoseconds), follow_symlinks=False)


def _report(report: dict[str, Any]) -> None:
    os.write(1, json.dumps(report).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
