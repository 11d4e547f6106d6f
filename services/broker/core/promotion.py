"""Promotion: whether this replica may become primary, and the map entry with which it would (R5, R7, R9).

Law: only a replica whose disk an in-sync entry names, and of the restarted ones only while no member that kept its memory is
present. All of that is compared again by the etcd transaction that promotes; what is decided here only saves asking in vain.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.ids import EPOCH_MAX, BrokerId, DiskId, Epoch, Incarnation
from services.broker.core.map_rebuilding import EPOCHS_LEFT_FREE


@dataclass(frozen=True, slots=True)
class Candidacy:
    """A promotion worth asking for."""

    target: SetMap
    """The entry to be."""
    presences: tuple[tuple[BrokerId, Incarnation, int], ...]
    """(broker, incarnation and mod_revision that its presence key must have, 0: absent): no member that kept its memory may be
    there.
    """
    is_restarted: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What a replica knows of itself when it asks whether it may be promoted."""

    broker: BrokerId
    disk: DiskId
    incarnation: Incarnation
    is_memory_whole: bool


def candidacy(
    set_map: SetMap, standing: Standing, presences: Mapping[BrokerId, tuple[Incarnation, int]]
) -> Candidacy | None:
    """The promotion that this replica may ask for now, None if it may not. The caller knows that the lease key is absent."""
    if set_map.epoch == 0:
        return Candidacy(_entry(set_map, standing, (), Epoch(1)), (), True)
    own = next((entry for entry in set_map.in_sync if entry.disk == standing.disk), None)
    if own is None or own.broker != standing.broker:
        return None
    others = tuple(entry for entry in set_map.in_sync if entry != own)
    is_restarted = not (standing.is_memory_whole and own.incarnation == standing.incarnation)
    compared: tuple[tuple[BrokerId, Incarnation, int], ...] = ()
    if is_restarted:
        for entry in others:
            presence = presences.get(entry.broker)
            if presence is not None and presence[0] == entry.incarnation:
                return None
        absent = Incarnation(""), 0
        compared = tuple((entry.broker, *presences.get(entry.broker, absent)) for entry in others)
    # The dead primary goes, unless that leaves too few (R5).
    without_primary = tuple(entry for entry in others if entry.broker != set_map.primary)
    if len(without_primary) + 1 >= set_map.min_in_sync:
        others = without_primary
    return Candidacy(_entry(set_map, standing, others, Epoch(set_map.epoch + 1)), compared, is_restarted)


def data_loss_candidacy(set_map: SetMap, standing: Standing, highest_epoch: Epoch) -> Candidacy:
    """The promotion that an operator forces: this disk alone is the set from now on (R7). What the others have seen nobody knows,
    in an etcd that was set back: so this epoch is above all that they can have (`EPOCHS_LEFT_FREE`).
    """
    epoch = Epoch(min(max(set_map.epoch, highest_epoch) + EPOCHS_LEFT_FREE, EPOCH_MAX))
    return Candidacy(_entry(set_map, standing, (), epoch), (), True)


def _entry(set_map: SetMap, standing: Standing, others: tuple[Member, ...], epoch: Epoch) -> SetMap:
    own = Member(standing.broker, standing.disk, standing.incarnation)
    in_sync = tuple(sorted((own, *others)))
    dropped = {entry for entry in (*set_map.in_sync, *set_map.learners) if entry.broker != standing.broker}
    learners = tuple(sorted(dropped - set(in_sync)))
    return replace(
        set_map,
        epoch=epoch,
        primary=standing.broker,
        primary_incarnation=standing.incarnation,
        in_sync=in_sync,
        learners=learners,
        change=set_map.change + 1,
        changed_by=standing.incarnation,
    )
