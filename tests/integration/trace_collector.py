"""A collector of traces for tests: OTLP over HTTP, as OpenTelemetry's exporters speak it."""

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Collected:
    """One span, and who sent it."""

    service: str
    name: str
    trace: bytes
    span: bytes
    parent: bytes
    links: tuple[bytes, ...]
    """Traces."""
    attributes: dict[str, str | int]
    seconds: float


class TraceCollector:
    """From `with` to its end; spans come on threads of its own."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_request(self, code: object = "-", size: object = "-") -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, transaction: str) -> list[Collected]:
        """The spans of a transaction."""
        return [
            span for span in list(self.spans) if span.attributes.get("lockstep.transaction") == transaction
        ]

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    attributes: dict[str, str | int] = {
                        one.key: one.value.string_value or one.value.int_value for one in span.attributes
                    }
                    self.spans.append(
                        Collected(
                            names["service.name"],
                            span.name,
                            span.trace_id,
                            span.span_id,
                            span.parent_span_id,
                            tuple(link.trace_id for link in span.links),
                            attributes,
                            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        )
                    )
