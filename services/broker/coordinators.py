"""Coordinators of distributed transactions that are there now, as etcd has them."""

from lockstep.core.decision_log import DecisionKeys
from lockstep.runtime.etcd import EtcdClient


async def coordinators(etcd: EtcdClient, cluster: str) -> dict[str, str]:
    """Addresses by incarnation. Raises `EtcdRejected`, `EtcdInDoubt`."""
    prefix = DecisionKeys(cluster).all_coordinators
    entries, _ = await etcd.get_prefix(prefix)
    return {entry.key.removeprefix(prefix): entry.value.decode(errors="replace") for entry in entries}
