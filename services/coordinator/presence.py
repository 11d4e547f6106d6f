"""Presence of a coordinator in etcd: a key under its lease. Others take up what it began when the key is gone (DESIGN T4).
Its value is the address by which clients find it.

Law: participants are written only while the key stands, by comparing its revision. A process that stood still for longer than its
lease finds its writes refused, and registers anew before it begins anything. So does one whose key is not as it wrote it, though
its lease lives: a registration in doubt may be executed late, and takes the key along when its own lease ends.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable

from lockstep.core.branch_names import GenerationTag, generation_tag
from lockstep.core.cluster_map import Keys
from lockstep.core.decision_log import DecisionKeys, SetBackWatch
from lockstep.core.ids import Incarnation
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.decision_log import is_believed
from lockstep.runtime.etcd import Absent, EtcdClient, EtcdInDoubt, EtcdRejected, Get, GetDone, LeaseGone, Put

_log = logging.getLogger("lockstep.coordinator")

RETRY_SECONDS = 0.1
RENEWALS_PER_LEASE = 5
SEEN_SECONDS = 1.0
"""How often etcd is read at least, however long the lease is: whoever had nothing of it for some seconds has to ask others."""


class Presence:
    """Lives as long as the process; `run` is a task of it."""

    def __init__(
        self, etcd: EtcdClient, cluster: str, process: Incarnation, address: str, lease_seconds: int
    ) -> None:
        """`address`: host:port under which clients reach it; the value of its key."""
        self._etcd = etcd
        self._address = address
        self._lease_seconds = lease_seconds
        self._generation_key = Keys(cluster).generation
        self.key = DecisionKeys(cluster).coordinator(process)
        self.revision = 0
        """Of the key, as last written; 0: not registered."""
        self.generation: GenerationTag | None = None
        """Of the cluster, as last read."""
        self.generation_value = b""
        self.watch = SetBackWatch()
        """Given all that is read here, which is often."""
        self.seen: Callable[[int], None] = lambda _asked_ms: None
        """Called when it was; with when that was asked, by CLOCK_BOOTTIME."""
        self._lease_id = 0
        self._is_registered = asyncio.Event()

    async def registered(self) -> None:
        """Returns when it was registered for the first time."""
        await self._is_registered.wait()

    async def run(self) -> None:
        """Registers and renews, as long as the process lives."""
        is_reachable = True
        while True:
            try:
                if self.revision == 0:
                    await self._register()
                else:
                    await self._etcd.lease_renew(self._lease_id)
                    if await self._read() != self.revision:
                        _log.warning("event=presence_lost reason=key_not_ours")
                        self.revision = 0
                        continue
                is_reachable = True
            except LeaseGone:
                _log.warning("event=presence_lost")
                self.revision = 0
                continue
            except (EtcdRejected, EtcdInDoubt) as error:
                if is_reachable:
                    _log.warning("event=etcd_unreachable %s", error.message)
                is_reachable = False
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(min(self._lease_seconds / RENEWALS_PER_LEASE, SEEN_SECONDS))

    async def end(self) -> None:
        """The process stops: what it has in hand is taken up at once."""
        self.revision = 0
        if self._lease_id:
            try:
                await self._etcd.lease_revoke(self._lease_id)
            except (EtcdRejected, EtcdInDoubt):
                _log.info("event=lease_left reason=etcd_unreachable")

    async def _register(self) -> None:
        await self._read()
        lease = await self._etcd.lease_grant(self._lease_seconds)
        self._lease_id = lease.lease_id
        written = await self._etcd.transact([], [Put(self.key, self._address.encode(), lease.lease_id)])
        self.revision = written.revision
        self._is_registered.set()
        _log.info("event=registered key=%s revision=%d", self.key, self.revision)

    async def _read(self) -> int:
        """The generation, which it makes where the cluster has none yet, as a broker that comes first does; returns the revision
        of the key, 0 if there is none.
        """
        made, asked = Put(self._generation_key, str(uuid.uuid4()).encode()), self.watch.seen
        reads, asked_ms = [Get(self._generation_key), Get(self.key)], boottime_ms()
        result = await self._etcd.transact([Absent(self._generation_key)], [made, *reads], reads)
        generation, key = result.responses[-2:]
        assert isinstance(generation, GetDone) and generation.entry is not None, "there is one now"
        assert isinstance(key, GetDone), "it was read"
        self.generation_value = generation.entry.value
        value = generation.entry.value.decode(errors="replace")
        self.generation = generation_tag(value)
        is_believed(self.watch, result.revision, value, asked)
        self.seen(asked_ms)
        return key.entry.mod_revision if key.entry is not None else 0
