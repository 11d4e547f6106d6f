"""Traces: when they are on, which trace a transaction has, and that nothing is loaded for them when they are off."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lockstep.runtime.process import MALLOC_ENVIRONMENT
from lockstep.runtime.tracing import Span, is_wanted, now_ns, trace_of, trace_of_distributed
from lockstep.runtime.tracing_sdk import Ids, Tracing


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://there"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_SERVICE_NAME": "orders"}, False),
    ],
)
def test_the_standard_variables_switch_it_on(environment: dict[str, str], expected: bool) -> None:
    assert is_wanted(environment) is expected


def test_names_of_transactions_come_again_in_another_cluster_and_traces_do_not() -> None:
    assert trace_of("one", "east/9.1") == trace_of("one", "east/9.1")
    found = {
        trace_of("one", "east/9.1"),
        trace_of("other", "east/9.1"),
        trace_of("one", "east/10.1"),
        trace_of_distributed("00"),
        trace_of_distributed("01"),
    }
    assert len({trace.trace_id for trace in found}) == len({trace.span_id for trace in found}) == 5


class Hanging(SpanExporter):
    """A collector that takes everything and answers nothing."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun.set()
        self.end.wait()
        return SpanExportResult.SUCCESS


def test_a_collector_that_does_not_answer_does_not_keep_a_process_from_ending() -> None:
    exporter, ids = Hanging(), Ids()
    provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    traces = Tracing(provider, ids)
    traces.record(trace_of("one", "east/9.1"), Span("transaction", now_ns(), {}, is_root=True))
    traces.close()
    assert exporter.begun.wait(30)
    exporter.end.set()


def test_a_root_has_the_ids_of_its_trace_and_others_are_below_it() -> None:
    exporter, ids = InMemorySpanExporter(), Ids()
    provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traces, trace = Tracing(provider, ids), trace_of("one", "east/9.1")
    traces.record(trace, Span("store", now_ns(), {}))
    traces.record(trace, Span("transaction", now_ns(), {}, is_root=True))
    below, root = exporter.get_finished_spans()
    assert (root.context.trace_id, root.context.span_id) == (trace.trace_id, trace.span_id)
    assert root.parent is None and below.parent is not None
    assert (below.context.trace_id, below.parent.span_id) == (trace.trace_id, trace.span_id)
    assert below.context.span_id != trace.span_id
    traces.close()


def test_nothing_is_loaded_for_it_where_it_is_off() -> None:
    program = (
        "import sys, lockstep.client.client, services.broker.server, services.store.server, services.proxy.server\n"
        "from lockstep.runtime.tracing import tracing\n"
        "assert tracing() is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", program), env={}, cwd=".", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_program_loads_it_before_its_event_loop() -> None:
    program = (
        "import asyncio, os, sys\n"
        "from lockstep.runtime.process import run_program\n"
        "from lockstep.runtime import tracing\n"
        "async def main():\n"
        "    assert tracing.tracing.cache_info().currsize == 1\n"
        "    before = set(sys.modules)\n"
        "    assert tracing.tracing() is not None\n"
        "    assert set(sys.modules) == before\n"
        "    return 7\n"
        "run_program(main, traced_as='test')\n"
    )
    environment = {"OTEL_TRACES_EXPORTER": "console", **MALLOC_ENVIRONMENT}
    done = subprocess.run(
        (sys.executable, "-c", program), env=environment, cwd=".", capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done.stderr
