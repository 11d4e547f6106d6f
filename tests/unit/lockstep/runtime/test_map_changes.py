"""What a broker writes to etcd about its sets, where etcd executes it late (DESIGN R6)."""

import dataclasses
from typing import cast

import pytest

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.effects import DropLeaseKey, MapRead, MarkSetBack, PromoteSelf, RestoreLeaseKey, SwapMap
from lockstep.core.ids import BrokerId, DiskId, Incarnation, SetName
from lockstep.core.inputs import SwapAnswered, Verdict
from lockstep.core.stamps import NO_STAMPS, Stamp
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.map_changes import MapChanges
from tests.unit.services.etcd_in_memory import EtcdInMemory
from tests.unit.services.replicas import entry, member

SET = SetName("s")
KEYS = Keys("c")


async def test_a_lease_key_restored_late_does_not_take_it_from_the_lease_that_has_it_then() -> None:
    etcd, lease_ids = EtcdInMemory(), [1]
    answers: list[object] = []
    etcd.put(KEYS.set_map(SET), b"map")
    map_revision = etcd.revision
    lease_key, holder = KEYS.set_lease(SET), Incarnation("p.0")
    etcd.put(lease_key, holder.encode(), 7)

    async def read(_: SetName) -> None:
        """Nothing else has changed."""

    changes = MapChanges(
        cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: lease_ids[-1], read, answers.append
    )

    async def restore(request: int) -> Verdict:
        changes.perform(RestoreLeaseKey(SET, request, MapRead(map_revision, b"map"), holder, True))
        await changes.settled(SET)
        answered = answers[-1]
        assert isinstance(answered, SwapAnswered)
        return answered.verdict

    etcd.delays_next_of = lease_key
    assert await restore(1) is Verdict.IN_DOUBT
    lease_ids.append(2)
    assert await restore(2) is Verdict.DONE
    assert etcd.execute_delayed() == [False]
    assert etcd.entries[lease_key].lease_id == 2
    await changes.close()


@pytest.mark.parametrize("lease_then", [0, 2])
@pytest.mark.parametrize("is_promotion", [True, False])
async def test_a_swap_leaves_under_the_lease_under_which_it_was_asked_for_or_not_at_all(
    is_promotion: bool, lease_then: int
) -> None:
    """It was in hand while the machine slept, say, or behind something that etcd did not answer."""
    etcd, lease_ids, answers = EtcdInMemory(), [1], list[object]()
    now, target = entry(2, member("a")), entry(3, member("a"))
    etcd.put(KEYS.set_map(SET), now.encode())
    read_at = MapRead(etcd.revision, now.encode())

    async def read(_: SetName) -> None:
        """Nothing else has changed."""

    changes = MapChanges(
        cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: lease_ids[-1], read, answers.append
    )
    promotion = PromoteSelf(SET, 5, read_at, target, (), True)
    changes.perform(promotion if is_promotion else SwapMap(SET, 5, read_at, target))
    lease_ids.append(lease_then)
    await changes.settled(SET)
    assert answers == [SwapAnswered(SET, 5, Verdict.FAILED, 0)]
    assert etcd.entries[KEYS.set_map(SET)].value == now.encode() and KEYS.set_lease(SET) not in etcd.entries
    await changes.close()


@pytest.mark.parametrize("lease_then", [1, 0, 2])
async def test_a_lease_key_is_given_up_under_the_lease_under_which_that_was_asked_for_or_ends_with_it(
    lease_then: int,
) -> None:
    """etcd did not answer for long, and came back from a backup, say: there the key keeps others from an epoch that was begun."""
    etcd, lease_ids = EtcdInMemory(), [1]
    lease_key, holder = KEYS.set_lease(SET), Incarnation("p.0")
    etcd.put(lease_key, holder.encode(), 7)

    async def read(_: SetName) -> None:
        """Nothing is."""

    changes = MapChanges(
        cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: lease_ids[-1], read, lambda _: None
    )
    changes.perform(DropLeaseKey(SET, holder))
    lease_ids.append(lease_then)
    await changes.settled(SET)
    assert (lease_key in etcd.entries) == (lease_then != 1)
    await changes.close()


async def test_etcd_is_told_that_it_was_set_back_once_and_only_when_it_lacks_the_revision() -> None:
    etcd = EtcdInMemory()
    etcd.put(KEYS.generation, b"g1")

    async def read(_: SetName) -> None:
        """Nothing else has changed."""

    changes = MapChanges(cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: 1, read, lambda _: None)

    async def mark(revision: int) -> bytes:
        changes.perform(MarkSetBack(SET, revision, DiskId("d")))
        await changes.settled(SET)
        entry = etcd.entries.get(KEYS.set_back)
        return entry.value if entry is not None else b""

    assert await mark(etcd.revision) == b"", "only the view of this process was behind"
    told = await mark(500)
    assert told == b"the disk d of a has seen revision 500, etcd is at 101"
    assert await mark(900) == told
    await changes.close()


async def test_another_primary_of_the_epoch_is_told_while_etcd_has_it_however_far_it_has_come() -> None:
    etcd = EtcdInMemory()
    etcd.put(KEYS.generation, b"g1")
    own, anothers = entry(2, member("a")), entry(2, member("c"))

    async def read(_: SetName) -> None:
        """Nothing else has changed."""

    changes = MapChanges(cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: 1, read, lambda _: None)

    async def mark(now: SetMap) -> bytes:
        etcd.put(KEYS.set_map(SET), now.encode())
        changes.perform(MarkSetBack(SET, 0, DiskId("d"), None, "g1", own))
        await changes.settled(SET)
        told = etcd.entries.get(KEYS.set_back)
        return told.value if told is not None else b""

    assert await mark(own) == b"", "the newer state is back"
    assert await mark(anothers) == b"the disk d of a has seen a lead epoch 2 of s, and etcd another"
    await changes.close()


async def test_a_stamp_that_etcd_lacks_is_told_although_its_revision_has_passed_what_was_seen() -> None:
    etcd = EtcdInMemory()
    etcd.put(KEYS.generation, b"g1")
    remembered = NO_STAMPS.stamped(Stamp("p", 1, 90)).stamped(Stamp("p", 2, etcd.revision))
    etcd.put(KEYS.stamps, NO_STAMPS.stamped(Stamp("p", 1, 90)).encode())
    for _ in range(3):
        etcd.put("/elsewhere", b"")

    async def read(_: SetName) -> None:
        """Nothing else has changed."""

    changes = MapChanges(cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: 1, read, lambda _: None)

    async def mark(stamp: Stamp | None, generation: str = "g1") -> bytes:
        changes.perform(MarkSetBack(SET, 102, DiskId("d"), stamp, generation))
        await changes.settled(SET)
        entry = etcd.entries.get(KEYS.set_back)
        return entry.value if entry is not None else b""

    assert await mark(None) == b"" and await mark(Stamp("p", 1, 90)) == b""
    assert await mark(remembered.newest, "g0") == b"", "the map was rebuilt meanwhile"
    assert (
        await mark(remembered.newest)
        == b"the disk d of a has seen the stamp p/2/101, which etcd lacks at 105"
    )
    await changes.close()


@pytest.mark.parametrize("changed", ["entry", "presence", "nothing"])
async def test_a_revision_that_etcd_has_given_to_something_else_is_not_what_was_read(changed: str) -> None:
    """It was restored from a backup, and others have written to it since, as much as it had had."""
    etcd = EtcdInMemory()
    answers: list[object] = []
    before, presence = entry(1, member("a"), member("b")), KEYS.presence(SET, BrokerId("b"))
    etcd.put(presence, b"b.0")
    present = etcd.revision
    etcd.put(KEYS.set_map(SET), before.encode())
    others = {"entry": KEYS.set_map(SET), "presence": presence}
    read = MapRead(etcd.revision, before.encode())
    if changed in others:
        etcd.entries[others[changed]] = dataclasses.replace(etcd.entries[others[changed]], value=b"other")

    async def read_set(_: SetName) -> None:
        """It is read."""

    changes = MapChanges(cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: 1, read_set, answers.append)
    presences = ((BrokerId("b"), Incarnation("b.0"), present),)
    changes.perform(RestoreLeaseKey(SET, 1, read, Incarnation("a.0"), True))
    await changes.settled(SET)
    etcd.entries.pop(KEYS.set_lease(SET), None)
    changes.perform(PromoteSelf(SET, 2, read, entry(2, member("a")), presences, True))
    changes.perform(SwapMap(SET, 3, read, entry(1, member("a"))))
    await changes.settled(SET)
    await changes.close()
    done = [one.verdict is Verdict.DONE for one in answers if isinstance(one, SwapAnswered)]
    assert (
        done
        == {
            "entry": [False, False, False],
            "presence": [True, False, True],
            "nothing": [True, True, False],
        }[changed]
    )


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("is_mark_compared", [True, False])
async def test_where_etcd_says_that_it_was_set_back_nothing_is_done_that_may_be_done_only_in_another(
    is_mark_compared: bool, is_marked: bool
) -> None:
    """The word may have come there a moment before."""
    etcd, answers, before = EtcdInMemory(), list[object](), entry(1, member("a"))
    etcd.put(KEYS.set_map(SET), before.encode())
    read = MapRead(etcd.revision, before.encode())
    if is_marked:
        etcd.put(KEYS.set_back, b"the disk d of b has seen revision 900, etcd is at 100")

    async def read_set(_: SetName) -> None:
        """It is read."""

    changes = MapChanges(cast(EtcdClient, etcd), KEYS, BrokerId("a"), lambda: 1, read_set, answers.append)
    changes.perform(RestoreLeaseKey(SET, 1, read, Incarnation("a.0"), is_mark_compared))
    await changes.settled(SET)
    etcd.entries.pop(KEYS.set_lease(SET), None)
    changes.perform(PromoteSelf(SET, 2, read, entry(2, member("a")), (), is_mark_compared))
    await changes.settled(SET)
    await changes.close()
    done = [one.verdict is Verdict.DONE for one in answers if isinstance(one, SwapAnswered)]
    assert done == [not (is_mark_compared and is_marked)] * 2
    assert (KEYS.set_lease(SET) in etcd.entries) == done[1]
