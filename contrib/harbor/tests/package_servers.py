"""A cache of packages on the loopback address, as a user would name one: an index for pip, a registry for npm, and a
proxy of plain HTTP for apt. Each has one package, `greeting`, whose program says GREETING.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GREETING = "good morning"
APT_HOST = "packages.invalid"
"""A name that no resolver knows: only the proxy does."""


class PackageServer:
    """Serves a folder. Args: kind: "pypi", "npm" or "apt"."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self.requests, directory=str(folder)))
        self.address = f"127.0.0.1:{self._server.server_port}"
        {"pypi": _write_index, "npm": _write_registry, "apt": _write_archive}[kind](folder, f"http://{self.address}")
        self.mirror = f"{kind}=http://{self.address}{'/simple' if kind == 'pypi' else ''}"

    @contextmanager
    def serving(self) -> Iterator[PackageServer]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, requests: list[str], *args: Any, **options: Any) -> None:
        self._requests = requests
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        self._requests.append(self.path)
        self.path = urlsplit(self.path).path  # as a proxy it gets whole addresses
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


def _write_index(folder: Path, url: str) -> None:
    name, info = "greeting-1.0-py3-none-any.whl", "greeting-1.0.dist-info"
    texts = {
        "greeting.py": f"print({GREETING!r})\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    page = folder / "simple/greeting/index.html"
    page.parent.mkdir(parents=True)
    with zipfile.ZipFile(page.parent / name, "w") as wheel:
        for path, text in texts.items():
            wheel.writestr(path, text)
    page.write_text(f"<!DOCTYPE html><html><body><a href='{name}'>{name}</a></body></html>")


def _write_registry(folder: Path, url: str) -> None:
    about = {"name": "greeting", "version": "1.0.0", "bin": {"greeting": "say.js"}}
    texts = {"package.json": json.dumps(about), "say.js": f"#!/usr/bin/env node\nconsole.log({GREETING!r})\n"}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    (folder / "greeting.tgz").write_bytes(archive.getvalue())
    digest = base64.b64encode(hashlib.sha512(archive.getvalue()).digest()).decode()
    dist = {"tarball": f"{url}/greeting.tgz", "integrity": f"sha512-{digest}"}
    versions = {"1.0.0": {**about, "dist": dist}}
    (folder / "greeting").write_text(
        json.dumps({"name": "greeting", "dist-tags": {"latest": "1.0.0"}, "versions": versions})
    )


def _write_archive(folder: Path, url: str) -> None:
    package = folder / "greeting"
    control = "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: tests <t@example.org>\nDescription: x\n"
    for path, text in {"DEBIAN/control": control, "usr/bin/greeting": f"#!/bin/sh\necho {GREETING}\n"}.items():
        (package / path).parent.mkdir(parents=True)
        (package / path).write_text(text)
        (package / path).chmod(0o755)
    archive = folder / "greeting.deb"
    command = ["dpkg-deb", "-Zgzip", "--root-owner-group", "--build", str(package), str(archive)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    shutil.rmtree(package)
    data = archive.read_bytes()
    found = f"Filename: ./greeting.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (folder / "Packages").write_text(control + found)
