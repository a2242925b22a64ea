"""An OTLP/HTTP receiver on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP receiver on loopback; it answers once `open` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Any] = []
        self.paths: set[str] = set()
        self.arrived, self.open = threading.Event(), threading.Event()
        self.open.set()
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[dict[str, Any]]:
        """The spans received, with their attributes as a dictionary."""
        found = []
        for request in self.requests:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        values = {item.key: _value(item.value) for item in span.attributes}
                        events = [{i.key: _value(i.value) for i in event.attributes} for event in span.events]
                        service = {i.key: _value(i.value) for i in resource.resource.attributes}["service.name"]
                        scoped = {"schema": scope.schema_url, "service": service}
                        found.append({"span": span, "events": events, "attributes": values, "name": span.name} | scoped)
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.arrived.set()
        self.server.open.wait(30)
        self.server.paths.add(self.path)
        if self.server.status == 200 and self.path == "/v1/traces":
            self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def _value(value: Any) -> Any:
    name = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if name == "array_value" else getattr(value, name)


@contextmanager
def collecting() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.open.set()
        server.shutdown()
        server.server_close()
        thread.join()
