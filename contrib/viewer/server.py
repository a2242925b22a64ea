"""The viewer over HTTP, for one person: on loopback, with a secret in the address. It changes nothing but by `act`.

No path of a request reaches the file system: the page is one document, and its requests name runs by number and
episodes by their key in the index. The Host header is checked, so another site cannot reach the server under a name
that it points at this machine (DNS rebinding).
"""

from __future__ import annotations

import hmac
import http.server
import ipaddress
import json
import secrets
import socket
import threading
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from contrib.common.http_server import ANY_ADDRESS, base_url, open_listener
from contrib.viewer.library import Library
from contrib.viewer.page import render_page, security_policy, to_json
from contrib.viewer.views import NotThere
from forge_env.core.errors import ForgeError, UserError

MOST_BYTES = 4096
"""Of an action."""
MAX_FIELDS = 40
IDLE_SECONDS = 60.0
"""A connection without a request is closed after these."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_NO_KEY = "Open the address that forge-env view has printed: it holds the key to this page.\n"


class ViewServer(http.server.ThreadingHTTPServer):
    """Serves a library. It listens once it is made, and serves while it is entered as a context manager."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, library: Library, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.library = library
        self.token = secrets.token_urlsafe(24)
        self.host = host
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = open_listener(host, port)
        self.server_address = self.socket.getsockname()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="viewer-http", daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        """The name of the cookie, which differs between servers of one machine."""
        return f"forge_env_view_{self.port}"

    @property
    def url(self) -> str:
        return f"{base_url(ANY_ADDRESS.get(self.host, self.host), self.port)}/?token={self.token}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server, by its address or by the name of this machine."""
        name, port = _host_and_port(header)
        if port not in ("", str(self.port)):
            return False
        if name in {"localhost", self.host.lower(), socket.gethostname().lower()}:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.host not in ("127.0.0.1", "localhost", "::1")

    def act(self, request: str, data: bytes) -> Any:
        """Act on a run. Whoever may be on the network is only shown the runs, since plain HTTP hides no key."""
        if self.host not in ("127.0.0.1", "localhost", "::1"):
            raise UserError(f"a viewer at {self.host} only shows runs: act from one at 127.0.0.1, or by forge-env live")
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise UserError("an action is one JSON object")
        return self.library.act(request, body)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser that disconnects during an answer is not an error."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version = "forge-env"
    sys_version = ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        if not self.server.knows_host(self.headers.get("Host", "")):
            return self._send(403, "text/plain", "this server has another host name\n")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and self.path.startswith("/api/"):
            return self._send(403, "text/plain", "only the page itself may send requests\n")
        url = urlsplit(self.path)
        try:
            params = dict(parse_qsl(url.query, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="replace"))
        except ValueError:
            return self._send(400, "text/plain", f"a request has at most {MAX_FIELDS} fields\n")
        if url.path == "/":
            token = params.get("token")
            if token is not None and self._is_token(token):
                cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
                return self._send(200, "text/html", render_page(), {"Set-Cookie": cookie})
            if self._has_cookie():
                return self._send(200, "text/html", render_page())
        if not self._has_cookie():
            return self._send(403, "text/plain", _NO_KEY)
        if not url.path.startswith("/api/"):
            return self._send(404, "text/plain", "there is no such page\n")
        self._reply(lambda: self.server.library.answer(url.path.removeprefix("/api/"), params))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Act on a run that goes on. Only the page sends such a request: JSON, from its own origin, with the cookie."""
        is_own = self.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        is_json = self.headers.get("Content-Type", "").partition(";")[0].strip() == "application/json"
        size = self.headers.get("Content-Length", "")
        self.close_connection = True  # what is not read is not a request
        if not (self.server.knows_host(self.headers.get("Host", "")) and is_own and is_json and self._has_cookie()):
            return self._send(403, "text/plain", "only the page itself may send requests\n")
        if not (size.isdecimal() and len(size) < 6 and int(size) <= MOST_BYTES):
            return self._send(413, "text/plain", f"an action has at most {MOST_BYTES} bytes\n")
        data = self.rfile.read(int(size))
        self._reply(lambda: self.server.act(self.path.removeprefix("/api/"), data))

    def _reply(self, ask: Callable[[], Any]) -> None:
        try:
            answer, status = ask(), 200
        except NotThere as error:
            answer, status = {"error": str(error)}, 404
        except ForgeError as error:
            answer, status = {"error": str(error)}, 400
        except Exception as error:  # only this request fails, and the page shows why
            answer, status = {"error": f"the viewer failed: {type(error).__name__}: {error}"}, 500
        self._send(status, "application/json", to_json(answer))

    def _has_cookie(self) -> bool:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return False
        cookie = cookies.get(self.server.cookie)
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.server.token.encode())

    def _send(self, status: int, kind: str, text: str, extra: dict[str, str] | None = None) -> None:
        data = text.encode("utf-8", "replace")
        self.send_response(status)
        headers = {**_HEADERS, **(extra or {}), "Content-Type": f"{kind}; charset=utf-8"}
        headers["Content-Security-Policy"] = f"{security_policy()}; frame-ancestors 'none'"
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not logged."""


def _host_and_port(header: str) -> tuple[str, str]:
    header = header.strip().lower()
    if header.startswith("["):
        name, _, rest = header[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = header.partition(":")
    return name, port
