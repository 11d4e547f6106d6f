"""A reader that was left behind: its store keeps a little of what is owed, and the rest is gone. It is told so, and where the log
begins.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.client.event_errors import EventsOutOfRange
from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import Start
from lockstep.client.session import Session
from tests.integration.cluster import deployed
from tests.integration.event_reader import EventReader, bodies, reader

SET = "east"
STORE = ("--segment-bytes", "65536", "--owed-bytes-max", "131072")


async def publish_until_too_much_is_owed(session: Session, found: EventReader) -> int:
    """The lowest index that is left, as the group's next plan is told."""
    async with asyncio.timeout(90):
        while True:
            await session.publish("q", [bytes(10_000)] * 10)
            try:
                await found.plan()
            except EventsOutOfRange as error:
                return lowest_index(error)


def lowest_index(error: EventsOutOfRange) -> int:
    assert error.details["set_name"] == SET
    lowest = error.details["lowest_index"]
    assert isinstance(lowest, int)
    return lowest


async def is_refused(call: Callable[[], object]) -> int:
    with pytest.raises(EventsOutOfRange) as caught:
        await asyncio.to_thread(call)
    return lowest_index(caught.value)


async def test_who_comes_for_what_is_gone_hears_of_it_and_begins_where_the_log_does(tmp_path: Path) -> None:
    async with (
        deployed(tmp_path, sets={SET: ["B1"]}, brokers=1, store_arguments=STORE) as deployment,
        deployment.client() as client,
        client.session() as session,
        reader(deployment.addresses, "slow") as found,
    ):
        await session.declare_queue("q", set_name=SET)
        await found.open()
        events, begun = found.client, found.known[SET]
        lowest = await publish_until_too_much_is_owed(session, found)
        assert lowest > begun.index + 1

        def read() -> None:
            list(events.read(SET, begun, EventOffset(begun.index + 2, begun.epoch)))

        def open_at(index: int) -> None:
            events.open_subscription("late", Start.START_OFFSETS, {SET: EventOffset(index, begun.epoch)})

        assert await is_refused(read) >= lowest
        lowest = await is_refused(lambda: open_at(begun.index))
        assert set(await asyncio.to_thread(events.subscriptions)) == {"slow"}, "nothing is held for it"
        await asyncio.to_thread(open_at, lowest - 1)
        await session.publish("q", [b"the last one"])
        late = EventReader(events, "late")
        late.known = {SET: EventOffset(lowest - 1, begun.epoch)}
        seen = await late.take_until("the last", lambda seen: b"the last one" in bodies(seen, "q"))
        assert seen[0].index >= lowest
