"""A reader of committed events for tests: from plan to plan, as Spark does it, with the blocking client in a thread."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from lockstep.client.event_offsets import EventOffset, offsets_of
from lockstep.client.event_rows import Event, events_in
from lockstep.client.events import EventsClient, Start
from lockstep.wire.v1 import events_pb2 as pb


class EventReader:
    """Of one group; from `reader`."""

    def __init__(self, client: EventsClient, group: str) -> None:
        self.client = client
        self.group = group
        self.known: dict[str, EventOffset] = {}

    async def open(self, start: "Start.ValueType" = Start.START_LATEST) -> bool:
        """Whether it is new."""
        opened = await asyncio.to_thread(self.client.open_subscription, self.group, start)
        self.known = dict(opened.offsets)
        return opened.is_new

    async def plan(self, max_events: int = 0, wait_seconds: float = 0.0) -> pb.PlanResponse:
        return await asyncio.to_thread(
            self.client.plan, self.group, self.known, max_events=max_events, wait_seconds=wait_seconds
        )

    async def read(self, planned: pb.PlanResponse.PlannedRange) -> list[Event]:
        def read() -> list[Event]:
            start, end = EventOffset.of(planned.start), EventOffset.of(planned.to)
            batches = self.client.read(planned.to.resource_set, start, end, brokers=planned.brokers)
            return [event for batch in batches for event in events_in(batch)]

        return await asyncio.to_thread(read)

    async def take(self, max_events: int = 0, wait_seconds: float = 0.0) -> list[Event]:
        """The events of the next plan, and on."""
        response = await self.plan(max_events, wait_seconds)
        found = []
        for planned in response.ranges:
            events = await self.read(planned)
            assert len(events) == planned.events, f"the plan counted {planned.events} in {planned}"
            found += events
        self.known = offsets_of(planned.to for planned in response.ranges)
        return found

    async def take_until(
        self, what: str, holds: Callable[[Sequence[Event]], bool], seconds: float = 30.0
    ) -> list[Event]:
        """The events of all plans until they hold something."""
        found: list[Event] = []
        async with asyncio.timeout(seconds):
            while not holds(found):
                found += await self.take(wait_seconds=1.0)
        assert holds(found), what
        return found

    async def acknowledge(self) -> None:
        await asyncio.to_thread(self.client.acknowledge, self.group, self.known)


@contextlib.asynccontextmanager
async def reader(addresses: Sequence[str], group: str) -> AsyncIterator[EventReader]:
    with EventsClient(addresses) as client:
        yield EventReader(client, group)


def bodies(events: Sequence[Event], resource: str) -> list[bytes]:
    """What came to a queue, in order."""
    return [event.body for event in events if event.resource == resource and event.kind == "enqueue"]
