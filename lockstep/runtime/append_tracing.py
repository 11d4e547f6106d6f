"""Spans of the appends that make the ends of transactions durable, on a store or on a backup.

Law: frames are decoded for it, which nobody else does on the way of an append: only where traces are on.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from lockstep.core.frames import decode_records, read_frame
from lockstep.core.ids import LogIndex, SetName, TransactionKey, transaction_id
from lockstep.core.records import Commit, Prepare, Rollback
from lockstep.runtime.tracing import Span, now_ns, place_of, trace_of

if TYPE_CHECKING:
    from lockstep.runtime.tracing_sdk import Tracing

WAITING_MAX = 10_000
"""Ends that wait for being durable; beyond it the oldest are not traced."""


class _Waiting(NamedTuple):
    at: LogIndex
    transaction: TransactionKey
    what: str
    begun_ns: int


class AppendTracing:
    """Of one resource set; lives as long as its process serves the set."""

    def __init__(
        self,
        tracing: "Tracing",
        set_name: SetName,
        name: str,
        generation: Callable[[], str],
        **attributes: str,
    ) -> None:
        """`name` of the spans; `generation` of the cluster, "" while it is not known: nothing is traced then."""
        self._tracing = tracing
        self._set_name = set_name
        self._name = name
        self._generation = generation
        self._attributes = attributes
        self._waiting: deque[_Waiting] = deque(maxlen=WAITING_MAX)
        self._seen = LogIndex(0)

    def begun(self, frames: Iterable[bytes]) -> None:
        """Frames are on their way to the disk; those that are sent again count from the first time."""
        now = now_ns()
        for data in frames:
            frame = read_frame(data, b"")
            if frame.header.last <= self._seen:
                continue
            self._seen = frame.header.last
            for found in decode_records(frame):
                record = found.record
                if isinstance(record, Prepare | Commit | Rollback):
                    what = type(record).__name__.lower()
                    self._waiting.append(_Waiting(found.index, record.transaction, what, now))

    def durable(self, log_end: LogIndex) -> None:
        """All up to here is on the disk."""
        while self._waiting and self._waiting[0].at <= log_end:
            waiting = self._waiting.popleft()
            generation = self._generation()
            if generation:
                name = transaction_id(self._set_name, waiting.transaction)
                attributes = {
                    **place_of(self._set_name, waiting.transaction, waiting.at),
                    "lockstep.record": waiting.what,
                    **self._attributes,
                }
                span = Span(self._name, waiting.begun_ns, attributes)
                self._tracing.record(trace_of(generation, name), span)

    def cut(self) -> None:
        """What waits may not come to be: another epoch begins."""
        self._waiting.clear()
        self._seen = LogIndex(0)
