"""Traces: when they are on, which trace a transaction has, and that nothing is loaded for them when they are off."""

import subprocess
import sys

import pytest

from lockstep.runtime.tracing import is_wanted, trace_of, trace_of_distributed


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
