"""Data loss was accepted (R7), and a reader had more than was kept: it hears so whatever it asks, and nothing is skipped."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.effects import AnyEffect, CloseClientStream, TellClient
from lockstep.core.errors import ErrorCode, LockstepError
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.inputs import AnyInput, ClientSaid, ClientStreamClosed, Tick
from lockstep.core.records import OpenSubscription
from lockstep.core.requests import SubscriptionChange
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from lockstep.runtime.status import error_from
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Offset
from services.broker.events.journal import JournalReader
from services.broker.events.loaded_set import LoadedSet
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.service import EventsService
from services.broker.events.set_events import SetEvents
from services.broker.events.set_names import SetNames
from services.broker.events.sources import EventSources, wire_offset
from services.broker.forwarding import Forwarding
from services.broker.set_queries import SetQueries
from services.primary.sessions import SessionsService
from tests.unit.services.broker.events.planner_rig import nothing_decided
from tests.unit.services.broker.events.test_set_events import JournalInMemory
from tests.unit.services.broker.events.test_set_names import nothing_read
from tests.unit.services.primary.primary_rig import OWN, SET, Rig
from tests.unit.services.primary.test_subscribing import Caller

GROUP = "spark"
_SAID = TellClient | CloseClientStream


class Reign(Rig):
    """A reign whose clients are those of the test's driver."""

    def __init__(self, predecessor: Rig, *, holds_store: bool = False) -> None:
        self.said: list[AnyEffect] = []
        super().__init__(predecessor=predecessor, is_restarted=True, holds_store=holds_store)

    def perform(self, effects: list[AnyEffect]) -> None:
        self.said += [effect for effect in effects if isinstance(effect, _SAID)]
        super().perform([effect for effect in effects if not isinstance(effect, _SAID)])

    def handle(self, given: AnyInput, _: Now, more_follow: bool = False) -> list[AnyEffect]:
        if isinstance(given, ClientSaid | ClientStreamClosed):
            self.feed(given)
        said, self.said = self.said, []
        return said


class Sources(EventSources):
    """With a replica that a test gives."""

    events: SetEvents

    def here(self, set_name: SetName) -> SetEvents:
        return self.events


class Broker:
    """One broker that is the whole cluster: first as it was before the loss, then what it has kept."""

    def __init__(self, *, holds_store: bool = False) -> None:
        self.before = Rig()
        caller = Caller(self.before)
        caller.open(GROUP, 0)
        caller.change(SubscriptionChange.START, GROUP, 0)
        self.after = Reign(self.before, holds_store=holds_store)
        self.kept = self.before.core.commit_index
        for number in range(9):
            caller.client.declare(f"q{number}")
        self.reader_at = Offset(self.before.core.commit_index, Epoch(1))
        self.shown: Rig = self.after
        set_map = SetMap(
            *(SET, Epoch(2), OWN.broker, OWN.incarnation, (OWN,), (), (OWN.broker,)),
            *(1, 1, OWN.incarnation),
        )
        view = ClusterView(Keys("c"))
        view.sets[SET] = SetView(set_map)
        self._channels = Channels()
        self.driver, rights = Driver(), ServingRights()
        self.driver.host(SET, self.after)
        rights.extend(boottime_ms() + 60_000, boottime_ms())
        self.sources = Sources(
            OWN.broker,
            view,
            self.driver,
            JournalReader(self._channels, "127.0.0.1:1"),
            Forwarding(OWN.broker, view, self._channels),
            SetQueries(SessionsService(self.driver, rights, lambda _: ())),
            SetNames(view, nothing_read),
        )
        journal = JournalInMemory([*self.after.core.context.writer.log.frames_after(LogIndex(0))])
        self.sources.events = SetEvents(SET, self._loaded, journal)
        self.service = EventsService(
            self.sources, QuietMoments(self._find_none, self._channels), nothing_decided, self._channels
        )
        self._server = make_server()
        self._server.add_generic_rpc_handlers((self.service.handlers(),))
        self._address = ""

    async def start(self) -> None:
        self._address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._channels.close()
        await self._server.stop(0)

    def _loaded(self) -> LoadedSet:
        return LoadedSet(self.shown.state, self.shown.core.commit_index, self.shown.core.epoch)

    @staticmethod
    async def _find_none() -> list[str]:
        return []

    async def acknowledge(self) -> None:
        known = [wire_offset(SET, self.reader_at)]
        await self.service.groups.acknowledge(pb.AcknowledgeEventsRequest(group=GROUP, offsets=known))

    async def plan(self) -> None:
        known = [wire_offset(SET, self.reader_at)]
        await self.service.planner.plan(pb.PlanRequest(group=GROUP, known=known, wait_ms=60_000))

    async def read(self) -> None:
        start, end = self.reader_at, Offset(LogIndex(self.reader_at.index + 5), Epoch(2))
        await self._stream(
            "Read", pb.ReadEventsRequest(start=wire_offset(SET, start), to=wire_offset(SET, end))
        )

    async def tail(self) -> None:
        request = pb.TailRequest(resource_set=SET, start=wire_offset(SET, self.reader_at))
        await self._stream("Tail", request)

    async def _stream(self, method: str, request: pb.ReadEventsRequest | pb.TailRequest) -> None:
        call: Any = self._channels.to(self._address).unary_stream(f"/lockstep.wire.v1.Events/{method}")
        try:
            async for _ in call(request.SerializeToString(), timeout=10):
                pass
        except grpc.aio.AioRpcError as error:
            raise error_from(error, is_read=True) from error


@pytest_asyncio.fixture
async def broker() -> AsyncGenerator[Broker]:
    broker = Broker()
    await broker.start()
    yield broker
    await broker.stop()


async def refused(asked: Awaitable[None]) -> ErrorCode:
    with pytest.raises(LockstepError) as caught:
        await asked
    return caught.value.code


@pytest.mark.parametrize("ask", [Broker.acknowledge, Broker.plan, Broker.read, Broker.tail])
async def test_a_reader_that_was_further_than_the_log_is_told_at_once(
    broker: Broker, ask: Callable[[Broker], Awaitable[None]]
) -> None:
    assert broker.after.core.commit_index < broker.reader_at.index, "and nothing is written any more"
    begun = time.monotonic()
    assert await refused(ask(broker)) is ErrorCode.WRONG_EPOCH
    assert time.monotonic() - begun < 1.5
    assert broker.after.state.subscriptions.by_name[GROUP].floor == 0


async def test_a_tail_that_is_under_way_is_told(broker: Broker) -> None:
    broker.shown = broker.before
    tail = asyncio.ensure_future(broker.tail())
    await asyncio.sleep(0.2)
    assert not tail.done(), "there is nothing yet behind what it has"
    broker.shown = broker.after
    assert await refused(tail) is ErrorCode.WRONG_EPOCH


async def test_an_acknowledgement_in_the_first_moments_of_an_epoch_is_judged_when_it_serves() -> None:
    """Nothing of the epoch is committed yet, and it will be longer than what the reader has."""
    broker = Broker(holds_store=True)
    asked = asyncio.ensure_future(broker.acknowledge())
    await asyncio.sleep(0.05)
    assert not asked.done()
    for number in range(20):
        broker.after.core.context.writer.append(OpenSubscription(None, f"g{number}", LogIndex(0)), True)
    broker.after.feed(Tick(SET))
    broker.after.acknowledged(broker.after.core.context.writer.log.framed_end)
    broker.after.acknowledge()
    broker.driver.feed(Tick(SET))
    assert await refused(asked) is ErrorCode.WRONG_EPOCH
    assert broker.after.core.commit_index > broker.reader_at.index
    assert broker.after.state.subscriptions.by_name[GROUP].floor == 0
