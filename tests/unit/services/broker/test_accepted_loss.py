"""Accepting the loss of data: the generation changes once, by compare, and not in vain."""

from collections.abc import Sequence
from typing import cast

import pytest

from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.inputs import StoreLost
from lockstep.core.lineage import Lineage
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import Compare, EtcdClient, Operation, TransactionResult
from services.broker import accepted_loss
from services.broker.accepted_loss import change_generation, until_it_can_lead
from services.broker.core.replica import Replica
from tests.unit.services.etcd_in_memory import EtcdInMemory
from tests.unit.services.replicas import SET, MemoryStore, ReplicaBench, entry, frames, member, seen

KEYS = Keys("c")


class Hosting:
    """A driver that hosts one replica, or none."""

    def __init__(self, replica: Replica | None) -> None:
        self._replica = replica

    def core(self, _: object) -> Replica | None:
        return self._replica


def etcd_with_generation() -> EtcdInMemory:
    etcd = EtcdInMemory()
    etcd.put(KEYS.generation, b"g1")
    return etcd


async def change(etcd: EtcdInMemory) -> str:
    return await change_generation(cast(EtcdClient, etcd), KEYS, SET)


def lineage(etcd: EtcdInMemory) -> Lineage:
    return Lineage.read(etcd.entries[KEYS.generation].value.decode(), etcd.entries[KEYS.lineage].value)


async def test_the_generation_before_stays_in_the_lineage() -> None:
    etcd = etcd_with_generation()
    second = await change(etcd)
    third = await change(etcd)
    assert lineage(etcd) == Lineage(third, ("g1", second))
    assert etcd.entries[KEYS.lineage].mod_revision == etcd.entries[KEYS.generation].mod_revision


async def test_a_set_that_is_led_changes_nothing() -> None:
    etcd = etcd_with_generation()
    etcd.put(KEYS.set_lease(SET), b"a.0")
    with pytest.raises(Rejected, match="is led") as raised:
        await change(etcd)
    assert raised.value.code is ErrorCode.IN_USE
    assert etcd.entries[KEYS.generation].value == b"g1" and KEYS.lineage not in etcd.entries


class Overtaken(EtcdInMemory):
    """Another operator accepts a loss between the first read and the change that rests on it."""

    is_overtaken = False

    async def transact(
        self,
        compares: Sequence[Compare],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> TransactionResult:
        result = await super().transact(compares, on_success, on_failure)
        if not self.is_overtaken:
            self.is_overtaken = True
            self.put(KEYS.lineage, Lineage("g1").changed_to("g2").encode())
            self.put(KEYS.generation, b"g2")
        return result


async def test_a_change_in_between_is_not_lost() -> None:
    etcd = Overtaken()
    etcd.put(KEYS.generation, b"g1")
    found = await change(etcd)
    assert lineage(etcd) == Lineage(found, ("g1", "g2"))


async def test_a_disk_that_could_not_be_the_set_is_told_before_anything_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepted_loss, "READY_SECONDS", 0.1)
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.feed(seen(entry(1, member("b")), 10))
    bench.feed(StoreLost(SET))
    with pytest.raises(Rejected, match="nothing was changed: a has not read its disk yet") as raised:
        await until_it_can_lead(cast(Driver, Hosting(bench.replica)), SET)
    assert raised.value.code is ErrorCode.ILLEGAL_STATE
    with pytest.raises(Rejected, match="no replica"):
        await until_it_can_lead(cast(Driver, Hosting(None)), SET)


async def test_a_whole_disk_can_be_the_set_whoever_the_map_names() -> None:
    bench = ReplicaBench(MemoryStore("disk-a", *frames(1, 1, 3)))
    bench.feed(seen(entry(1, member("b")), 10))
    await until_it_can_lead(cast(Driver, Hosting(bench.replica)), SET)
