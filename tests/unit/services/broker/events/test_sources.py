"""Whom a broker asks for events that it has not got, over real calls, and what it makes of what the others say."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import permutations
from typing import Any

import grpc.aio
import msgspec
import pytest
import pytest_asyncio

from lockstep.core.cluster_map import Keys, Member, SetMap
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, LogIndex, TimeMs
from lockstep.core.server_messages import BranchEnd
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.cluster_view import ClusterView, MemberEntry, SetView
from lockstep.runtime.driver import Driver
from lockstep.runtime.rpc import Context, service, unary, unary_stream
from lockstep.runtime.serving import ServingRights
from lockstep.runtime.status import error_from
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.first_cut import BranchStands
from services.broker.core.events.planning import LogView, Mark, Offset
from services.broker.events.journal import JournalReader
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.service import EventsService
from services.broker.events.set_names import SetNames
from services.broker.events.sources import (
    EventSources,
    log_view_of,
    offset_of,
    stands_of,
    wire_log,
    wire_offset,
    wire_stands,
)
from services.broker.forwarding import Forwarding
from services.broker.set_queries import SetQueries
from services.primary.sessions import SessionsService
from tests.unit.lockstep.core.history import SET
from tests.unit.services.broker.core.events.planning_world import at
from tests.unit.services.broker.events.planner_rig import nothing_decided
from tests.unit.services.broker.events.test_set_names import nothing_read

IN_SYNC = [BrokerId(name) for name in ("b1", "b2", "b3")]
LEARNER, ASKING = BrokerId("b4"), BrokerId("b5")
GONE = Rejected(ErrorCode.OUT_OF_RANGE, "the lowest index that is there is 500", lowest_index=500)
AWAY = Rejected(ErrorCode.UNAVAILABLE, "it is just being started")
OTHER_LOG = Rejected(ErrorCode.WRONG_EPOCH, "a record of another epoch")
Ask = Callable[["Rig"], Awaitable[None]]


class FakeBroker:
    """Refuses, or gives what there is: nothing."""

    def __init__(self) -> None:
        self.refusal: LockstepError | None = None
        self.asked = 0
        self._server = make_server()

    async def start(self) -> str:
        methods = {
            "DescribeLog": unary(pb.DescribeLogRequest, self._describe),
            "Read": unary_stream(self._read),
        }
        self._server.add_generic_rpc_handlers((service("Events", methods),))
        address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return address

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _describe(self, _request: pb.DescribeLogRequest) -> pb.DescribeLogResponse:
        self._refuse()
        return pb.DescribeLogResponse(is_end=True)

    async def _read(self, _data: bytes, context: Context) -> None:
        self._refuse()
        await context.write(pb.EventBatch().SerializeToString())

    def _refuse(self) -> None:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal


class Rig:
    """A broker without a replica of the set, which others have: three in sync, and a learner."""

    def __init__(self) -> None:
        self.brokers = {name: FakeBroker() for name in (*IN_SYNC, LEARNER)}
        self.view = ClusterView(Keys("c"))
        members = {name: Member(name, DiskId(f"disk of {name}"), Incarnation(name)) for name in self.brokers}
        in_sync, first = tuple(members[name] for name in IN_SYNC), members[IN_SYNC[0]]
        set_map = SetMap(
            *(SET, Epoch(1), first.broker, first.incarnation, in_sync, (members[LEARNER],)),
            *(tuple(self.brokers), 2, 1, first.incarnation),
        )
        self.view.sets[SET] = SetView(set_map)
        self._channels = Channels()
        driver = Driver()
        sessions = SessionsService(driver, ServingRights(), lambda _: ())
        self.sources = EventSources(
            ASKING,
            self.view,
            driver,
            JournalReader(self._channels, "127.0.0.1:1"),
            Forwarding(ASKING, self.view, self._channels),
            SetQueries(sessions),
            SetNames(self.view, nothing_read),
        )
        self._address = ""
        self._server = make_server()
        events = EventsService(
            self.sources, QuietMoments(self._find_none, self._channels), nothing_decided, self._channels
        )
        self._server.add_generic_rpc_handlers((events.handlers(),))

    async def start(self) -> None:
        for name, broker in self.brokers.items():
            self.view.members[name] = MemberEntry(name, await broker.start(), Incarnation(name))
        self._address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._channels.close()
        await self._server.stop(0)
        for broker in self.brokers.values():
            await broker.stop()

    def refuse(self, *refusals: LockstepError, learner: LockstepError | None = None) -> None:
        for name, refusal in zip(IN_SYNC, refusals, strict=True):
            self.brokers[name].refusal = refusal
        self.brokers[LEARNER].refusal = learner or refusals[0]

    async def plan(self) -> None:
        await self.sources.log_of(SET, at(10), 0)

    async def read(self) -> None:
        request = pb.ReadEventsRequest(start=wire_offset(SET, at(10)), to=wire_offset(SET, at(12)))
        call: Any = self._channels.to(self._address).unary_stream("/lockstep.wire.v1.Events/Read")
        try:
            async for _ in call(request.SerializeToString(), timeout=20):
                pass
        except grpc.aio.AioRpcError as error:
            raise error_from(error, is_read=True) from error

    @staticmethod
    async def _find_none() -> list[str]:
        return []


@pytest_asyncio.fixture
async def rig() -> AsyncGenerator[Rig]:
    rig = Rig()
    await rig.start()
    yield rig
    await rig.stop()


@pytest.fixture(params=[Rig.plan, Rig.read], ids=["plan", "read"])
def ask(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


async def refused(rig: Rig, ask: Ask) -> LockstepError:
    with pytest.raises(LockstepError) as caught:
        await ask(rig)
    return caught.value


async def test_whoever_has_it_gives_it(rig: Rig, ask: Ask) -> None:
    rig.refuse(GONE, AWAY, AWAY)
    rig.brokers[IN_SYNC[2]].refusal = None
    await ask(rig)


@pytest.mark.parametrize("refusals", sorted(set(permutations((GONE, AWAY, GONE))), key=repr))
async def test_what_one_that_is_not_heard_may_have_is_not_gone(
    rig: Rig, ask: Ask, refusals: tuple[LockstepError, ...]
) -> None:
    """One came to the set with a snapshot, while the one with the whole log is being started."""
    rig.refuse(*refusals)
    assert (await refused(rig, ask)).code is ErrorCode.UNAVAILABLE


async def test_what_all_in_sync_lack_is_gone(rig: Rig, ask: Ask) -> None:
    """A learner that is not heard has no more than they."""
    rig.refuse(GONE, GONE, GONE, learner=AWAY)
    error = await refused(rig, ask)
    assert (error.code, error.details["lowest_index"]) == (ErrorCode.OUT_OF_RANGE, 500)


async def test_one_that_is_not_registered_is_not_heard(rig: Rig, ask: Ask) -> None:
    rig.refuse(GONE, GONE, GONE)
    del rig.view.members[IN_SYNC[1]]
    assert (await refused(rig, ask)).code is ErrorCode.UNAVAILABLE


async def test_an_offset_that_is_in_no_log_is_refused_by_the_first_in_sync(rig: Rig, ask: Ask) -> None:
    rig.refuse(AWAY, OTHER_LOG, AWAY)
    assert (await refused(rig, ask)).code is ErrorCode.WRONG_EPOCH
    rig.refuse(AWAY, AWAY, AWAY, learner=OTHER_LOG)
    assert (await refused(rig, ask)).code is ErrorCode.UNAVAILABLE, "a learner may have another log"


def test_brokers_tell_each_other_all_that_a_primary_says_of_branches() -> None:
    said = BranchEnd(index=LogIndex(9), forgotten_up_to=LogIndex(8), first_index=LogIndex(7))
    for flag in ("is_prepared", "is_committed", "may_be_forgotten"):
        stands = BranchStands(msgspec.structs.replace(said, **{flag: True}), Epoch(6))
        assert stands_of(wire_stands(stands)) == stands
    assert stands_of(wire_stands(BranchStands(BranchEnd(), Epoch(0)))) == BranchStands(BranchEnd(), Epoch(0))


def test_brokers_tell_each_other_whose_epochs_their_logs_have() -> None:
    start, end = Offset(LogIndex(3), Epoch(1), 5), Offset(LogIndex(9), Epoch(2), 7)
    assert offset_of(wire_offset(SET, end)).reign == 7
    told = wire_log(SET, LogView(start, [Mark(end, TimeMs(1), 1)], reigns=((Epoch(2), 7),)), end)
    log = log_view_of(start, told)
    assert log.named(log.end).reign == 7 and log.named(log.start).reign == 5
    older = pb.EventOffset(resource_set=SET, index=9, epoch=2)
    assert offset_of(older).reign == 0
    assert offset_of(pb.EventOffset(index=9, epoch=2, reign=1 << 16)).reign == 0, "no number of a reign"
