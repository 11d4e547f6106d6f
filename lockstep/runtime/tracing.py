"""OpenTelemetry traces of transactions: switched on by the standard environment variables, and nothing at all without them.

Law: nobody passes a trace on. A transaction has a name that everybody knows who takes part in it, and its trace is computed from
that: batches, frames and journals carry nothing for it, and whoever is not asked to trace pays nothing. Spans are made when
what they are about is over.

On: `OTEL_TRACES_EXPORTER` (otlp, console) or an OTLP endpoint is set, and `OTEL_SDK_DISABLED` is not true. Everything else is as
OpenTelemetry's SDK reads it: endpoints, headers, samplers, resource attributes, batches. OTLP is spoken over HTTP. Needs the
extra `lockstep[tracing]`.
"""

import functools
import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.core.ids import LogIndex, SetName, TransactionKey, transaction_id

if TYPE_CHECKING:
    from lockstep.runtime.tracing_sdk import Tracing

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_log = logging.getLogger("lockstep.tracing")
_service = "lockstep-client"


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of one transaction, and the span that everything in it is below."""

    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Span:
    """Something of a transaction that is over. Times are nanoseconds since the Unix epoch."""

    name: str
    begun_ns: int
    attributes: Mapping[str, str | int]
    links: Sequence[Trace] = ()
    is_error: bool = False
    is_root: bool = False
    """It is the span that the others of the trace are below."""


def trace_of(generation: str, transaction: str) -> Trace:
    """Of a transaction in one resource set: `set/index.epoch`, which is given out once in a generation of the cluster."""
    return _computed(f"{generation} {transaction}")


def trace_of_distributed(global_id: str) -> Trace:
    """Of a distributed transaction, by its id in hexadecimal digits."""
    return _computed(f"distributed {global_id}")


def place_of(set_name: SetName, transaction: TransactionKey, index: LogIndex) -> dict[str, str | int]:
    """Attributes of a span: what a set's log says of a transaction at `index`."""
    return {
        "lockstep.set": set_name,
        "lockstep.epoch": transaction[1],
        "lockstep.index": index,
        "lockstep.transaction": transaction_id(set_name, transaction),
    }


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Whether the standard variables switch traces on."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter != "none" and bool(exporter or any(environment.get(name) for name in _ENDPOINTS))


def start_tracing(service: str) -> None:
    """For a program, before its event loop: where traces are on, loading what they need takes longer than a step of it may.
    `service`: what the process is called in traces unless `OTEL_SERVICE_NAME` says otherwise."""
    global _service
    _service = f"lockstep-{service}"
    tracing()


@functools.cache
def tracing() -> "Tracing | None":
    """Of this process; None: traces are off, or cannot be made, which is logged. Asked once by whoever lives long."""
    if not is_wanted(os.environ):
        return None
    try:
        from lockstep.runtime.tracing_sdk import Tracing

        return Tracing.from_environment(_service)
    except ImportError as error:
        _log.warning("event=tracing_not_installed %s: pip install 'lockstep[tracing]'", error)
    except ValueError as error:
        _log.warning("event=tracing_misconfigured %s", error)
    return None


def now_ns() -> int:
    """Nanoseconds since the Unix epoch."""
    return time.time_ns()


def _computed(name: str) -> Trace:
    digest = hashlib.sha256(name.encode()).digest()
    return Trace(int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:24], "big") or 1)
