"""A range that one broker has in part: what it lacks comes from another one, over real calls."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from lockstep.client.event_errors import EventsOutOfRange
from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import EventsClient
from lockstep.core.cluster_map import Keys, Member, SetMap
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.cluster_view import ClusterView, MemberEntry, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Offset
from services.broker.events.journal import JournalReader
from services.broker.events.loaded_set import LoadedSet
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.service import EventsService
from services.broker.events.set_events import SetEvents
from services.broker.events.set_names import SetNames
from services.broker.events.sources import EventSources
from services.broker.forwarding import Forwarding
from services.broker.set_queries import SetQueries
from services.primary.sessions import SessionsService
from tests.unit.lockstep.core.history import SET, Log, message
from tests.unit.services.broker.events.planner_rig import nothing_decided
from tests.unit.services.broker.events.test_set_events import JournalInMemory
from tests.unit.services.broker.events.test_set_names import nothing_read

WHOLE, NEWCOMER, ELSEWHERE = BrokerId("b1"), BrokerId("b2"), BrokerId("b3")
IN_SYNC = (WHOLE, NEWCOMER)


class Sources(EventSources):
    """Of a broker whose replica and journal are a test's."""

    events: SetEvents | None = None

    def here(self, _set_name: SetName) -> SetEvents | None:
        return self.events


class Rig:
    """Two brokers in sync, of which one came with a snapshot, and one that has not got the set."""

    def __init__(self) -> None:
        self.log = Log()
        self.journals = {name: JournalInMemory(self.log.frames) for name in IN_SYNC}
        self._view = ClusterView(Keys("c"))
        members = tuple(Member(name, DiskId(f"disk of {name}"), Incarnation(name)) for name in IN_SYNC)
        set_map = SetMap(
            SET, Epoch(1), WHOLE, Incarnation(WHOLE), members, (), IN_SYNC, 1, 1, Incarnation(WHOLE)
        )
        self._view.sets[SET] = SetView(set_map)
        self._channels = Channels()
        self._servers = {name: make_server() for name in (*IN_SYNC, ELSEWHERE)}
        self.addresses: dict[BrokerId, str] = {}

    async def start(self) -> None:
        for name, server in self._servers.items():
            events = EventsService(
                self._sources(name),
                QuietMoments(self._find_none, self._channels),
                nothing_decided,
                self._channels,
            )
            server.add_generic_rpc_handlers((events.handlers(),))
            self.addresses[name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            self._view.members[name] = MemberEntry(name, self.addresses[name], Incarnation(name))
            await server.start()

    async def stop(self) -> None:
        await self._channels.close()
        for server in self._servers.values():
            await server.stop(0)

    def end(self) -> Offset:
        self.log.flush()
        return Offset(self.log.state.applied, self.log.epoch)

    async def read(self, broker: BrokerId, start: Offset) -> list[bytes]:
        """Bodies of the messages behind `start`, by a client that knows one broker."""

        def read() -> list[pb.EventBatch]:
            with EventsClient([self.addresses[broker]]) as client:
                end = self.end()
                known, to = EventOffset(start.index, start.epoch), EventOffset(end.index, end.epoch)
                return list(client.read(SET, known, to))

        return [batch.events.bodies for batch in await asyncio.to_thread(read)]

    async def tail(self, broker: BrokerId, start: Offset, events: int) -> list[bytes]:
        """The same, of the first so many live events. It goes on where a tail ends that is to be had elsewhere."""

        def read() -> list[bytes]:
            bodies: list[bytes] = []
            found, at = 0, EventOffset(start.index, start.epoch)
            with EventsClient([self.addresses[broker]]) as client:
                while found < events:
                    try:
                        for batch in client.tail(SET, at):
                            bodies.append(batch.events.bodies)
                            found, at = found + len(batch.events.kinds), EventOffset.of(batch.end)
                            if found >= events:
                                break
                    except Rejected as error:
                        if error.code is not ErrorCode.UNAVAILABLE:
                            raise
            return bodies

        self.log.flush()
        return await asyncio.to_thread(read)

    def _sources(self, name: BrokerId) -> Sources:
        driver = Driver()
        sources = Sources(
            name,
            self._view,
            driver,
            JournalReader(self._channels, "127.0.0.1:1"),
            Forwarding(name, self._view, self._channels),
            SetQueries(SessionsService(driver, ServingRights(), lambda _: ())),
            SetNames(self._view, nothing_read),
        )
        if name in self.journals:
            sources.events = SetEvents(SET, self._loaded, self.journals[name])
        return sources

    def _loaded(self) -> LoadedSet:
        return LoadedSet(self.log.state, self.log.state.applied, self.log.epoch)

    @staticmethod
    async def _find_none() -> list[str]:
        return []


@pytest_asyncio.fixture
async def rig() -> AsyncGenerator[Rig]:
    rig = Rig()
    await rig.start()
    yield rig
    await rig.stop()


def write(rig: Rig) -> Offset:
    """A transaction that had begun before the newcomer's snapshot; where its reader is."""
    queue = rig.log.queue("q")
    key = rig.log.begin()
    rig.log.publish(message((queue,), b"[of the transaction]"), transaction=key)
    start = rig.end()
    rig.journals[NEWCOMER].lowest = LogIndex(start.index + 1)
    rig.log.publish(message((queue,), b"[before its end]"))
    rig.log.commit(key)
    rig.log.publish(message((queue,), b"[last]"))
    return start


@pytest.mark.parametrize("broker", [WHOLE, NEWCOMER, ELSEWHERE])
async def test_what_a_broker_has_not_got_whole_comes_from_another_whoever_is_asked(
    rig: Rig, broker: BrokerId
) -> None:
    start = write(rig)
    bodies = await rig.read(broker, start)
    assert b"".join(bodies) == b"[before its end][of the transaction][last]"
    assert b"".join(await rig.tail(broker, start, 3)) == b"".join(bodies)


@pytest.mark.parametrize("broker", [WHOLE, NEWCOMER, ELSEWHERE])
async def test_a_reader_of_what_nobody_has_whole_hears_where_he_may_go_on(rig: Rig, broker: BrokerId) -> None:
    start = write(rig)
    rig.journals[WHOLE].lowest = rig.journals[NEWCOMER].lowest
    with pytest.raises(EventsOutOfRange) as caught:
        await rig.read(broker, start)
    lowest = caught.value.details["lowest_index"]
    assert lowest == rig.end().index
    assert await rig.read(broker, Offset(LogIndex(lowest - 1), Epoch(1))) == [b"[last]"]
