"""An events service over lists of transactions: honest about order, ranges and wholeness, and hurt at will.

Law: the same range gives the same events, however it is cut. What a test does to it (`cut_after`, `is_away`) is what a broker
that dies or is away does to its clients.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc

from lockstep.core.errors import ErrorCode
from lockstep.runtime.status import CODE_KEY
from lockstep.wire.v1 import cluster_pb2
from lockstep.wire.v1 import events_pb2 as pb
from lockstep.wire.v1.events_pb2_grpc import EventsServicer, add_EventsServicer_to_server

ENQUEUE, DEQUEUE = pb.EventBatch.KIND_ENQUEUE, pb.EventBatch.KIND_DEQUEUE
BEGIN_MS = 1_700_000_000_000
_FOREVER_MS = 1 << 60


@dataclass(frozen=True)
class Event:
    """One effect on a queue. `position` None: the place of the event itself."""

    kind: int
    queue: str
    body: bytes = b""
    position: tuple[int, int] | None = None
    reason: int = 0
    source: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Transaction:
    """What one record committed in one resource set."""

    index: int
    events: tuple[Event, ...]
    time_ms: int = 0
    """0: BEGIN_MS and as many milliseconds as the index."""
    epoch: int = 1
    global_id: bytes = b""
    resource_sets: int = 1
    xid_format: int = 0x4C4B5354
    rollback_reason: int = 0
    is_command: bool = False
    """Outside any transaction."""
    session: int = 3
    duration_ms: int = 2

    @property
    def commit_time_ms(self) -> int:
        return self.time_ms or BEGIN_MS + self.index


Logs = dict[str, list[Transaction]]


def enqueue(queue: str, body: bytes) -> Event:
    return Event(ENQUEUE, queue, body)


def dequeue(queue: str, index: int, ordinal: int) -> Event:
    return Event(DEQUEUE, queue, position=(index, ordinal), reason=1)


@dataclass
class FakeEvents(EventsServicer):
    """One broker; several of them may share `logs` and `groups`."""

    logs: Logs
    groups: dict[str, dict[str, pb.EventOffset]] = field(default_factory=dict)
    left_behind: dict[str, list[str]] = field(default_factory=dict)
    """Groups that were, each with the resource sets."""
    batch_events: int = 3
    cut_after: int = 0
    """Reads and tails end with UNAVAILABLE after so many batches; 0: never."""
    is_cut_politely: bool = False
    """They end so as if all was there."""
    is_away: bool = False
    has_not_heard: bool = False
    """Of a set that a reader knows."""
    stalls_for: float = 0.0
    """Seconds before the first batch of a read."""
    floor: int = 0
    """What is behind lower offsets is gone."""
    asked: list[pb.ReadEventsRequest] = field(default_factory=list)
    plans: list[pb.PlanRequest] = field(default_factory=list)
    least_events: int = 0
    """Plans of fewer get nowhere, as if transactions lay across every cut that is so near."""
    holds: set[str] = field(default_factory=set)
    """Resource sets of which a plan gives nothing new."""
    limited_holds: set[str] = field(default_factory=set)
    """The same of plans with a limit: what lets them go lies beyond it."""
    unlimited_holds: set[str] = field(default_factory=set)
    """The same of plans without: what lets them go lies beyond what these look at."""
    described_max: int = 0
    """Plans look no further than so many transactions of each set; 0: as far as there are any."""
    other_records: int = 0
    """Committed in each set behind its transactions."""
    has_replicas: bool = True
    unheard: set[str] = field(default_factory=set)
    """Sets that plans lack unless their readers know them."""
    before_plan: Callable[[], None] | None = None
    looks_left: int = 0
    """So often a group that is opened has not begun yet."""

    def OpenSubscription(
        self, request: pb.OpenSubscriptionRequest, context: Any
    ) -> pb.OpenSubscriptionResponse:
        self._check(context)
        if self.looks_left:
            assert request.asks_again
            self.looks_left -= 1
            return pb.OpenSubscriptionResponse(is_looking=True)
        is_new = request.group not in self.groups
        if is_new:
            begins = {name: self._end(name) for name in self.logs}
            if request.start != request.START_LATEST:
                begins = {name: pb.EventOffset(resource_set=name) for name in self.logs}
            self.groups[request.group] = begins | {one.resource_set: one for one in request.offsets}
        return pb.OpenSubscriptionResponse(offsets=self._group(request.group, context), is_new=is_new)

    def CloseSubscription(self, request: Any, context: Any) -> pb.CloseSubscriptionResponse:
        self._group(request.group, context)
        del self.groups[request.group]
        return pb.CloseSubscriptionResponse()

    def ListSubscriptions(self, request: Any, context: Any) -> pb.ListSubscriptionsResponse:
        self._check(context)
        return pb.ListSubscriptionsResponse(
            subscriptions=[
                pb.ListSubscriptionsResponse.Subscription(
                    group=name, acknowledged=offsets.values(), left_behind=self.left_behind.get(name)
                )
                for name, offsets in sorted(self.groups.items())
            ]
        )

    def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        """Cuts by commit time, never inside a transaction; with no limit everything."""
        self.plans.append(request)
        if self.before_plan is not None:
            self.before_plan()
        deadline = time.monotonic() + request.wait_ms / 1000
        while True:
            response = self._plan(request, context)
            if any(one.events for one in response.ranges) or time.monotonic() >= deadline:
                return response
            time.sleep(0.02)

    def _plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanResponse:
        self._check(context)
        begins = {one.resource_set: one for one in self._group(request.group, context)}
        begins |= {name: pb.EventOffset(resource_set=name) for name in self.logs if name not in begins}
        begins = {name: one for name, one in begins.items() if name not in self.unheard}
        begins |= {one.resource_set: one for one in request.known}
        held = self.holds | (self.limited_holds if request.max_events else self.unlimited_holds)
        described_ms = min((self._described_ms(name, one.index) for name, one in begins.items()), default=0)
        ahead = sorted(
            (one.commit_time_ms, name, one)
            for name, log in self.logs.items()
            if name in begins and name not in held
            for one in log
            if begins[name].index < one.index and one.commit_time_ms <= described_ms
        )
        is_too_little = bool(ahead) and 0 < request.max_events < self.least_events
        ahead = [] if is_too_little else ahead
        ends = dict(begins)
        events = dict.fromkeys(begins, 0)
        last_ms = 0
        for time_ms, name, one in ahead:
            if request.max_events and sum(events.values()) >= request.max_events and time_ms > last_ms:
                break
            last_ms = time_ms
            ends[name] = pb.EventOffset(resource_set=name, index=one.index, epoch=one.epoch)
            events[name] += len(one.events)
        has_more = any(end.index < self.committed(name) for name, end in ends.items())
        response = pb.PlanResponse(time_ms=last_ms, has_more=has_more)
        for name in sorted(begins):
            planned = response.ranges.add(
                to=ends[name], events=events[name], held_since_ms=BEGIN_MS if name in held else 0
            )
            planned.start.CopyFrom(begins[name])
            between = [
                one.index for one in self.logs[name] if begins[name].index < one.index < ends[name].index
            ]
            planned.splits.extend(
                pb.EventOffset(resource_set=name, index=index, epoch=1) for index in between[9::10]
            )
        return response

    def Read(self, request: pb.ReadEventsRequest, context: Any) -> Iterator[pb.EventBatch]:
        self._check(context)
        self.asked.append(request)
        begin = request.start
        log = self.logs.get(begin.resource_set or request.to.resource_set)
        if log is None:
            self._abort(context, grpc.StatusCode.NOT_FOUND, ErrorCode.UNKNOWN_SET, "no such resource set")
        if begin.index < self.floor:
            self._abort(context, grpc.StatusCode.OUT_OF_RANGE, ErrorCode.OUT_OF_RANGE, "it is gone")
        at = next((one for one in log if one.index == begin.index), None)
        if at is not None and at.epoch != begin.epoch:
            self._abort(
                context, grpc.StatusCode.FAILED_PRECONDITION, ErrorCode.WRONG_EPOCH, "another log's offset"
            )
        time.sleep(self.stalls_for)
        chosen = [one for one in log if begin.index < one.index <= request.to.index]
        batches = batches_of(chosen, request.to, begin, self.batch_events, request.without_content)
        yield from self._until_cut(batches, context)

    def Acknowledge(self, request: pb.AcknowledgeEventsRequest, context: Any) -> Any:
        self._group(request.group, context)
        self.groups[request.group] |= {one.resource_set: one for one in request.offsets}
        return pb.AcknowledgeEventsResponse()

    def Tail(self, request: pb.TailRequest, context: Any) -> Iterator[pb.EventBatch]:
        self._check(context)
        begin = request.start
        chosen = [one for one in self.logs[request.resource_set] if one.index > begin.index]
        end = self._end(request.resource_set)
        batches = batches_of(chosen, end, begin, self.batch_events, request.without_content)
        yield from self._until_cut(batches, context)

    def DescribeLog(self, request: Any, context: Any) -> pb.DescribeLogResponse:
        self._abort(context, grpc.StatusCode.UNIMPLEMENTED, ErrorCode.NOT_IMPLEMENTED, "between brokers only")

    def ChangeSubscription(self, request: Any, context: Any) -> pb.ChangeSubscriptionResponse:
        self._abort(context, grpc.StatusCode.UNIMPLEMENTED, ErrorCode.NOT_IMPLEMENTED, "between brokers only")

    def FindBranches(self, request: Any, context: Any) -> pb.FindBranchesResponse:
        self._abort(context, grpc.StatusCode.UNIMPLEMENTED, ErrorCode.NOT_IMPLEMENTED, "between brokers only")

    def committed(self, name: str) -> int:
        """Its commit index."""
        return self._end(name).index + self.other_records

    def _described_ms(self, name: str, after: int) -> int:
        """Up to when a plan knows what a set has behind `after`."""
        ahead = [one for one in self.logs[name] if one.index > after]
        is_all = not self.described_max or len(ahead) <= self.described_max
        return _FOREVER_MS if is_all else ahead[self.described_max - 1].commit_time_ms

    def _until_cut(self, batches: Iterator[pb.EventBatch], context: Any) -> Iterator[pb.EventBatch]:
        for number, batch in enumerate(batches, 1):
            yield batch
            if number == self.cut_after and self.is_cut_politely:
                return
            if number == self.cut_after:
                self._abort(context, grpc.StatusCode.UNAVAILABLE, ErrorCode.UNAVAILABLE, "cut")

    def _end(self, name: str) -> pb.EventOffset:
        log = self.logs[name]
        index, epoch = (log[-1].index, log[-1].epoch) if log else (0, 0)
        return pb.EventOffset(resource_set=name, index=index, epoch=epoch)

    def _group(self, group: str, context: Any) -> list[pb.EventOffset]:
        self._check(context)
        if group not in self.groups:
            self._abort(context, grpc.StatusCode.NOT_FOUND, ErrorCode.NOT_FOUND, f"no group {group}")
        stands = {name: pb.EventOffset(resource_set=name) for name in self.logs} | self.groups[group]
        return [offset for _, offset in sorted(stands.items())]

    def _check(self, context: Any) -> None:
        if self.is_away:
            self._abort(context, grpc.StatusCode.UNAVAILABLE, ErrorCode.UNAVAILABLE, "away")
        if self.has_not_heard:
            self._abort(context, grpc.StatusCode.NOT_FOUND, ErrorCode.UNKNOWN_SET, "no resource set 'north'")

    @staticmethod
    def _abort(context: Any, status: grpc.StatusCode, code: ErrorCode, message: str) -> NoReturn:
        context.set_trailing_metadata(((CODE_KEY, str(int(code))),))
        context.abort(status, message)
        raise AssertionError("abort of a call returned")


def batches_of(
    transactions: Sequence[Transaction],
    end: pb.EventOffset,
    begin: pb.EventOffset,
    events_max: int,
    without_content: bool = False,
) -> Iterator[pb.EventBatch]:
    """At most `events_max` events in each, so that long transactions go on in the next batch."""
    pieces = [(one, place, event) for one in transactions for place, event in enumerate(one.events)]
    covered = begin
    for first in range(0, len(pieces), events_max):
        batch = pb.EventBatch()
        chosen = pieces[first : first + events_max]
        for one, place, event in chosen:
            if not batch.transactions or batch.transactions[-1].index != one.index:
                _add_transaction(batch, end.resource_set, one, place)
            batch.transactions[-1].events_here += 1
            _add_event(batch, one, place, event, without_content)
        for one, place, _ in chosen:
            if place == len(one.events) - 1:
                covered = pb.EventOffset(resource_set=end.resource_set, index=one.index, epoch=one.epoch)
        batch.end.CopyFrom(covered)
        batch.end.resource_set = end.resource_set
        if first + events_max >= len(pieces):
            batch.end.CopyFrom(end)
        yield batch
    if not pieces:
        yield pb.EventBatch(end=end)


def _add_transaction(batch: pb.EventBatch, resource_set: str, one: Transaction, place: int) -> None:
    batch.transactions.add(
        index=one.index,
        epoch=one.epoch,
        commit_time_ms=one.commit_time_ms,
        duration_ms=one.duration_ms,
        transaction_id="" if one.is_command else f"{resource_set}/{one.index - 1}.{one.epoch}",
        xid_format=one.xid_format if one.global_id else 0,
        global_id=one.global_id,
        branch_id=b"\x00" if one.global_id else b"",
        resource_sets=one.resource_sets,
        events=len(one.events),
        first_place=place,
        rollback_reason=one.rollback_reason,
        session=one.session,
    )


def _add_event(
    batch: pb.EventBatch, one: Transaction, place: int, event: Event, without_content: bool
) -> None:
    names = [known.name for known in batch.resources]
    if event.queue not in names:
        names.append(event.queue)
        batch.resources.add(id=sum(event.queue.encode()), name=event.queue)
    index, ordinal = event.position if event.position is not None else (one.index, place)
    events = batch.events
    events.kinds.append(event.kind)
    events.resources.append(names.index(event.queue))
    events.position_indexes.append(index)
    events.position_ordinals.append(ordinal)
    events.reasons.append(event.reason)
    events.source_indexes.append(event.source[0])
    events.source_ordinals.append(event.source[1])
    events.expires_ms.append(0)
    body = b"" if without_content else event.body
    events.properties_lengths.append(0)
    events.body_lengths.append(len(body))
    events.bodies += body


class FakeCluster:
    """Says which brokers there are, and what they have committed."""

    def __init__(self) -> None:
        self.members: list[str] = []

    def handler(self, broker: FakeEvents) -> grpc.GenericRpcHandler:
        """Of one broker's service."""

        def locate(request: cluster_pb2.LocateRequest, context: Any) -> cluster_pb2.LocateResponse:
            # A set that is served has at least the record of its epoch.
            committed = max(broker.committed(request.name), 1) if broker.has_replicas else 0
            return cluster_pb2.LocateResponse(resource_set=request.name, commit_index=committed)

        status: Any = grpc.unary_unary_rpc_method_handler(
            self._status, response_serializer=cluster_pb2.GetClusterStatusResponse.SerializeToString
        )
        located: Any = grpc.unary_unary_rpc_method_handler(
            locate,
            request_deserializer=cluster_pb2.LocateRequest.FromString,
            response_serializer=cluster_pb2.LocateResponse.SerializeToString,
        )
        handlers = {"GetStatus": status, "Locate": located}
        return grpc.method_handlers_generic_handler("lockstep.wire.v1.Cluster", handlers)

    def _status(self, request: bytes, context: Any) -> cluster_pb2.GetClusterStatusResponse:
        return cluster_pb2.GetClusterStatusResponse(
            members=[
                cluster_pb2.GetClusterStatusResponse.Member(broker=f"B{number}", address=address)
                for number, address in enumerate(self.members, 1)
            ]
        )


class Serving:
    """Brokers, each on a port of its own, until the end of the `with`."""

    def __init__(self, *brokers: FakeEvents) -> None:
        self.brokers = brokers
        self.cluster = FakeCluster()
        self.addresses: list[str] = []
        self._servers: list[grpc.Server] = []

    def __enter__(self) -> Self:
        for broker in self.brokers:
            server = grpc.server(
                ThreadPoolExecutor(max_workers=8), options=(("grpc.http2.max_ping_strikes", 0),)
            )
            add_EventsServicer_to_server(broker, server)
            server.add_generic_rpc_handlers((self.cluster.handler(broker),))
            self.addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            self._servers.append(server)
        self.cluster.members = list(self.addresses)
        return self

    def stop(self, place: int) -> None:
        self._servers[place].stop(grace=None).wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.stop(grace=None).wait()
