"""A collector of traces on loopback, which decodes what an OTLP exporter sends it.

with OtlpCollector() as collector: ... collector.url ... collector.spans()
"""

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

body_bytes_max = 16 << 20


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """One span as it came over the wire."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: it has none
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, object] = field(default_factory=dict)


class OtlpCollector:
    """Answers `POST /v1/traces`, and keeps bodies and spans."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[CollectedSpan] = []
        self.bodies: list[bytes] = []  # what came, decompressed, for who searches it for secrets
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Take one export."""
                length = min(int(self.headers["content-length"]), body_bytes_max)
                body = self.rfile.read(length)
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- its name
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "OtlpCollector":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """What `--otlp-endpoint` takes."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def spans(self) -> list[CollectedSpan]:
        """What came so far."""
        with self._lock:
            return list(self._spans)

    def take(self, body: bytes) -> None:
        """Decode one export."""
        request = ExportTraceServiceRequest.FromString(body)
        found = [
            CollectedSpan(
                service=next(
                    a.value.string_value
                    for a in group.resource.attributes
                    if a.key == "service.name"
                ),
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
                failed=span.status.code == span.status.STATUS_CODE_ERROR,
                attributes={
                    a.key: getattr(a.value, a.value.WhichOneof("value") or "string_value")
                    for a in span.attributes
                },
            )
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.bodies.append(body)
            self._spans += found
