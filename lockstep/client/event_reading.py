"""Reading a range of one resource set's events to its end, whichever brokers die on the way.

Law: what is handed on is whole. A batch that stops inside a transaction waits for the batch that ends it, so that going on with
another broker, from the last end, gives no event twice.
"""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from lockstep.client.event_brokers import EventBrokers
from lockstep.client.event_offsets import EventOffset
from lockstep.wire.v1 import events_pb2 as pb
from lockstep.wire.v1.events_pb2_grpc import EventsStub

STALL_SECONDS = 10.0
"""A stream that gives nothing for so long, though there is something to give, is taken for hung."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Range:
    """Of one resource set's events: behind `begin`, up to `end`."""

    resource_set: str
    begin: EventOffset
    end: EventOffset
    without_content: bool = False

    def request(self, at: EventOffset) -> pb.ReadEventsRequest:
        """For what is behind `at`."""
        return pb.ReadEventsRequest(
            start=at.in_set(self.resource_set),
            to=self.end.in_set(self.resource_set),
            without_content=self.without_content,
        )


def read_range(
    brokers: EventBrokers,
    wanted: Range,
    first: tuple[str, ...],
    patience_seconds: float,
    stall_seconds: float = STALL_SECONDS,
) -> Iterator[pb.EventBatch]:
    """The batches of a range, up to its end. `first`: brokers to ask before others.

    Raises `EventsOutOfRange`, `OffsetMismatch`, or `Rejected` when no broker has given anything for `patience_seconds`.
    """
    at = wanted.begin
    search = brokers.search(first, patience_seconds)
    while at.index < wanted.end.index:
        address = search.next()
        held: list[pb.EventBatch] = []
        call: Any = EventsStub(brokers.to(address)).Read(wanted.request(at))
        try:
            with _Watch(call, stall_seconds) as watch:
                while (batch := watch.next()) is not None:
                    held.append(batch)
                    if is_whole(batch):
                        at = EventOffset.of(batch.end)
                        search.succeed()
                        yield from held
                        held.clear()
        except grpc.RpcError as failure:
            search.fail(address, failure)
        else:
            if at.index < wanted.end.index:
                search.pass_by(address, "a stream that ended too early")


def is_whole(batch: pb.EventBatch) -> bool:
    """Whether no transaction of it goes on in the next one."""
    return not batch.transactions or batch.transactions[-1].index <= batch.end.index


class _Watch:
    """Cancels a call from which the reader has waited for too long; the time that the reader itself takes does not count."""

    def __init__(self, call: Any, stall_seconds: float) -> None:
        self._call = call
        self._stall_seconds = stall_seconds
        self._waits_since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep-events-watch", daemon=True)

    def next(self) -> pb.EventBatch | None:
        """The next batch; None at the end. Raises grpc.RpcError."""
        self._waits_since = time.monotonic()
        batch: pb.EventBatch | None = next(self._call, None)
        self._waits_since = None
        return batch

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._call.cancel()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            since = self._waits_since
            if since is not None and time.monotonic() - since > self._stall_seconds:
                self._call.cancel()
                return
