"""An image made of this machine's own programs: a shell, the usual tools, this Python and installed packages.

It needs no registry, no network and no root. Its files are copies, so that nothing of the machine can be changed or
read through it. Its digest names what it was made of on this machine; it is not the digest of a published image.
"""

from __future__ import annotations

import compileall
import functools
import hashlib
import os
import platform
import py_compile
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.images.cache import cached
from forge_env.core.errors import SandboxError, SandboxUnavailable
from sandboxes.host.find_packages import find_packages

_VERSION = 3
"""Part of the digest: increase it when the same inputs make another image."""
_PROGRAMS = """
    sh bash cat chmod chown cp cut date dirname basename diff du echo env expr false
    find grep head id install kill ln ls md5sum mkdir mktemp mv od paste patch printf
    ps pwd readlink realpath rm rmdir sed seq sha256sum sleep sort split stat tail tar
    tee test timeout touch tr true uname uniq wc which xargs awk gzip git
""".split()  # noqa: SIM905  a list would be a line for each name
_NOT_COPIED = {
    *["test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "dist-packages"]
}
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PREFIX = Path("usr/local")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
_LDD_SECONDS = 20.0
_ONE_AT_A_TIME = threading.Lock()
"""The first episodes of a process ask in as many threads at once, and each would look through all packages."""


def host_image(packages: tuple[str, ...] = ()) -> UnpackedImage:
    """Return the image of this machine with packages that are installed here.

    It is made once for a user, in a few seconds, and what it is made of is looked up once in a process.

    Args:
        packages: modules or distributions, as for `open_sandbox(packages=...)`; what they require comes along.
    """
    with _ONE_AT_A_TIME:
        digest, paths = _content(packages)
    root = cached(f"host-{digest[:32]}", functools.partial(_build, paths=paths))
    return UnpackedImage(
        root=root,
        digest=f"sha256:{digest}",
        env=_ENV,
        architecture={"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), ""),
    )


@functools.lru_cache(maxsize=64)
def _content(packages: tuple[str, ...]) -> tuple[str, Sequence[tuple[str, str]]]:
    paths = find_packages(sorted(packages)).paths if packages else []
    return _digest(paths), paths


def _digest(mounts: Iterable[tuple[str, str]]) -> str:
    """Name what the image is made of: paths, sizes and times of its programs and packages."""
    digest = hashlib.sha256(f"{_VERSION} {sys.version} {_stdlib()}".encode())
    paths = [(str(path), path) for path in (Path(sys.executable).resolve(), *_programs().values())]
    paths += [(target, Path(source)) for source, target in mounts]
    for name, path in paths:
        stat = path.stat()
        digest.update(f"{name} {path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _build(root: Path, *, paths: Iterable[tuple[str, str]]) -> None:
    try:
        _fill(root, paths)
    except OSError as error:  # of a copied folder it lists the reason for every file
        raise SandboxError(
            f"the image of this machine cannot be made in {root.parent}: {str(error)[:200]}; free some room there, or "
            "set FORGE_ENV_IMAGES to a folder on another disk"
        ) from None


def _fill(root: Path, paths: Iterable[tuple[str, str]]) -> None:
    for folder in ("bin", "etc", "root", "usr/bin", "var/tmp", "tmp", "proc", "sys", "dev", "run"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    programs = _programs()
    for name, program in programs.items():
        _copy(program, root / "usr/bin" / name)
    for name in {"sh", "bash"} & programs.keys():
        (root / "bin" / name).symlink_to(f"../usr/bin/{name}")
    _copy_python(root, paths)
    objects = [*(root / _PREFIX).rglob("*.so*"), root / _PREFIX / "bin" / _PYTHON, *programs.values()]
    for library in sorted(_libraries(objects, root)):
        _copy(library, root / library.relative_to("/"))


def _copy_python(root: Path, paths: Iterable[tuple[str, str]]) -> None:
    prefix = root / _PREFIX
    library = prefix / "lib" / _PYTHON
    _copy(Path(sys.executable).resolve(), prefix / "bin" / _PYTHON)
    for name in ("python3", "python"):
        (prefix / "bin" / name).symlink_to(_PYTHON)
    shutil.copytree(_stdlib(), library, symlinks=False, ignore=_ignore, ignore_dangling_symlinks=True)
    dynamic = Path(sysconfig.get_config_var("DESTSHARED") or "")
    if dynamic.is_dir() and not (library / "lib-dynload").exists():
        shutil.copytree(dynamic, library / "lib-dynload")
    packages = library / "site-packages"
    packages.mkdir(exist_ok=True)
    (library / "dist-packages").symlink_to("site-packages")  # which Debian's Python reads instead
    for source, target in paths:
        if Path(source).is_dir():
            shutil.copytree(source, packages / target, symlinks=False, dirs_exist_ok=True)
        else:
            _copy(Path(source), packages / target)
    # A workspace begins without compiled files of its own: each start of a program would compile its packages.
    modes = {"invalidation_mode": py_compile.PycInvalidationMode.UNCHECKED_HASH, "quiet": 2}
    compileall.compile_dir(packages, stripdir=str(root), prependdir="/", **modes)  # type: ignore[arg-type]


def _ignore(folder: str, names: list[str]) -> set[str]:
    is_top = Path(folder) == _stdlib()
    return {name for name in names if is_top and (name in _NOT_COPIED or name.startswith("config-"))}


@functools.cache
def _stdlib() -> Path:
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


@functools.cache
def _programs() -> dict[str, Path]:
    """Return the programs of this machine that the image has, by the names that they are called by."""
    places = {name: shutil.which(name) for name in _PROGRAMS}
    if not places["sh"]:
        raise SandboxUnavailable("the image of this machine cannot be made: there is no program sh on the PATH.")
    return {name: Path(place).resolve() for name, place in places.items() if place}


def _libraries(objects: Iterable[Path], root: Path) -> Iterator[Path]:
    """Yield the shared libraries of programs and modules, by the paths at which the loader looks for them."""
    if shutil.which("ldd") is None:
        raise SandboxUnavailable(
            "the image of this machine cannot be made: there is no program ldd (install libc-bin)."
        )
    # A package that is imported may set LD_LIBRARY_PATH (opencv does); the image does not depend on it.
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    names = [str(path) for path in objects]
    for start in range(0, len(names), 200):
        command = ["ldd", *names[start : start + 200]]
        output = subprocess.run(command, capture_output=True, text=True, timeout=_LDD_SECONDS, env=env).stdout
        for line in output.splitlines():
            words = line.split()
            path = words[2] if len(words) > 3 and words[1] == "=>" else words[0] if words else ""
            if path.startswith("/") and not path.endswith(":") and not path.startswith(str(root)):
                yield Path(path)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(source, target)
        target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
