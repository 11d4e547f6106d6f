"""A broker puts stamps into etcd, and answers for its disk (DESIGN R1): does what `WitnessKeeper` wants.

Law: one write at a time, and none to an etcd that says that it was set back, or lacks a stamp that this process has seen. One
that failed is looked at again when the view changes, or with the next renewal of the lease.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lockstep.core.ids import BrokerId, Incarnation
from lockstep.core.stamps import Stamp
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import Compare, EtcdClient, EtcdInDoubt, EtcdRejected, Operation, Put, as_read
from lockstep.runtime.process import spawn
from services.broker.core.replica import Replica
from services.broker.core.witness import EtcdSeen, StampsWritten, WitnessKeeper

_log = logging.getLogger("lockstep.witness")


class Witnessing:
    """Lives as long as the broker process; asked on the event loop whenever etcd has changed, and from time to time."""

    def __init__(
        self,
        view: ClusterView,
        driver: Driver,
        etcd: EtcdClient,
        broker: BrokerId,
        process: Incarnation,
        now_ms: Callable[[], int],
        lease_id: Callable[[], int],
    ) -> None:
        """`lease_id`: the process's, 0: none."""
        self._view = view
        self._driver = driver
        self._etcd = etcd
        self._broker = broker
        self._now_ms = now_ms
        self._lease_id = lease_id
        self._keeper = WitnessKeeper(broker, process)
        self._newest: Stamp | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False

    def look(self) -> None:
        """Write what is due."""
        view, now_ms, lease_id = self._view, self._now_ms(), self._lease_id()
        if view.stamp != self._newest:
            self._newest = view.stamp
            self._keeper.stamped(now_ms)
        if self._writing is not None or view.is_set_back or view.is_stamp_lost:
            return
        seen = EtcdSeen(view.stamps, view.stamps_revision, view.etcd_revision, view.witnesses)
        wanted = self._keeper.look(seen, lease_id, now_ms)
        if wanted is not None and self._has_compared():
            revision = view.stamps_revision
            is_as_seen = as_read(view.keys.stamps, view.stamps_value, revision)
            self._writing = spawn(self._put(wanted, is_as_seen, lease_id), "stamps")
            self._writing.add_done_callback(lambda _: self._written(revision))

    async def close(self) -> None:
        self._is_closed = True
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _has_compared(self) -> bool:
        """Whether the disks of all sets were; a broker without any remembers nothing."""
        cores = [self._driver.core(name) for name in self._driver.set_names]
        return bool(cores) and all(isinstance(core, Replica) and core.has_compared for core in cores)

    async def _put(self, wanted: StampsWritten, is_as_seen: Sequence[Compare], lease_id: int) -> None:
        keys, value = self._view.keys, wanted.stamps.encode()
        operations: list[Operation] = [Put(keys.stamps, value)]
        if wanted.token:
            operations.append(Put(keys.witness(self._broker), wanted.token.encode(), lease_id))
        try:
            result = await self._etcd.transact(is_as_seen, operations)
        except (EtcdRejected, EtcdInDoubt) as error:
            _log.info("event=stamps_not_written %s", error.message)
            if isinstance(error, EtcdInDoubt):
                self._keeper.in_doubt()
            return
        if result.succeeded:
            self._view.stamps_put(value, result.revision)
            if wanted.token:
                self._view.witnesses[self._broker] = wanted.token
                _log.info("broker=%s event=witness token=%s", self._broker, wanted.token)

    def _written(self, revision: int) -> None:
        """What was seen meanwhile was not looked at."""
        self._writing = None
        if self._view.stamps_revision > revision and not self._is_closed:
            self.look()
