"""Sends the spans of episodes by OTLP over HTTP, in a thread of its own: a run never waits for a collector.

It is the sink `otel`, or `otel:messages`, which sends the texts of messages, arguments and results, too.

The usual variables of OpenTelemetry hold: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT (else
http://localhost:4318), headers, certificates, time-out, OTEL_SERVICE_NAME (else forge_env), OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER, OTEL_SDK_DISABLED.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contrib.common.http_clients import is_here
from contrib.observe.spans import SCHEMA_URL, Span, episode_spans, source_of
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.utils.secret_values import masked_text

BACKLOG = 256
"""Episodes that may wait for the collector."""
TOGETHER = 32
"""Episodes of one request; with messages it is one, because each may be large."""
CLOSE_SECONDS = 10.0


class SpanSender:
    """A sink that sends episodes as spans; `episode` never waits.

    A collector that is slow or gone costs the run nothing but its spans: what it does not take is counted, and said at
    the first time and at the end.

    Args:
        mode: "messages", or "" to send no texts.
        close_seconds: how long `close` waits at most, for a collector that has answered so far.
    """

    @classmethod
    def check(cls, mode: str) -> None:
        if mode not in ("", "messages"):
            raise UserError(f"the mode is {mode}; it is messages, or none")
        try:
            names = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
            is_installed = all(importlib.util.find_spec(name) is not None for name in names)
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            raise UserError(
                "it needs OpenTelemetry's SDK and its exporter: pip install 'forge-env[otel]', or "
                "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
            )
        for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            if (protocol := os.environ.get(name, "")) not in ("", "http/protobuf"):
                raise UserError(f"{name} is {protocol}, and forge_env sends http/protobuf: unset it, or set it to that")

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        mode: str,
        say: Callable[[str], None],
        *,
        backlog: int = BACKLOG,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._source, self._messages = source_of(config), mode == "messages"
        self._say, self._seconds = say, close_seconds
        self._queue: queue.Queue[tuple[Episode, str, float] | None] = queue.Queue(backlog)
        self._exporter: Any = None
        self._collector = ""
        self._is_failing = False
        self._warnings: set[str] = set()
        self.total = self.deliveries = 0
        """The number of episodes, and of the episodes that the collector has taken."""
        self._thread = threading.Thread(target=self._run, name="opentelemetry", daemon=True)
        self._thread.start()

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Spans hold no metrics."""

    def episode(self, episode: Episode, phase: str) -> None:
        self.total += 1
        try:
            self._queue.put_nowait((episode, phase, time.time()))
        except queue.Full:
            waiting = f"{self._queue.maxsize} episodes wait for it already, so that spans are dropped"
            self._warn(f"the collector{self._collector}: {waiting}")

    def close(self) -> None:
        """Wait for a while until everything is sent."""
        deadline = time.monotonic() + (min(1.0, self._seconds) if self._is_failing else self._seconds)
        try:
            self._queue.put(None, timeout=max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and self._exporter is not None:
            self._exporter.shutdown()  # ends its pause before another attempt
        if missing := self.total - self.deliveries:
            self._say(f"warning: OpenTelemetry: the spans of {missing:,} of {self.total:,} episodes were not sent")

    def _run(self) -> None:
        try:
            exporter, tracer, buffer = self._open()
            while items := self._next():
                batches = [spans for item in items if (spans := self._spans_of(tracer, buffer, *item)) is not None]
                if batches:
                    self._send(exporter, batches)
            exporter.shutdown()
        except Exception as error:  # whatever it is, the run is worth more than its spans
            self._is_failing = True
            self._warn(f"the collector{self._collector}: {_error_text(error)}")

    def _spans_of(
        self, tracer: Any, buffer: list[Any], episode: Episode, phase: str, record_time: float
    ) -> Sequence[Any] | None:
        """Return the ended spans of an episode, or None if its record makes no spans."""
        try:
            _emit(
                tracer,
                episode_spans(episode, self._source, record_time=record_time, phase=phase, messages=self._messages),
            )
            return tuple(buffer)
        except Exception as error:  # records hold what environments have written
            self._leave_out(error)
            return None
        finally:
            buffer.clear()

    def _send(self, exporter: Any, batches: Sequence[Sequence[Any]]) -> None:
        """Send the spans of episodes together; without some of them if these cannot be encoded."""
        is_success = self._export(exporter, batches)
        if not is_success and len(sound := [spans for spans in batches if self._is_sound(spans)]) < len(batches):
            batches, is_success = sound, self._export(exporter, sound)
        self._is_failing = not is_success
        self.deliveries += len(batches) if is_success else 0
        if not is_success:
            self._warn(f"the collector{self._collector}: it did not take spans; the run goes on without them")

    def _is_sound(self, spans: Sequence[Any]) -> bool:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        try:
            encode_spans(spans)
        except Exception as error:  # the exporter refuses the spans of all episodes for it
            self._leave_out(error)
            return False
        return True

    def _leave_out(self, error: Exception) -> None:
        self._warn(f"an episode that cannot be sent as spans is left out: {_error_text(error)}", of="an episode")

    def _open(self) -> tuple[Any, Any, list[Any]]:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        # Its warnings are ours to give; handlers that the user has set up still get them.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        has_name = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        buffer: list[Any] = []

        class Collect(SpanProcessor):
            def on_end(self, span: Any) -> None:
                buffer.append(span)

        provider = TracerProvider(
            resource=Resource.create({} if has_name else {SERVICE_NAME: "forge_env"}), shutdown_on_exit=False
        )
        provider.add_span_processor(Collect())
        exporter = OTLPSpanExporter()
        collector = str(getattr(exporter, "_endpoint", ""))
        if is_here(urlsplit(collector).hostname or ""):
            session = requests.Session()
            session.trust_env = False  # no proxy
            exporter = OTLPSpanExporter(session=session)
        self._collector = f" at {masked_text(collector)}"
        self._exporter = exporter
        return exporter, provider.get_tracer("forge_env", schema_url=SCHEMA_URL), buffer

    def _next(self) -> Sequence[tuple[Episode, str, float]]:
        """Wait for episodes; nothing at the end."""
        first = self._queue.get()
        items = [] if first is None else [first]
        while items and not self._messages and len(items) < TOGETHER:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                self._queue.put_nowait(None)  # there is a place: one was taken, and nobody adds after the end
                break
            items.append(item)
        return items

    @staticmethod
    def _export(exporter: Any, batches: Sequence[Sequence[Any]]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        all_spans = [span for spans in batches for span in spans]
        return not all_spans or exporter.export(all_spans) is SpanExportResult.SUCCESS

    def _warn(self, reason: str, *, of: str = "the collector") -> None:
        if of not in self._warnings:
            self._warnings.add(of)
            self._say(f"warning: OpenTelemetry: {reason}")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _emit(tracer: Any, spans: Iterable[Span]) -> None:
    from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

    kinds = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT}
    context: Any = None
    pairs = []
    for span in spans:
        about = {"kind": kinds[span.kind], "attributes": span.attributes, "start_time": round(span.start * 1e9)}
        otel_span = tracer.start_span(span.name, context=context, **about)
        context = context or set_span_in_context(otel_span)
        end = round((span.start + span.seconds) * 1e9)
        for name, attributes in span.events:
            otel_span.add_event(name, attributes, timestamp=end)
        if span.error:
            otel_span.set_status(Status(StatusCode.ERROR, span.error))
        pairs.append((otel_span, end))
    for otel_span, end in pairs:
        otel_span.end(end_time=end)
