"""What a broker writes as a witness: stamps, with its key under its lease, and only when its disks were compared."""

import asyncio
from typing import cast

from lockstep.core.cluster_map import Keys
from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.stamps import NO_STAMPS, Stamp, Stamps
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from services.broker.core.replica import Replica
from services.broker.core.witness import STAMPED_EVERY_MS
from services.broker.witnessing import Witnessing
from tests.unit.services.etcd_in_memory import EtcdInMemory
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, frames, leading

KEYS = Keys("c")
A = BrokerId("a")


class Bench:
    """Broker a with one set, in a process that sees etcd when it is asked to."""

    def __init__(self, replica: Replica) -> None:
        self.etcd, self.view = EtcdInMemory(), ClusterView(KEYS)
        self.etcd.put(KEYS.generation, b"g1")
        self.set_names, self.replica = [SET], replica
        self.now_ms, self.lease_id = 0, 7
        self.witnessing = Witnessing(
            self.view,
            cast(Driver, self),
            cast(EtcdClient, self.etcd),
            A,
            Incarnation("p1"),
            lambda: self.now_ms,
            lambda: self.lease_id,
        )

    def core(self, _: object) -> object:
        return self.replica

    async def look(self, lease_id: int = 7) -> Stamps:
        entries = [one for key, one in sorted(self.etcd.entries.items())]
        self.view.read_all(entries, self.etcd.revision)
        self.lease_id = lease_id
        self.witnessing.look()
        for _ in range(5):
            await asyncio.sleep(0)
        entry = self.etcd.entries.get(KEYS.stamps)
        return Stamps.decode(entry.value if entry is not None else b"")

    @property
    def key(self) -> tuple[bytes, int]:
        entry = self.etcd.entries.get(KEYS.witness(A))
        return (entry.value, entry.lease_id) if entry is not None else (b"", 0)


async def test_it_becomes_a_witness_under_its_lease_and_answers_whoever_calls() -> None:
    bench = Bench(leading().replica)
    assert await bench.look(lease_id=0) == NO_STAMPS
    stamps = await bench.look()
    assert stamps.silent == () and bench.key == (b"p1/7", 7)
    assert stamps.newest == Stamp("p1", 1, 101)
    bench.etcd.put(KEYS.stamps, stamps.called().encode())
    assert (await bench.look()).silent == ()
    await bench.look(lease_id=8)
    assert bench.key == (b"p1/8", 8)
    await bench.witnessing.close()


async def test_a_stamp_follows_when_others_have_written_something() -> None:
    bench = Bench(leading().replica)
    first = await bench.look()
    assert await bench.look() == first
    bench.now_ms += STAMPED_EVERY_MS
    bench.etcd.put("/elsewhere", b"")
    newest = (await bench.look()).newest
    assert newest is not None and (newest.writer, newest.revision) == ("p1", bench.etcd.revision - 1)


async def test_what_was_seen_while_it_wrote_is_looked_at_behind_that() -> None:
    bench = Bench(leading().replica)
    stamps = await bench.look()
    bench.etcd.put(KEYS.stamps, stamps.called().encode())
    bench.view.read_all(list(bench.etcd.entries.values()), bench.etcd.revision)
    bench.witnessing.look()
    # Somebody else was faster, and what it wrote is seen before the own write has failed.
    bench.etcd.put(KEYS.witness(BrokerId("b")), b"b/1")
    bench.etcd.put(KEYS.stamps, stamps.called().answered(BrokerId("b"), "b/1").encode())
    bench.view.read_all(list(bench.etcd.entries.values()), bench.etcd.revision)
    bench.witnessing.look()
    for _ in range(10):
        await asyncio.sleep(0)
    found = Stamps.decode(bench.etcd.entries[KEYS.stamps].value)
    assert found.silent == () and len(found.witnesses) == 2


async def test_nobody_answers_for_a_disk_that_was_not_compared() -> None:
    bench = Bench(ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3))).replica)
    assert await bench.look() == NO_STAMPS
    bench.set_names = []
    assert await bench.look() == NO_STAMPS, "without a set nothing is remembered"


async def test_nothing_is_written_to_an_etcd_that_was_set_back() -> None:
    bench = Bench(leading().replica)
    await bench.look()
    old = await bench.look()
    bench.now_ms += STAMPED_EVERY_MS
    bench.etcd.put("/elsewhere", b"")
    assert (await bench.look()).newest != old.newest
    bench.etcd.put(KEYS.stamps, old.called().encode())
    assert (await bench.look()).silent == (A,), "it has seen a stamp that is not there"
    other = Bench(leading().replica)
    await other.look()
    other.etcd.put(KEYS.set_back, b"a disk")
    other.etcd.put(KEYS.stamps, NO_STAMPS.encode())
    assert await other.look() == NO_STAMPS


async def test_what_it_writes_behind_a_stamp_in_doubt_hides_nothing_of_that() -> None:
    """Others have seen that stamp; then etcd was set back to right before it."""
    bench = Bench(leading().replica)
    backup = await bench.look()
    bench.now_ms += STAMPED_EVERY_MS
    bench.etcd.put("/elsewhere", b"")
    bench.etcd.delays_next_of = KEYS.stamps
    assert await bench.look() == backup
    assert bench.etcd.execute_delayed() == [True]
    lost = Stamps.decode(bench.etcd.entries[KEYS.stamps].value).newest
    assert lost is not None and lost != backup.newest
    bench.etcd.put(KEYS.stamps, backup.encode())
    bench.etcd.put("/elsewhere", b"")
    stamps = await bench.look()
    assert stamps.newest != backup.newest and stamps.lacks(lost) and not stamps.lacks(backup.newest)
