"""Looking at disks for a rebuilt map: a set that somebody leads is fenced for nobody; looked at again where that is doubtful."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.core.cluster_map import Keys, Member, SetMap
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, DiskId, Epoch, Incarnation, SetName
from lockstep.runtime.cluster_view import ClusterView, MemberEntry
from lockstep.runtime.etcd import Entry
from lockstep.wire.v1 import cluster_pb2 as pb
from lockstep.wire.v1 import store_pb2
from services.broker import map_rebuild
from services.broker.core.map_rebuilding import SetPlan, Verdict
from services.broker.map_rebuild import MapRebuild
from services.broker.rebuild_codec import disk_found
from tests.unit.services.etcd_in_memory import EtcdInMemory

LED, UNLED, UNKNOWN = SetName("led"), SetName("unled"), SetName("unknown")


class Disk:
    """The own store: what it was fenced with."""

    def __init__(self) -> None:
        self.fenced: list[tuple[SetName, int]] = []

    async def survey(self, *, with_names: bool, fences: Any) -> store_pb2.SurveyResponse:
        self.fenced += fences
        disks = {LED: "d1", UNLED: "d1", UNKNOWN: "d2"}
        stored = [store_pb2.StoredSet(resource_set=name, disk=disk) for name, disk in disks.items()]
        return store_pb2.SurveyResponse(sets=[store_pb2.SurveyedSet(set=one) for one in stored])


def rebuild(disk: Disk) -> MapRebuild:
    nobody: Any = None
    sets = {LED: SimpleNamespace(lease_holder="p1.0"), UNLED: SimpleNamespace(lease_holder=None)}
    view: Any = SimpleNamespace(sets=sets)
    store: Any = disk
    return MapRebuild(BrokerId("B1"), Incarnation("p1"), nobody, view, nobody, store, 1.0, damage_found)


def surveyed(broker: str, log_end: int) -> store_pb2.SurveyedSet:
    stored = store_pb2.StoredSet(resource_set=UNLED, disk=f"disk-{broker}", log_end=log_end)
    return store_pb2.SurveyedSet(set=stored, last_epoch=4)


def damage_found(set_name: SetName, disk: DiskId) -> str:
    return "it cannot be loaded" if (set_name, disk) == (UNLED, "d1") else ""


def asking(*set_names: SetName) -> pb.SurveyDiskRequest:
    fences = [pb.SurveyDiskRequest.Fence(resource_set=name, epoch=7) for name in set_names]
    return pb.SurveyDiskRequest(fences=fences)


async def test_a_set_that_somebody_leads_is_not_fenced_and_neither_is_what_is_asked_with_it() -> None:
    disk = Disk()
    with pytest.raises(Rejected, match=r"set 'led' is led by p1\.0") as refused:
        await rebuild(disk).survey_disk(asking(UNLED, LED))
    assert refused.value.code is ErrorCode.IN_USE and disk.fenced == []


async def test_sets_that_nobody_leads_and_such_as_etcd_does_not_have_are_fenced() -> None:
    disk = Disk()
    answer = await rebuild(disk).survey_disk(asking(UNLED, UNKNOWN))
    assert answer.broker == "B1" and disk.fenced == [(UNLED, 7), (UNKNOWN, 7)]


async def test_looking_alone_fences_nothing() -> None:
    disk = Disk()
    await rebuild(disk).survey_disk(pb.SurveyDiskRequest(with_names=True))
    assert disk.fenced == []


KEYS = Keys("local")


def etcd_at(revision: int, lease: str, others: Sequence[Entry] = ()) -> ClusterView:
    """etcd as it was read: the set of `LED` is led by who holds that lease, "" for nobody, in whose epoch 4. `others`: more that
    it has.
    """
    brokers = (BrokerId("B1"),)
    entry = SetMap(LED, Epoch(4), brokers[0], Incarnation("p1.0"), (), (), brokers, 1, 1, Incarnation("p1.0"))
    entries = [Entry(KEYS.set_map(LED), entry.encode(), 3, 3, 0), *others]
    if lease:
        entries.append(Entry(KEYS.set_lease(LED), lease.encode(), 3, 3, 0))
    view = ClusterView(KEYS)
    view.read_all(entries, revision)
    return view


@pytest.mark.parametrize(
    ("readings", "looks"),
    [
        (((9, "p1.0"), (12, "p1.0")), 1),
        (((9, "p1.0"), (12, ""), (12, "")), 2),
        (((9, "p1.0"), (8, "p1.0"), (8, "p1.0")), 2),
        (((9, "p1.0"), (10, ""), (11, "p1.0"), (12, "")), 0),
    ],
    ids=["it goes on", "a lease ends meanwhile", "it is set back meanwhile", "it does not stay as it is"],
)
async def test_disks_are_compared_with_etcd_as_it_is_behind_them_unless_a_reign_has_changed_meanwhile(
    readings: tuple[tuple[int, str], ...], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come to know more than was read before them."""
    left = [etcd_at(*reading) for reading in readings]
    surveyed_at: list[int] = []

    async def read(_: object) -> ClusterView:
        return left.pop(0)

    async def survey(*_: object, **__: object) -> object:
        surveyed_at.append(len(readings) - len(left))
        return {}, []

    monkeypatch.setattr(MapRebuild, "_read_etcd", read)
    monkeypatch.setattr(MapRebuild, "_survey_all", survey)
    looking = rebuild(Disk())._look(())
    if not looks:
        with pytest.raises(Rejected, match="etcd has changed while the disks were looked at"):
            await looking
        return
    known, _, _, plans = await looking
    assert known.etcd_revision == readings[-1][0] and not left
    assert surveyed_at == list(range(1, looks + 1)), "etcd is read before the disks are asked and behind them"
    assert [plan.verdict for plan in plans] == [Verdict.LED if readings[-1][1] else Verdict.UNHEARD]


def test_disks_are_asked_again_where_a_broker_or_a_set_came_meanwhile_or_a_set_went() -> None:
    one, none = etcd_at(9, "p1.0"), ClusterView(KEYS)
    none.read_all([], 9)
    more = etcd_at(9, "p1.0")
    more.members[BrokerId("B2")] = MemberEntry(BrokerId("B2"), "", Incarnation("p2"))
    assert not map_rebuild._goes_on_from(more, one) and map_rebuild._goes_on_from(one, more)
    assert not map_rebuild._goes_on_from(one, none) and not map_rebuild._goes_on_from(none, one)


@pytest.mark.parametrize("etcd_revision", [9, 10])
def test_what_a_disk_of_one_set_remembers_of_etcd_counts_for_all_sets(etcd_revision: int) -> None:
    stored = store_pb2.StoredSet(resource_set=UNLED, disk="d1", log_end=5, highest_epoch=4)
    told = store_pb2.SurveyedSet(set=stored, generation="g", etcd_revision=etcd_revision)
    known = etcd_at(9, "", [Entry(KEYS.generation, b"g", 1, 1, 0)])
    plans = rebuild(Disk())._plan(known, {BrokerId("B2"): store_pb2.SurveyResponse(sets=[told])}, ())
    (plan,) = (plan for plan in plans if plan.set_name == LED)
    is_later = etcd_revision > 9
    assert plan.verdict is (Verdict.STUCK if is_later else Verdict.UNHEARD)
    assert plan.unheard == ((BrokerId("B1"),) if is_later else ())


def test_a_disk_may_be_given_up_for_one_set_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: dict[SetName, set[str]] = {}

    def plan(set_name: SetName, *others: Any) -> None:
        given_up[set_name] = set(others[3])

    monkeypatch.setattr(map_rebuild, "plan_set", plan)
    sets = [store_pb2.SurveyedSet(set=store_pb2.StoredSet(resource_set=name)) for name in (LED, UNLED)]
    surveys = {BrokerId("B1"): store_pb2.SurveyResponse(sets=sets)}
    rebuild(Disk())._plan(ClusterView(KEYS), surveys, ("B1", "unled:B2", "unknown:B3"))
    assert all("B1" in names for names in given_up.values())
    assert [name for name in (LED, UNLED) if "B2" in given_up[name]] == [UNLED]
    assert not any("B3" in names for names in given_up.values())


@pytest.mark.parametrize("is_rebuild", [True, False])
async def test_a_lead_that_may_be_of_before_is_looked_at_again_when_its_lease_has_ended(
    is_rebuild: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    async def look(*_: object) -> object:
        looks.append(asyncio.get_running_loop().time())
        plan = SetPlan(LED, Verdict.LED, is_lead_doubtful=len(looks) == 1)
        return SimpleNamespace(is_set_back=False), {}, [], [plan]

    monkeypatch.setattr(MapRebuild, "_look", look)
    monkeypatch.setattr(map_rebuild, "LEASE_MARGIN_SECONDS", 0.1)
    await rebuild(Disk()).rebuild_map(pb.RebuildMapRequest(rebuild=is_rebuild))
    assert len(looks) == 1 + is_rebuild
    assert not is_rebuild or looks[1] - looks[0] >= 1.1


async def test_a_broker_adds_what_it_has_found_of_its_disk_and_the_store_does_not_know() -> None:
    answer = await rebuild(Disk()).survey_disk(pb.SurveyDiskRequest(with_names=True))
    found = {one.set.resource_set: one.found_by_broker for one in answer.survey.sets}
    assert found == {LED: "", UNLED: "it cannot be loaded", UNKNOWN: ""}


@pytest.mark.parametrize(
    ("again", "without", "is_refused"),
    [
        ({"B1": 10, "B2": 9}, (), False),
        ({"B1": 11, "B2": 9}, (), True),
        ({"B1": 10, "B2": 11}, (), True),
        ({"B1": 10}, (), True),
        ({"B1": 10, "B2": 11}, ("B2",), False),
        ({"B1": 10}, ("B2",), False),
        ({"B1": 10, "B2": 11}, ("unled:B2",), False),
        ({"B1": 10, "B2": 11}, ("led:B2",), True),
    ],
)
async def test_no_disk_that_counts_has_more_when_it_is_fenced_than_when_it_was_looked_at(
    again: dict[str, int], without: tuple[str, ...], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2, which led, was behind its backup B1 then, whom nothing waited for; what it has since is on no other disk."""
    disks = tuple(
        disk_found(BrokerId(broker), surveyed(broker, end)) for broker, end in (("B1", 10), ("B2", 9))
    )
    first = Member(BrokerId("B1"), DiskId("disk-B1"), Incarnation(""))
    nobody = BrokerId(""), Incarnation("")
    entry = SetMap(
        UNLED, Epoch(5), *nobody, (first,), (), (BrokerId("B1"), BrokerId("B2")), 1, 1, Incarnation("p1")
    )
    plan = SetPlan(UNLED, Verdict.REBUILT, entry, disks)

    async def survey(_: object, brokers: list[str], **__: object) -> object:
        sets = {broker: surveyed(broker, again[broker]) for broker in brokers if broker in again}
        return {broker: store_pb2.SurveyResponse(sets=[one]) for broker, one in sets.items()}, []

    monkeypatch.setattr(MapRebuild, "_survey_all", survey)
    fencing = rebuild(Disk())._fence(entry.brokers, [plan], without)
    if not is_refused:
        await fencing
        return
    with pytest.raises(Rejected, match="has changed while it was looked at"):
        await fencing


async def test_entries_are_written_when_the_lease_of_whoever_led_before_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """etcd has lost its key, so nothing else keeps the next one waiting."""
    done: list[tuple[str, float]] = []

    def step(name: str, result: object) -> None:
        async def do(*_: object, **__: object) -> object:
            done.append((name, asyncio.get_running_loop().time()))
            return result

        monkeypatch.setattr(MapRebuild, name, do)

    plan = SetPlan(UNLED, Verdict.REBUILT)
    step("_look", (SimpleNamespace(is_set_back=False, members={}), {}, [], [plan]))
    step("_fence", None)
    step("_restore_names", (0, []))
    step("_write", "generation")
    step("_until_led", None)
    monkeypatch.setattr(map_rebuild, "LEASE_MARGIN_SECONDS", 0.1)
    await rebuild(Disk()).rebuild_map(pb.RebuildMapRequest(rebuild=True))
    assert [name for name, _ in done] == ["_look", "_fence", "_restore_names", "_write", "_until_led"]
    assert done[3][1] - done[1][1] >= 1.1


@pytest.mark.parametrize(
    ("is_marked_before", "seen_revision", "is_done"),
    [(False, 0, False), (True, 0, True), (False, 1000, True)],
)
async def test_nothing_is_written_where_somebody_says_meanwhile_that_etcd_was_set_back_and_no_plan_knew_it(
    is_marked_before: bool, seen_revision: int, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets that were left alone may be behind a disk that nobody asked, and that tells nothing in a new generation."""
    brokers, process = (BrokerId("B1"),), Incarnation("p1.0")
    named = (Member(brokers[0], DiskId("d1"), process),)
    entry = SetMap(UNLED, Epoch(4), brokers[0], process, named, (), brokers, 1, 1, process)
    etcd = EtcdInMemory()
    etcd.put(KEYS.generation, b"g")
    if is_marked_before:
        etcd.put(KEYS.set_back, b"B1")
    stored = store_pb2.StoredSet(resource_set=UNLED, disk="d1", log_end=5, highest_epoch=4)
    disk = store_pb2.SurveyedSet(
        set=stored, last_epoch=4, map_bytes=entry.encode(), generation="g", etcd_revision=seen_revision
    )

    async def survey(_: object, *__: object, fences: Sequence[object], **___: object) -> object:
        if fences and not is_marked_before:
            etcd.put(KEYS.set_back, b"B2")
        return {brokers[0]: store_pb2.SurveyResponse(sets=[disk])}, []

    async def until_led(*_: object) -> None:
        pass

    monkeypatch.setattr(MapRebuild, "_survey_all", survey)
    monkeypatch.setattr(MapRebuild, "_until_led", until_led)
    monkeypatch.setattr(map_rebuild, "LEASE_MARGIN_SECONDS", 0.0)
    other: Any = etcd
    view: Any = SimpleNamespace(keys=KEYS, sets={})
    nobody: Any = None
    rebuilding = MapRebuild(brokers[0], process, other, view, nobody, nobody, 0.0, damage_found).rebuild_map(
        pb.RebuildMapRequest(rebuild=True)
    )
    if is_done:
        response = await rebuilding
        assert etcd.entries[KEYS.generation].value.decode() == response.generation != "g"
        assert KEYS.set_back not in etcd.entries
    else:
        with pytest.raises(Rejected, match="etcd has changed meanwhile"):
            await rebuilding
        assert etcd.entries[KEYS.generation].value == b"g" and KEYS.set_back in etcd.entries
