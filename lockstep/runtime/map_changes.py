"""Map changes: performs what replicas want written to etcd (DESIGN R1, R5, R6), set by set, in the order of their effects.

Law: a swap is sent once, and its replica hears the current entry before it hears that the swap failed or is in doubt. What may be
repeated (presence, giving a lease key up) is bound to the mod_revision that was read just before, so that a first attempt that
etcd executes late can never undo what came after it (history 27). Everything is bound to the value that was read, too: an etcd
that was set back gives its revisions once more. And a swap, and giving a key up, leave under the lease under which they were
asked for, or not at all: whoever slept, or did not reach etcd, may have a successor, whom such an etcd has forgotten.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.effects import (
    DropLeaseKey,
    MarkSetBack,
    PromoteSelf,
    PutPresence,
    RestoreLeaseKey,
    SwapMap,
)
from lockstep.core.ids import BrokerId, SetName
from lockstep.core.inputs import AnyInput, SwapAnswered, Verdict
from lockstep.core.stamps import NO_STAMPS, Stamps
from lockstep.runtime.etcd import (
    Absent,
    Compare,
    Delete,
    Entry,
    EtcdClient,
    EtcdInDoubt,
    EtcdRejected,
    Get,
    GetDone,
    LeaseGone,
    Operation,
    Put,
    as_read,
    entry_as_read,
)
from lockstep.runtime.etcd_watcher import RETRY_PAUSE_SECONDS
from lockstep.runtime.process import spawn

_log = logging.getLogger("lockstep.map_changes")

MapEffect = SwapMap | PromoteSelf | DropLeaseKey | RestoreLeaseKey | PutPresence | MarkSetBack


class MapChanges:
    """Lives as long as the process. `perform` queues an effect; one task per set works through its queue."""

    def __init__(
        self,
        etcd: EtcdClient,
        keys: Keys,
        broker: BrokerId,
        lease_id: Callable[[], int],
        read_set: Callable[[SetName], Awaitable[None]],
        feed: Callable[[AnyInput], None],
    ) -> None:
        self._etcd = etcd
        self._keys = keys
        self._broker = broker
        self._lease_id = lease_id
        """The process lease now; 0: none, or it is over by the own clock."""
        self._read_set = read_set
        self._feed = feed
        self._queues: dict[SetName, asyncio.Queue[tuple[MapEffect, int]]] = {}
        """Effects, each with the process lease when it came."""
        self._tasks: list[asyncio.Task[None]] = []

    def perform(self, effect: MapEffect) -> None:
        queue = self._queues.get(effect.set_name)
        if queue is None:
            queue = self._queues[effect.set_name] = asyncio.Queue()
            self._tasks.append(spawn(self._work(queue), f"map changes of {effect.set_name}"))
        queue.put_nowait((effect, self._lease_id()))

    async def settled(self, set_name: SetName) -> None:
        """Returns when everything queued for the set so far was done."""
        queue = self._queues.get(set_name)
        if queue is not None:
            await queue.join()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, queue: "asyncio.Queue[tuple[MapEffect, int]]") -> None:
        while True:
            effect, lease_id = await queue.get()
            match effect:
                case SwapMap():
                    await self._swap(effect, lease_id, self._entry_is(effect), [self._put_map(effect)])
                case PromoteSelf():
                    await self._promote(effect, lease_id)
                case RestoreLeaseKey():
                    await self._restore_lease_key(effect, lease_id)
                case DropLeaseKey():
                    await self._until_done(partial(self._drop_lease_key, lease_id), effect)
                case PutPresence():
                    await self._until_done(self._put_presence, effect)
                case MarkSetBack():
                    await self._until_done(self._mark_set_back, effect)
            queue.task_done()

    # Swaps

    def _entry_is(self, effect: SwapMap | PromoteSelf | RestoreLeaseKey) -> list[Compare]:
        expected = effect.expected
        return [*as_read(self._keys.set_map(effect.set_name), expected.value, expected.revision)]

    def _mark_is(self, effect: PromoteSelf | RestoreLeaseKey) -> list[Compare]:
        return [Absent(self._keys.set_back)] if effect.is_mark_compared else []

    def _put_map(self, effect: SwapMap | PromoteSelf) -> Operation:
        return Put(self._keys.set_map(effect.set_name), effect.set_map.encode())

    async def _promote(self, effect: PromoteSelf, lease_id: int) -> None:
        lease_key = self._keys.set_lease(effect.set_name)
        compares = [*self._entry_is(effect), *self._mark_is(effect), Absent(lease_key)]
        for broker, incarnation, revision in effect.presences:
            compares += as_read(self._keys.presence(effect.set_name, broker), incarnation.encode(), revision)
        holder = effect.set_map.primary_incarnation.encode()
        puts: list[Operation] = [self._put_map(effect), Put(lease_key, holder, lease_id)]
        await self._swap(effect, lease_id, compares, puts)

    async def _restore_lease_key(self, effect: RestoreLeaseKey, lease_id: int) -> None:
        lease_key, holder = self._keys.set_lease(effect.set_name), effect.incarnation.encode()
        try:
            entry = await self._etcd.get(lease_key)
        except (EtcdRejected, EtcdInDoubt):
            entry = None
        # Its own key may be there: under the lease before, or by an attempt whose answer was lost. By its revision: what is
        # executed late, under a lease that is no more, is not to take it from the lease that has it then.
        is_own = entry is not None and entry.value == holder
        key_is = entry_as_read(lease_key, entry if is_own else None)
        compares = [*self._entry_is(effect), *self._mark_is(effect), *key_is]
        await self._swap(effect, lease_id, compares, [Put(lease_key, holder, lease_id)])

    async def _swap(
        self,
        effect: SwapMap | PromoteSelf | RestoreLeaseKey,
        lease_id: int,
        compares: list[Compare],
        operations: list[Operation],
    ) -> None:
        """`lease_id`: the process lease when it was asked for."""
        if not self._is_held(lease_id):
            await self._answer(effect, Verdict.FAILED, 0)
            return
        try:
            result = await self._etcd.transact(compares, operations)
        except EtcdRejected as error:
            _log.info("set=%s event=swap_rejected %s", effect.set_name, error.message)
            await self._answer(effect, Verdict.FAILED, 0)
        except EtcdInDoubt as error:
            _log.warning("set=%s event=swap_in_doubt %s", effect.set_name, error.message)
            await self._answer(effect, Verdict.IN_DOUBT, 0)
        else:
            revision = effect.expected.revision if isinstance(effect, RestoreLeaseKey) else result.revision
            await self._answer(effect, Verdict.DONE if result.succeeded else Verdict.FAILED, revision)

    def _is_held(self, lease_id: int) -> bool:
        """Whether the process lease is still the one that it was when something was asked for."""
        return lease_id != 0 and lease_id == self._lease_id()

    async def _answer(
        self, effect: SwapMap | PromoteSelf | RestoreLeaseKey, verdict: Verdict, revision: int
    ) -> None:
        if verdict is not Verdict.DONE:
            revision = 0
            await self._read_set(effect.set_name)
        self._feed(SwapAnswered(effect.set_name, effect.request, verdict, revision))

    # What is repeated until it is so

    async def _until_done(self, attempt: Callable[..., Awaitable[bool]], effect: MapEffect) -> None:
        """Repeats `attempt` until it says that there is nothing left to do."""
        while True:
            try:
                if await attempt(effect):
                    return
            except LeaseGone:
                # The replica asks again under the next lease.
                return
            except (EtcdRejected, EtcdInDoubt):
                await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def _drop_lease_key(self, lease_id: int, effect: DropLeaseKey) -> bool:
        if not self._is_held(lease_id):
            # It ends with the lease. Where it does not, the replica asks again, if the etcd that is there now was not set back.
            return True
        key = self._keys.set_lease(effect.set_name)
        entry = await self._etcd.get(key)
        if entry is None or entry.value != effect.incarnation.encode():
            return True
        result = await self._etcd.transact(entry_as_read(key, entry), [Delete(key)])
        return result.succeeded

    async def _mark_set_back(self, effect: MarkSetBack) -> bool:
        """Where etcd has the revision after all, only this process's view was behind. Where it lacks a stamp, how far it has come
        since does not matter.
        """
        keys = self._keys
        asked = (keys.generation, keys.set_back, keys.stamps, keys.set_map(effect.set_name))
        known = await self._etcd.transact([], [Get(key) for key in asked])
        generation, set_back, stamps, of_set = (
            one.entry for one in known.responses if isinstance(one, GetDone)
        )
        if set_back is not None or generation is None:
            return True
        if effect.generation and generation.value != effect.generation.encode():
            return True
        is_stamp_lost = _stamps_of(stamps).lacks(effect.stamp)
        rival = effect.rival
        is_rival = rival is not None and of_set is not None and rival.is_rival_of(SetMap.decode(of_set.value))
        if known.revision >= effect.revision and not is_stamp_lost and not is_rival:
            return True
        who = f"the disk {effect.disk} of {self._broker}" if effect.disk else f"{self._broker}"
        text = f"{who} has seen revision {effect.revision}, etcd is at {known.revision}"
        if rival is not None and is_rival:
            text = f"{who} has seen {rival.primary} lead epoch {rival.epoch} of {effect.set_name}, and etcd another"
        elif is_stamp_lost and effect.stamp is not None:
            text = f"{who} has seen the stamp {effect.stamp.encode()}, which etcd lacks at {known.revision}"
        compares = [Absent(keys.set_back), *entry_as_read(keys.generation, generation)]
        result = await self._etcd.transact(compares, [Put(keys.set_back, text.encode())])
        if result.succeeded:
            advice = "nothing starts, and nobody presumes anything (lockstep cluster rebuild-map)"
            _log.critical("set=%s event=etcd_set_back %s: %s", effect.set_name, text, advice)
        return True

    async def _put_presence(self, effect: PutPresence) -> bool:
        lease_id = self._lease_id()
        if lease_id == 0:
            return True
        key = self._keys.presence(effect.set_name, self._broker)
        entry = await self._etcd.get(key)
        if entry is not None and entry.value == effect.incarnation.encode() and entry.lease_id == lease_id:
            return True
        put = Put(key, effect.incarnation.encode(), lease_id)
        return (await self._etcd.transact(entry_as_read(key, entry), [put])).succeeded


def _stamps_of(entry: Entry | None) -> Stamps:
    """What cannot be read lacks nothing that could be told."""
    try:
        return Stamps.decode(entry.value) if entry is not None else NO_STAMPS
    except ValueError as error:
        _log.error("event=bad_stamps %s", error)
        return Stamps(forgotten=entry.mod_revision if entry is not None else 0)
