"""A registry of images on the loopback address, with as much of the protocol as pulling takes: also for `docker pull`.

python -m contrib.workspaces.tests.image_registry LAYOUT REPOSITORY TAG     # serves an OCI layout until standard
input ends
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from contrib.workspaces.tests.image_files import INDEX_TYPE, ImageFiles, digest_of

_DOCUMENT = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>manifests|blobs)/(?P<name>[^/]+)")
USER, PASSWORD, TOKEN = "reader", "secret:word", "a-token"


class Registry:
    """Serves until the end of its `with` block.

    Args:
        auth: "", "basic" or "bearer": how it asks for USER and PASSWORD.
    """

    def __init__(self, auth: str = "") -> None:
        self.auth = auth
        self.contents: dict[str, bytes | Path] = {}
        """Manifests and blobs, by digest."""
        self.types: dict[str, str] = {}
        self.tags: dict[tuple[str, str], str] = {}
        self.requests: Counter[str] = Counter()
        """Requests by "METHOD PATH"."""
        self.ranges: list[str] = []
        self.cuts: list[int] = []
        """The next blobs are cut off after so many bytes, counted from the beginning of an answer."""
        self.refusals: list[int] = []
        """Statuses of the next answers."""
        self.ignores_ranges = False
        self.realm = ""
        """Where it sends for tokens; by default to itself."""

    def add(self, repository: str, tag: str, *images: ImageFiles) -> str:
        """Add an image, or an index of several for different machines; return its name."""
        descriptors = []
        for image in images:
            descriptor, blobs = image.blobs()
            self.contents |= blobs
            self.types[descriptor["digest"]] = descriptor["mediaType"]
            descriptors.append(descriptor)
        digest = descriptors[0]["digest"]
        if len(images) > 1:
            unknown = {**descriptors[0], "platform": {"os": "unknown", "architecture": "unknown"}}
            index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [unknown, *descriptors]}
            data = json.dumps(index).encode()
            digest = digest_of(data)
            self.contents[digest], self.types[digest] = data, INDEX_TYPE
        self.tags[repository, tag] = digest
        return f"{self.address}/{repository}:{tag}"

    def add_layout(self, repository: str, tag: str, layout: Path) -> str:
        """Add the first image of an OCI layout; its blobs are served from there."""
        for blob in (layout / "blobs/sha256").iterdir():
            self.contents[f"sha256:{blob.name}"] = blob
        chosen = json.loads((layout / "index.json").read_text())["manifests"][0]
        self.types[chosen["digest"]], self.tags[repository, tag] = chosen["mediaType"], chosen["digest"]
        return f"{self.address}/{repository}:{tag}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Registry:
        registry = self

        class Handler(_Handler):
            owner = registry

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # a client that has heard enough closes its connection

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Registry
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path, _, query = self.path.partition("?")
        self.owner.requests[f"{self.command} {path}"] += 1
        if self.owner.refusals:
            self._send(self.owner.refusals.pop(0), b"", {"Retry-After": "0"})
        elif path == "/token":
            self._send_token(query)
        elif not self._is_allowed():
            asked = (
                f'Bearer realm="{self.owner.realm or f"http://{self.owner.address}/token"}",service="here"'
                if self.owner.auth == "bearer"
                else 'Basic realm="here"'
            )
            self._send(401, b"{}", {"WWW-Authenticate": asked})
        elif path == "/v2/":
            self._send(200, b"{}", {"Docker-Distribution-Api-Version": "registry/2.0"})
        else:
            self._send_content(path, with_body)

    def _is_allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        wanted = {"": given, "basic": f"Basic {_basic()}", "bearer": f"Bearer {TOKEN}"}
        return given == wanted[self.owner.auth]

    def _send_token(self, query: str) -> None:
        if self.headers.get("Authorization") != f"Basic {_basic()}" or "service=here" not in query:
            self._send(401, b"{}", {})
        else:
            self._send(200, json.dumps({"token": TOKEN}).encode(), {})

    def _send_content(self, path: str, with_body: bool) -> None:
        match = _DOCUMENT.fullmatch(path)
        name = match["name"] if match else ""
        digest = self.owner.tags.get((match["repository"], name), name) if match else ""
        content = self.owner.contents.get(digest)
        if match is None or content is None:
            self._send(404, b'{"errors": []}', {})
            return
        data = content if isinstance(content, bytes) else b""
        size = len(data) if isinstance(content, bytes) else content.stat().st_size
        start = self._start() if match["kind"] == "blobs" else 0
        kind = self.owner.types.get(digest, "application/octet-stream")
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Docker-Content-Digest", digest)
        self.send_header("Content-Length", str(size - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        if not with_body:
            return
        if isinstance(content, Path):
            self.wfile.flush()
            with content.open("rb") as file:
                file.seek(start)
                self.connection.sendfile(file, start)
        elif self.owner.cuts and match["kind"] == "blobs":
            self.wfile.write(data[start : start + self.owner.cuts.pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(data[start:])

    def _start(self) -> int:
        given = self.headers.get("Range", "")
        if given:
            self.owner.ranges.append(given)
        match = re.fullmatch(r"bytes=(\d+)-", given)
        return int(match[1]) if match and not self.owner.ignores_ranges else 0

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _basic() -> str:
    return base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def main() -> None:
    layout, repository, tag = sys.argv[1:]
    with Registry() as registry:
        print(registry.add_layout(repository, tag, Path(layout)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
