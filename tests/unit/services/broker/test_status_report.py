"""What a broker says of its replicas, and that saying it holds up nothing else."""

import asyncio
from typing import TypeVar

from lockstep.core.cluster_map import Keys
from lockstep.core.ids import BrokerId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.inputs import PrimarySaid
from lockstep.core.pieces import PIECE_COST
from lockstep.core.replication import SubscriptionAccepted
from lockstep.core.stamps import Stamps, Witness
from lockstep.core.state_hash import state_hash
from lockstep.runtime.channels import Channels
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker.own_disk import OwnDisk
from services.broker.status_report import HASHED_ITEMS, StatusReport, hash_in_turns
from tests.unit.services.primary.primary_rig import Rig
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, entry, frames, leading, member, seen

TURNS = 5
_Report = TypeVar("_Report", bound=StatusReport)


def a_rig_with_messages() -> Rig:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    client.publish("q", *[b"x"] * (HASHED_ITEMS * TURNS // 2))
    return rig


def report_of(bench: ReplicaBench, kind: type[_Report]) -> _Report:
    driver, view = Driver(), ClusterView(Keys("c"))
    driver.host(SET, bench.replica)
    own_disk = OwnDisk(Channels(), "127.0.0.1:1", view)
    return kind(BrokerId("a"), Incarnation("p1"), "c", view, driver, own_disk)


async def test_a_hash_is_made_in_turns_with_everything_else() -> None:
    rig = a_rig_with_messages()
    turns, is_over = 0, asyncio.Event()

    async def go_on() -> None:
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(go_on())
    found = await hash_in_turns(rig.state)
    is_over.set()
    await other
    assert found == state_hash(rig.state)
    assert turns >= TURNS


async def test_what_is_applied_meanwhile_is_not_in_it() -> None:
    rig = a_rig_with_messages()
    before = state_hash(rig.state)
    hashing = asyncio.ensure_future(hash_in_turns(rig.state))
    await asyncio.sleep(0)
    rig.client().declare("other")
    assert await hashing == before != state_hash(rig.state)


async def test_a_state_that_is_given_up_meanwhile_has_no_hash() -> None:
    rig = a_rig_with_messages()
    hashing = asyncio.ensure_future(hash_in_turns(rig.state))
    await asyncio.sleep(0)
    assert not hashing.done()
    for _ in rig.state.take_apart():
        pass
    assert await hashing == ""


async def test_a_status_has_hashes_only_if_they_are_asked_for() -> None:
    bench = leading()
    report = report_of(bench, StatusReport)
    assert bench.replica.primary is not None
    for with_state_hash in (False, True):
        request = pb.GetClusterStatusRequest(with_state_hash=with_state_hash)
        answering = asyncio.ensure_future(report.get_status(request))
        await asyncio.sleep(0)
        assert answering.done() is not with_state_hash, "it takes its turn"
        (replica,) = (await answering).replicas
        state = bench.replica.primary.context.state
        assert replica.role == pb.ROLE_PRIMARY
        assert (replica.state_index, replica.state_hash) == (
            state.applied,
            state_hash(state) if with_state_hash else "",
        )


async def test_a_status_says_that_the_own_store_refuses_an_epoch_for_it_has_seen_a_higher_one() -> None:
    """etcd was set back while this process lived, or somebody has fenced the disk."""
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3), epoch=9))
    bench.hold_lease()
    bench.feed(seen(entry(4, member("b"), member("a")), 10))
    (replica,) = (await report_of(bench, StatusReport).get_status(pb.GetClusterStatusRequest())).replicas
    assert replica.trouble.startswith(
        "its disk has seen epoch 9, etcd does not show it: see lockstep cluster rebuild-map"
    )


async def test_a_status_of_a_primary_says_that_etcd_was_set_back() -> None:
    """It was promoted before anybody said so, and nobody follows it who would say that."""
    bench = leading()
    report = report_of(bench, StatusReport)
    assert bench.replica.is_serving
    (replica,) = (await report.get_status(pb.GetClusterStatusRequest())).replicas
    assert (replica.role, replica.trouble) == (pb.ROLE_PRIMARY, "")
    report._view.set_back_by = "the disk d of b has seen revision 900, etcd is at 100"
    (replica,) = (await report.get_status(pb.GetClusterStatusRequest())).replicas
    assert replica.role == pb.ROLE_PRIMARY
    assert replica.trouble == (
        "etcd was set back: the disk d of b has seen revision 900, etcd is at 100; see lockstep cluster rebuild-map"
    )


class Counted(StatusReport):
    """Counts the looks at a replica: there is one for each hash."""

    looks = 0

    def replica(self, set_name: SetName) -> pb.Replica:
        self.looks += 1
        return super().replica(set_name)


async def test_however_many_ask_for_hashes_few_are_made() -> None:
    """Each walks through a whole state, and anybody may ask."""
    report, request = report_of(leading(), Counted), pb.GetClusterStatusRequest(with_state_hash=True)
    first = asyncio.ensure_future(report.get_status(request))
    for _ in range(3):
        await asyncio.sleep(0)
    others = [asyncio.ensure_future(report.get_status(request)) for _ in range(500)]
    hashes = {one.replicas[0].state_hash for one in await asyncio.gather(first, *others)}
    assert len(hashes) == 1 and "" not in hashes
    assert 1 <= report.looks <= 3


async def test_a_status_says_how_old_it_is_and_for_how_long_the_primary_may_serve() -> None:
    bench = leading()
    report, primary = report_of(bench, StatusReport), bench.replica.primary
    assert primary is not None and primary.committed_ms == bench.now.boottime_ms
    now_ms = boottime_ms()
    primary.streams.serve_until_ms = now_ms + 5_000
    (replica,) = (await report.get_status(pb.GetClusterStatusRequest())).replicas
    assert replica.age_ms >= now_ms - bench.now.boottime_ms > 0 and 0 < replica.lease_ms <= 5_000
    primary.streams.serve_until_ms = now_ms
    (replica,) = (await report.get_status(pb.GetClusterStatusRequest())).replicas
    assert replica.lease_ms == 0


async def test_a_status_says_when_a_backup_heard_its_primary_last() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.feed(seen(entry(1, member("b"), member("a")), 10))
    bench.see_key("b.0")
    backup = bench.replica.backup
    assert backup is not None
    accepted = SubscriptionAccepted(SET, Epoch(1), LogIndex(3), LogIndex(0), False, (), 0)
    bench.feed(PrimarySaid(SET, backup.stream, accepted))
    now_ms = boottime_ms()
    (replica,) = (await report_of(bench, StatusReport).get_status(pb.GetClusterStatusRequest())).replicas
    assert replica.age_ms >= now_ms - bench.now.boottime_ms > 0


async def test_a_status_names_the_brokers_that_are_not_back_since_all_were_down() -> None:
    report = report_of(leading(), StatusReport)
    view, request = report._view, pb.GetClusterStatusRequest()
    stamps = Stamps(witnesses=(Witness(BrokerId("b"), "b1"), Witness(BrokerId("c"), "c1"))).called()
    view.stamps_put(stamps.encode(), 5)
    view.witnesses = {BrokerId("b"): "b1", BrokerId("c"): "c2"}
    assert list((await report.get_status(request)).silent_witnesses) == ["c"], (
        "the other one lives, and answers"
    )
    assert report.silent_witnesses == 1
    view.stamps_put(stamps.answered(BrokerId("c"), "c2").encode(), 6)
    assert not (await report.get_status(request)).silent_witnesses


async def test_a_hash_waits_for_what_the_primary_is_amid() -> None:
    """Or it would do all of that in one go."""
    bench = leading()
    primary = bench.replica.primary
    assert primary is not None
    primary.context.alone.do(iter([PIECE_COST] * 5))
    request = pb.GetClusterStatusRequest(with_state_hash=True)
    answering = asyncio.ensure_future(report_of(bench, StatusReport).get_status(request))
    await asyncio.sleep(0.01)
    assert not answering.done()
    while primary.context.alone.works:
        primary.context.alone.go_on()
    (replica,) = (await answering).replicas
    assert replica.state_hash == state_hash(primary.context.state)


async def test_a_status_says_how_old_its_view_of_the_map_may_be() -> None:
    report = report_of(leading(), StatusReport)
    assert (await report.get_status(pb.GetClusterStatusRequest())).view_age_ms == 0
    report._view.silent_from_ms = boottime_ms() - 5_000
    assert 5_000 <= (await report.get_status(pb.GetClusterStatusRequest())).view_age_ms < 60_000
