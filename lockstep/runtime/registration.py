"""Registration: what a starting broker writes to etcd before it serves anything (DESIGN R1).

Law: a cluster has one generation, made by whoever comes first, and a member's entry says where its newest process listens.
"""

import asyncio
import logging
import uuid

from lockstep.core.cluster_map import Keys
from lockstep.runtime.cluster_view import MemberEntry
from lockstep.runtime.etcd import Absent, EtcdClient, EtcdInDoubt, EtcdRejected, Put
from lockstep.runtime.etcd_watcher import RETRY_PAUSE_SECONDS

_log = logging.getLogger("lockstep.registration")


async def register(etcd: EtcdClient, keys: Keys, member: MemberEntry) -> None:
    """Writes the member's entry, and the cluster's generation if there is none; tries as long as etcd cannot be reached."""
    is_reachable = True
    while True:
        try:
            generation = Put(keys.generation, str(uuid.uuid4()).encode())
            await etcd.transact([Absent(keys.generation)], [generation])
            await etcd.transact([], [Put(keys.member(member.broker), member.encode())])
        except (EtcdRejected, EtcdInDoubt) as error:
            if is_reachable:
                _log.warning("event=etcd_unreachable %s", error.message)
            is_reachable = False
            await asyncio.sleep(RETRY_PAUSE_SECONDS)
        else:
            _log.info("broker=%s event=registered address=%s", member.broker, member.address)
            return
