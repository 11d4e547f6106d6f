"""Accepting the loss of data in a set: what is asked of the disk that is to be taken, and the new generation (DESIGN R7).

Law: the generation concerns every set of the cluster, so it changes only once it is known that this broker's replica can lead its
set, by one transaction that compares that nobody leads it. The generation before stays in the lineage: other sets lost nothing,
and their disks, whoever of them sleeps now, go on.
"""

import asyncio
import uuid

from lockstep.core.cluster_map import Keys
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.core.lineage import Lineage
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import (
    Absent,
    Compare,
    EtcdClient,
    Get,
    GetDone,
    Put,
    entry_as_read,
)
from services.broker.core.replica import Replica

READY_SECONDS = 8.0
"""How long a disk may take to be read before the command gives up; it can be repeated."""
ROUNDS_MAX = 5
_POLL_SECONDS = 0.05


async def until_it_can_lead(driver: Driver, set_name: SetName) -> None:
    """Waits for a disk that is being read. Raises `Rejected`, with nothing changed, if this broker could not become the set."""
    if not isinstance(driver.core(set_name), Replica):
        raise Rejected(ErrorCode.NOT_FOUND, f"there is no replica of {set_name!r} here", set_name=set_name)
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while obstacle := obstacle_here(driver, set_name):
        if asyncio.get_running_loop().time() >= deadline:
            text = f"the loss would be accepted in vain, and nothing was changed: {obstacle}"
            raise Rejected(ErrorCode.ILLEGAL_STATE, text, set_name=set_name)
        await asyncio.sleep(_POLL_SECONDS)


def obstacle_here(driver: Driver, set_name: SetName) -> str:
    """What stands in the way of the replica here becoming the set, as far as is known; "": nothing."""
    core = driver.core(set_name)
    return core.obstacle_to_accepted_loss if isinstance(core, Replica) else ""


async def change_generation(etcd: EtcdClient, keys: Keys, set_name: SetName) -> str:
    """Only while nobody holds the set's lease key; returns the new one. Raises `Rejected`."""
    lease_key = keys.set_lease(set_name)
    for _ in range(ROUNDS_MAX):
        read = await etcd.transact([], [Get(keys.generation), Get(keys.lineage)])
        generation, lineage = (one.entry for one in read.responses if isinstance(one, GetDone))
        before = Lineage.read(
            generation.value.decode(errors="replace") if generation else "", lineage.value if lineage else b""
        )
        after = before.changed_to(str(uuid.uuid4()))
        compares: list[Compare] = [
            Absent(lease_key),
            *entry_as_read(keys.generation, generation),
            *entry_as_read(keys.lineage, lineage),
        ]
        puts = [Put(keys.lineage, after.encode()), Put(keys.generation, after.generation.encode())]
        result = await etcd.transact(compares, puts, [Get(lease_key)])
        if result.succeeded:
            return after.generation
        (held,) = result.responses
        if isinstance(held, GetDone) and held.entry is not None:
            holder = held.entry.value.decode(errors="replace")
            text = f"set {set_name!r} is led: its lease is held"
            raise Rejected(ErrorCode.IN_USE, text, set_name=set_name, holder=holder)
    raise Rejected(ErrorCode.ILLEGAL_STATE, "the generation keeps changing: run it again", set_name=set_name)
