"""Creation of a resource set: what its first map entry says, and what it may not say (DESIGN R1).

Law: a name that was accepted once is a key of etcd, a directory of every store and a part of transaction ids for ever; so it is
checked here and nowhere else.
"""

import re
from collections.abc import Collection, Sequence

from lockstep.core.cluster_map import SetMap, default_min_in_sync
from lockstep.core.counted import counted
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName

NAME_LENGTH_MAX = 64
"""A file name on every store, with room for what stores add to it."""
BROKERS_MAX = 16
"""Far more replicas than help; every one of them costs each commit."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def first_entry(
    name: str,
    brokers: Sequence[str],
    min_in_sync: int,
    registered: Collection[BrokerId],
    by: Incarnation,
) -> SetMap:
    """The entry of a new set (epoch 0), written put-if-absent by process `by`; `min_in_sync` 0: the default of R3.

    `registered`: brokers that the cluster knows. Raises `Rejected` (INVALID_ARGUMENT, NOT_FOUND).
    """
    check_set_name(name)
    if not 1 <= len(brokers) <= BROKERS_MAX or len(set(brokers)) != len(brokers):
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"a set has 1 to {BROKERS_MAX} different brokers",
            brokers=list(brokers)[:32],
        )
    for broker in brokers:
        if broker not in registered:
            raise Rejected(
                ErrorCode.NOT_FOUND, f"no broker {broker[:80]!r} is registered", broker=broker[:80]
            )
    wanted = min_in_sync or default_min_in_sync(len(brokers))
    if not 1 <= wanted <= len(brokers):
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"min_in_sync is 1 to {len(brokers)} with {counted(len(brokers), 'broker')}",
            min_in_sync=min_in_sync,
        )
    return SetMap(
        set_name=SetName(name),
        epoch=Epoch(0),
        primary=BrokerId(""),
        primary_incarnation=Incarnation(""),
        in_sync=(),
        learners=(),
        brokers=tuple(BrokerId(broker) for broker in brokers),
        min_in_sync=wanted,
        change=1,
        changed_by=by,
    )


def check_set_name(name: str) -> None:
    """Raises `Rejected` INVALID_ARGUMENT for a name that cannot be a set's."""
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT,
            f"a set's name has 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' and '-', and begins with a letter or digit",
            name=name[:80],
        )
