"""What gives spans to OpenTelemetry's SDK; imported only where traces are on.

Law: an application's own provider is left alone: spans of Lockstep go where the environment says, with ids that are computed.
"""

import atexit
import os
import threading
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from lockstep.runtime.tracing import Span, Trace, now_ns

CLOSE_SECONDS = 2.0
"""A process that ends waits so long for the collector: less than its supervisor waits for it."""


class Ids(RandomIdGenerator):
    """Gives a root span the ids of its trace, everything else ids of chance."""

    def __init__(self) -> None:
        self.root: Trace | None = None

    def generate_span_id(self) -> int:
        return self.root.span_id if self.root is not None else super().generate_span_id()

    def generate_trace_id(self) -> int:
        return self.root.trace_id if self.root is not None else super().generate_trace_id()


class Tracing:
    """Lives as long as the process; used from its event loop."""

    def __init__(self, provider: TracerProvider, ids: Ids) -> None:
        self._provider = provider
        self._ids = ids
        self._tracer = provider.get_tracer("lockstep")
        self._is_closing, self._is_closed = threading.Event(), threading.Event()
        # Now, as no thread can be started while the process ends.
        threading.Thread(target=self._close_when_asked, name="end of traces", daemon=True).start()

    @classmethod
    def from_environment(cls, service: str) -> "Tracing":
        """As the standard variables say; exporters' threads run from now on. Raises ValueError for an exporter that is none."""
        ids = Ids()
        name = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
        # Not on exit: that would wait as long for a collector that is away as for one that answers.
        provider = TracerProvider(resource=Resource.create(name), id_generator=ids, shutdown_on_exit=False)
        for exporter in _exporters(os.environ.get("OTEL_TRACES_EXPORTER", "") or "otlp"):
            provider.add_span_processor(BatchSpanProcessor(exporter))
        made = cls(provider, ids)
        atexit.register(made.close)
        return made

    def current(self) -> SpanContext | None:
        """The span of the application around this call, for a link to it."""
        context = get_current_span().get_span_context()
        return context if context.is_valid else None

    def record(self, trace: Trace, span: Span, around: SpanContext | None = None) -> None:
        """A span that ends now. `around`: the application's."""
        links = [Link(self._context_of(link)) for link in span.links]
        if around is not None:
            links.append(Link(around))
        above = None if span.is_root else NonRecordingSpan(self._context_of(trace))
        parent = Context() if above is None else set_span_in_context(above, Context())
        self._ids.root = trace if span.is_root else None
        try:
            made = self._tracer.start_span(
                span.name,
                context=parent,
                kind=SpanKind.CLIENT if span.is_root else SpanKind.SERVER,
                attributes=dict(span.attributes),
                links=links,
                start_time=span.begun_ns,
            )
        finally:
            self._ids.root = None
        if span.is_error:
            made.set_status(Status(StatusCode.ERROR))
        made.end(end_time=max(now_ns(), span.begun_ns))

    def close(self) -> None:
        """Sends what waits to be sent, if that takes no longer than `CLOSE_SECONDS`. May be called again."""
        self._is_closing.set()
        self._is_closed.wait(CLOSE_SECONDS)

    def _close_when_asked(self) -> None:
        self._is_closing.wait()
        self._provider.shutdown()
        self._is_closed.set()

    def _context_of(self, trace: Trace) -> SpanContext:
        """The sampler decides by the trace's id where it decides by anything: every process comes to the same."""
        sampled = self._provider.sampler.should_sample(None, trace.trace_id, "transaction").decision
        flags = TraceFlags.SAMPLED if sampled is Decision.RECORD_AND_SAMPLE else TraceFlags.DEFAULT
        return SpanContext(trace.trace_id, trace.span_id, is_remote=True, trace_flags=TraceFlags(flags))


def _exporters(names: str) -> Iterable[SpanExporter]:
    for name in names.split(","):
        match name.strip().lower():
            case "otlp":
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                yield OTLPSpanExporter()
            case "console":
                yield ConsoleSpanExporter()
            case other:
                raise ValueError(f"OTEL_TRACES_EXPORTER: otlp, console or none, not {other!r}")
