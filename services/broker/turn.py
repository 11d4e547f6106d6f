"""Turn: the right to be the one broker of a cluster that stops on purpose, or that gives a set to another.

Law: it is a key in etcd under a lease of its own, so that it ends with whoever has it. Who has it is seen by its value: a turn
taken again for the same purpose, by the same broker, is the same turn.
"""

import logging
import secrets

from lockstep.core.ids import BrokerId
from lockstep.runtime.etcd import Absent, EtcdClient, EtcdInDoubt, EtcdRejected, LeaseGone, Put, ValueEquals

TURN_SECONDS = 15
"""How long the others wait for a broker that may stop now, and does not: it has its lease and its presence until it does."""
GIVING_BACK = ", which gives a set back"
"""Behind the broker's name in the value of the key; none: it is about to stop."""

_log = logging.getLogger("lockstep.turn")


class Turn:
    """From `take` to `end`, or until its lease runs out."""

    def __init__(self, etcd: EtcdClient, prefix: str, broker: BrokerId, is_giving_back: bool = False) -> None:
        """`prefix`: of the cluster's keys."""
        self._etcd = etcd
        self._key = f"{prefix}stepping-down"
        self._holder = (broker + (GIVING_BACK if is_giving_back else "")).encode()
        self._lease = 0
        self.is_new = False
        """With the last `take`."""

    async def take(self) -> str:
        """Takes or keeps it; returns "", or who has it and for what. Raises `EtcdRejected` or `EtcdInDoubt`."""
        if self._lease:
            try:
                await self._etcd.lease_renew(self._lease)
            except LeaseGone:
                self._lease = 0
        if not self._lease:
            lease = secrets.randbits(62) + 1
            await self._etcd.lease_grant(TURN_SECONDS, lease)
            self._lease = lease
        put = Put(self._key, self._holder, self._lease)
        self.is_new = (await self._etcd.transact([Absent(self._key)], [put])).succeeded
        if self.is_new:
            return ""
        # Its own from an earlier call, or an earlier process.
        if (await self._etcd.transact([ValueEquals(self._key, self._holder)], [put])).succeeded:
            return ""
        entry = await self._etcd.get(self._key)
        holder = "another broker" if entry is None else entry.value.decode(errors="replace")
        return holder if holder.endswith(GIVING_BACK) else f"{holder} is about to stop"

    async def end(self) -> None:
        """Somebody else may have it."""
        if self._lease:
            lease, self._lease = self._lease, 0
            try:
                await self._etcd.lease_revoke(lease)
            except (EtcdRejected, EtcdInDoubt) as error:
                _log.warning("event=turn_not_ended %s", error.message)
