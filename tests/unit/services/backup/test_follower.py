"""A replica that is a backup and nothing else: what it does with a damaged disk (R4, R10)."""

from dataclasses import replace

import msgspec
import pytest

from lockstep.core.cluster_map import SetMap
from lockstep.core.effects import MarkSetBack, OpenSubscription, TellStore
from lockstep.core.ids import BrokerId, Epoch, Incarnation, LogIndex, TimeMs
from lockstep.core.inputs import AnyInput, LeaseKeySeen, MapSeen, PrimarySaid
from lockstep.core.replication import Subscribe, SubscriptionAccepted, SubscriptionRefused
from lockstep.core.stamps import NO_STAMPS, Stamp
from lockstep.core.store_protocol import RememberMap, SetAside
from services.backup.core.backup_memory import BackupState
from services.backup.core.follower import Follower
from services.backup.core.settings import BackupSettings
from tests.unit.services.replicas import SET, Bench, MemoryStore, entry, frames, member, seen

A, B = member("a"), member("b")
AT_MINIMUM = entry(1, A, B, min_in_sync=2)


class FollowerBench(Bench):
    """A follower of broker b in process `p1`, which sees `set_map`, with the primary's and etcd's parts played by the test."""

    def __init__(
        self,
        set_map: SetMap,
        damage: str = "",
        store: MemoryStore | None = None,
        first: MapSeen | None = None,
    ) -> None:
        super().__init__(store or MemoryStore("disk-b", *frames(1, 1, 3), commit=3))
        self.store.damage = damage
        self.follower = Follower(SET, BrokerId("b"), Incarnation("p1"), BackupSettings())
        self.find_store()
        self.feed(first or seen(set_map, 10))

    def feed(self, given: AnyInput) -> None:
        self.perform(self.follower.handle(given, self.now))

    @property
    def state(self) -> BackupState:
        assert self.follower.backup is not None
        return self.follower.backup.state

    def subscriptions(self) -> list[Subscribe]:
        return [effect.subscribe for effect in self.effects if isinstance(effect, OpenSubscription)]

    def lack_a_tail(self) -> None:
        """The primary says that this disk lacks what was acknowledged on it."""
        assert self.follower.backup is not None
        refused = SubscriptionRefused(SET, Epoch(1), "agrees up to 3, and 5 was acknowledged", LogIndex(4))
        self.feed(PrimarySaid(SET, self.follower.backup.stream, refused))

    def see_key(self, holder: str | None) -> None:
        self.feed(LeaseKeySeen(SET, Incarnation(holder) if holder is not None else None))


def test_a_disk_that_lacks_a_tail_is_damaged_for_every_memory_of_its_process() -> None:
    bench = FollowerBench(entry(1, A, B))
    assert len(bench.subscriptions()) == 1
    bench.lack_a_tail()
    bench.feed(seen(entry(2, A, B), 11))
    bench.pass_ms(5_000)
    assert bench.state is BackupState.DAMAGED
    assert len(bench.subscriptions()) == 1


def test_a_disk_that_lacks_a_tail_is_set_aside_when_its_set_does_not_name_it() -> None:
    bench = FollowerBench(entry(1, A, B))
    bench.lack_a_tail()
    bench.pass_ms(1_000)
    assert bench.store.disk == "disk-b"
    bench.feed(seen(replace(entry(1, A), learners=(B,), change=2), 11))
    assert bench.store.disk == "disk-b-1"
    assert bench.subscriptions()[-1].disk == "disk-b-1"
    asked = [type(effect.request) for effect in bench.effects if isinstance(effect, TellStore)]
    assert RememberMap in asked[asked.index(SetAside) :]
    bench.pass_ms(5_000)
    assert "damaged" not in bench.notes()[bench.notes().index("set aside") :]


def test_the_disk_remembers_how_far_etcd_is_with_an_entry_that_stays() -> None:
    bench = FollowerBench(entry(1, A, B))
    bench.feed(msgspec.structs.replace(seen(entry(1, A, B), 10), etcd_revision=31))
    assert (bench.store.map_revision, bench.store.etcd_revision) == (10, 31)


def test_a_disk_that_knows_more_of_etcd_has_it_told_and_forgets_nothing_until_a_primary_has_it() -> None:
    bench = FollowerBench(entry(1, A, B))
    store = bench.store
    store.map_revision, store.generation, store.etcd_revision, store.stamp = 10, "g", 50, "p/2/48"
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    old = msgspec.structs.replace(seen(entry(1, A, B), 10, "g"), etcd_revision=90, stamps=stamps)
    bench = FollowerBench(entry(1, A, B), store=store, first=old)
    bench.pass_ms(2_500)
    marks = [effect for effect in bench.effects if isinstance(effect, MarkSetBack)]
    assert [mark.stamp for mark in marks] == [Stamp("p", 2, 48)] * 3
    assert (store.etcd_revision, store.stamp) == (50, "p/2/48")
    bench.feed(msgspec.structs.replace(old, is_set_back=True))
    bench.pass_ms(2_500)
    assert sum(isinstance(effect, MarkSetBack) for effect in bench.effects) == 3
    assert bench.subscriptions() == [], "nor does it follow one who may have begun an epoch anew"
    bench.feed(msgspec.structs.replace(seen(entry(2, A, B), 5, "g2"), etcd_revision=7))
    assert (store.generation, store.etcd_revision, store.stamp) == ("g2", 7, "")
    assert len(bench.subscriptions()) == 1


def test_a_disk_that_knew_more_of_etcd_follows_when_that_is_back() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 3), commit=3)
    store.map_revision, store.generation, store.etcd_revision, store.stamp = 10, "g", 50, "p/2/48"
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    old = msgspec.structs.replace(seen(entry(1, A, B), 10, "g"), etcd_revision=90, stamps=stamps)
    bench = FollowerBench(entry(1, A, B), store=store, first=old)
    bench.pass_ms(2_500)
    assert bench.subscriptions() == []
    newer = stamps.stamped(Stamp("p", 3, 95))
    bench.feed(msgspec.structs.replace(old, etcd_revision=96, stamps=newer))
    bench.pass_ms(1_000)
    assert bench.subscriptions() and store.stamp == "p/3/95"


def test_a_disk_that_a_rebuilt_map_left_out_is_told_as_empty_and_remembers_that_until_it_follows() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 3), commit=3)
    store.generation = "g"
    rebuilt = seen(replace(entry(4, A), is_forked=True), 5, "g2")
    bench = FollowerBench(entry(4, A), store=store, first=rebuilt)
    (said,) = bench.subscriptions()
    assert (said.log_end, said.epochs, said.commit_index, store.generation) == (0, (), 3, "g")
    assert bench.follower.backup is not None
    accepted = SubscriptionAccepted(SET, Epoch(4), LogIndex(3), LogIndex(0), False, (), TimeMs(0))
    bench.feed(PrimarySaid(SET, bench.follower.backup.stream, accepted))
    bench.pass_ms(100)
    assert store.generation == "g2"


def test_a_damaged_disk_that_knows_more_of_etcd_is_not_set_aside() -> None:
    store = MemoryStore("disk-b", *frames(1, 1, 3), commit=3)
    store.generation, store.stamp = "g", "p/2/48"
    stamps = NO_STAMPS.stamped(Stamp("p", 1, 20))
    old = msgspec.structs.replace(seen(entry(1, A), 10, "g"), etcd_revision=90, stamps=stamps)
    bench = FollowerBench(entry(1, A), "a hole", store, old)
    bench.pass_ms(2_500)
    assert bench.store.disk == "disk-b"
    bench.feed(seen(entry(2, A), 5, "g2"))
    bench.pass_ms(2_500)
    assert bench.store.disk != "disk-b"


@pytest.mark.parametrize("damage", ["", "a hole"])
@pytest.mark.parametrize(("holder", "is_set_aside"), [(A.incarnation, True), ("a.1", False), (None, False)])
def test_a_damaged_disk_is_set_aside_at_the_minimum_while_another_leads(
    damage: str, holder: str | None, is_set_aside: bool
) -> None:
    """There nobody is removed, and only its own new disk may replace it (R4)."""
    bench = FollowerBench(AT_MINIMUM, damage)
    if not damage:
        bench.lack_a_tail()
    bench.see_key(holder)
    bench.pass_ms(5_000)
    assert (bench.store.disk != "disk-b") == is_set_aside
    assert (bench.state is BackupState.DAMAGED) != is_set_aside


def test_a_damaged_disk_above_the_minimum_stays_until_its_set_does_not_name_it() -> None:
    bench = FollowerBench(replace(AT_MINIMUM, min_in_sync=1), "a hole")
    bench.see_key(A.incarnation)
    bench.pass_ms(5_000)
    assert bench.store.disk == "disk-b"
    assert bench.state is BackupState.DAMAGED
