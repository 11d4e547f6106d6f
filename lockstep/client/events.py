"""The client of committed events (DESIGN 7), for programs without an event loop: Spark's workers, scripts, people.

Law: every call may be repeated, and is, at one broker after the other, until its patience ends. A range that was planned is read
the same by whoever reads it, however often.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc

from lockstep.client.event_brokers import EventBrokers
from lockstep.client.event_errors import event_error
from lockstep.client.event_offsets import EventOffset, Offsets, as_messages, offsets_of
from lockstep.client.event_reading import Range, is_whole, read_range
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.channels import ChannelTls
from lockstep.wire.v1 import events_pb2 as pb
from lockstep.wire.v1.events_pb2_grpc import EventsStub

CALL_SECONDS = 10.0
"""One try at one broker, beside the time that it was asked to wait: a plan asks every resource set."""
PATIENCE_SECONDS = 60.0
"""All tries without an answer: several failovers."""
WAIT_SECONDS_MAX = 60.0
"""Of a plan for something new, as the service has it."""

Start = pb.OpenSubscriptionRequest.Start


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where a group stands."""

    offsets: Mapping[str, EventOffset]
    is_new: bool


class EventsClient:
    """Lives from its making to `close`, or as `with`; for one thread at a time. It connects when it is first asked something."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        tls: ChannelTls | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """`addresses`: host:port of brokers; a string has them separated by commas. `tls`: None where brokers speak none."""
        listed = addresses.split(",") if isinstance(addresses, str) else addresses
        self._brokers = EventBrokers([one.strip() for one in listed if one.strip()], tls)
        self._patience_seconds = patience_seconds

    def close(self) -> None:
        self._brokers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_subscription(
        self,
        group: str,
        start: "pb.OpenSubscriptionRequest.Start.ValueType" = Start.START_LATEST,
        offsets: Offsets | None = None,
    ) -> Subscription:
        """Opens a group, or finds it where it stands. `offsets`: with START_OFFSETS. One that begins far back takes as long as
        brokers take to look at what is committed since.

        Raises `EventsOutOfRange` for a group that was left behind, and where one is to begin with what is gone.
        """
        request = pb.OpenSubscriptionRequest(
            group=group, start=start, offsets=as_messages(offsets or {}), asks_again=True
        )

        def call(channel: grpc.Channel) -> pb.OpenSubscriptionResponse:
            return EventsStub(channel).OpenSubscription(request, timeout=CALL_SECONDS)

        answer = self._brokers.call(call, self._patience_seconds, lambda answer: answer.is_looking)
        return Subscription(offsets_of(answer.offsets), answer.is_new)

    def close_subscription(self, group: str) -> None:
        """Nothing is kept for this group any more."""
        self._call("CloseSubscription", pb.CloseSubscriptionRequest(group=group))

    def subscriptions(self) -> dict[str, dict[str, EventOffset]]:
        """What each group has acknowledged."""
        return {one.group: offsets_of(one.acknowledged) for one in self._listed()}

    def left_behind(self) -> dict[str, list[str]]:
        """Groups that were left behind, each with the resource sets that did so. They go nowhere until they are closed."""
        return {one.group: list(one.left_behind) for one in self._listed() if one.left_behind}

    def plan(
        self,
        group: str,
        known: Offsets,
        *,
        max_events: int = 0,
        wait_seconds: float = 0.0,
        hold_seconds_max: float = 0.0,
    ) -> pb.PlanResponse:
        """A consistent cut behind `known`; after `wait_seconds` without anything new, `known` again. It may lie before what is
        committed by now: `has_more` says so.

        `max_events` 0: no limit. `hold_seconds_max`: of a transaction whose sibling has no outcome; 0: for ever.
        """
        wait_seconds = min(wait_seconds, WAIT_SECONDS_MAX)
        request = pb.PlanRequest(
            group=group,
            known=as_messages(known),
            max_events=max_events,
            wait_ms=int(1000 * wait_seconds),
            hold_ms_max=int(1000 * hold_seconds_max),
        )
        answer: pb.PlanResponse = self._call("Plan", request, wait_seconds)
        return answer

    def committed(self, plan: pb.PlanResponse) -> dict[str, int]:
        """Up to which index each resource set of a plan is committed now, as one of its brokers knows."""
        return {
            part.to.resource_set: self._brokers.committed(
                part.to.resource_set, part.brokers, self._patience_seconds
            )
            for part in plan.ranges
        }

    def read(
        self,
        resource_set: str,
        begin: EventOffset,
        end: EventOffset,
        *,
        brokers: Sequence[str] = (),
        without_content: bool = False,
    ) -> Iterator[pb.EventBatch]:
        """The events behind `begin`, up to `end`, in order. `brokers`: whom to ask before others.

        Raises `EventsOutOfRange`, `OffsetMismatch`, or `Rejected` when nobody has given anything within the patience.
        """
        wanted = Range(resource_set, begin, end, without_content)
        return read_range(self._brokers, wanted, tuple(brokers), self._patience_seconds)

    def read_plan(self, plan: pb.PlanResponse, *, without_content: bool = False) -> Iterator[pb.EventBatch]:
        """All events of a plan, one resource set after the other. Raises as `read`."""
        for part in plan.ranges:
            begin, end = EventOffset.of(part.start), EventOffset.of(part.to)
            if begin != end:
                yield from self.read(
                    part.to.resource_set, begin, end, brokers=part.brokers, without_content=without_content
                )

    def acknowledge(self, group: str, offsets: Offsets) -> None:
        """The group is done with everything up to these offsets."""
        request = pb.AcknowledgeEventsRequest(group=group, offsets=as_messages(offsets))
        self._call("Acknowledge", request)

    def tail(
        self, resource_set: str, begin: EventOffset | None = None, *, without_content: bool = False
    ) -> Iterator[pb.EventBatch]:
        """Live events of one set, from now on or behind `begin`, whole transactions at a time; it ends when the broker does.

        Whoever wants to go on calls it again with the last batch's end. Raises what `read` raises.
        """
        search = self._brokers.search((), self._patience_seconds)
        while True:
            address = search.next()
            request = pb.TailRequest(resource_set=resource_set, without_content=without_content)
            if begin is not None:
                request.start.CopyFrom(begin.in_set(resource_set))
            is_begun = False
            held: list[pb.EventBatch] = []
            try:
                for batch in EventsStub(self._brokers.to(address)).Tail(request):
                    is_begun = True
                    held.append(batch)
                    if is_whole(batch):
                        yield from held
                        held.clear()
                if held:
                    raise Rejected(
                        ErrorCode.UNAVAILABLE, "the tail ended inside a transaction", address=address
                    )
                return
            except grpc.RpcError as failure:
                if is_begun:
                    error, _ = event_error(failure)
                    raise error from failure
                search.fail(address, failure)

    def _listed(self) -> Sequence[pb.ListSubscriptionsResponse.Subscription]:
        answer: pb.ListSubscriptionsResponse = self._call("ListSubscriptions", pb.ListSubscriptionsRequest())
        return answer.subscriptions

    def _call(self, method: str, request: Any, wait_seconds: float = 0.0) -> Any:
        def call(channel: grpc.Channel) -> Any:
            return getattr(EventsStub(channel), method)(request, timeout=CALL_SECONDS + wait_seconds)

        return self._brokers.call(call, self._patience_seconds + wait_seconds)
