"""Rebuilding the map: what entries a cluster gets whose etcd has lost its data, from what its disks remember (DESIGN R1, R9).

Law: what was acknowledged is in the log with the highest (epoch of its last record, end) of all disks that may have been written
to: whoever led the last epoch wrote everything to its own disk. So every configured broker's disk is asked, or left out by its
name, explicitly (another disk in the place of one that was in sync is not that disk); and only disks whose logs end as the best
one's does are named, the others come back as learners. So does a disk on which its broker does not stand, whatever its store
says of it; where it has more than all others, an operator chooses. Epochs of which only a disk knew that is left out are never
given again. Where an etcd that was set back let one begin twice, or a disk knows that more was acknowledged than the log has that
would go on, or has more that may have been, of which such an etcd knew nothing, an operator says which of the two goes; also
where that is led. In the new generation no disk tells that any more: so where etcd was set back, the disk of every configured
broker is asked or given up for a set that is left alone, too.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.epoch_table import (
    UNKNOWN_REIGN,
    EpochStarts,
    LogOutline,
    Reigns,
    agreement,
    reign_of,
    rival_epoch,
)
from lockstep.core.ids import EPOCH_MAX, BrokerId, DiskId, Epoch, Incarnation, LogIndex, SetName
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import NO_STAMPS, Stamp, Stamps

EPOCHS_LEFT_FREE = 1_000_000
"""Between the highest epoch known and the one begun, when a disk was left out, or loss accepted: more than it can have seen
beyond that. An offset of committed events names a log by the epoch that wrote it (DESIGN 7): an epoch of a lost log must not have
other records."""


@dataclass(frozen=True, slots=True)
class DiskFound:
    """What one broker's disk says of one set."""

    broker: BrokerId
    disk: DiskId
    last_epoch: Epoch
    """Of the log's last record."""
    log_end: LogIndex
    highest_epoch: Epoch
    map_bytes: bytes
    map_revision: int
    generation: str
    trouble: str
    """Damage, or why it cannot be read; "": it is whole."""
    etcd_revision: int = 0
    """The highest of etcd itself that it was told, in `generation`; 0: none."""
    stamp: str = ""
    """The newest of etcd that it was told; "": none."""
    epochs: EpochStarts = ()
    """Of its log; (): not known."""
    reigns: Reigns = ()
    commit_index: LogIndex = LogIndex(0)
    """The highest that it knows: so much was acknowledged."""
    snapshot_index: LogIndex = LogIndex(0)
    """How far its snapshot reaches; 0: it has none."""
    found_by_broker: str = ""
    """What its broker has found to be wrong with it, and the store does not know: what it has is known, and its broker will not
    stand with it; "": nothing."""
    is_broker_ahead: bool = False
    """A disk of its broker, of whichever set, remembers a revision or a stamp that etcd lacks (`with_all_seen`)."""

    @property
    def outline(self) -> LogOutline:
        return LogOutline(self.epochs, self.log_end, self.reigns)

    @property
    def is_used(self) -> bool:
        """Something was ever written to it, or it was fenced."""
        return bool(self.highest_epoch or self.log_end or self.map_bytes or self.trouble)

    @property
    def epoch_seen(self) -> Epoch:
        """The highest that it speaks of, in the entry that it was told last, too."""
        entry = self.remembered()
        return max(self.highest_epoch, entry.epoch) if entry is not None else self.highest_epoch

    @property
    def acknowledged(self) -> LogIndex:
        """So much was, as far as it knows. A newcomer may be gone before it hears that its snapshot was: but the map names nobody
        before that is so (R8).
        """
        entry = self.remembered()
        is_named = entry is not None and entry.names_disk(self.disk)
        return max(self.commit_index, self.snapshot_index) if is_named else self.commit_index

    def remembered(self) -> SetMap | None:
        """The entry that it was told last."""
        try:
            return SetMap.decode(self.map_bytes)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class EtcdKnows:
    """What etcd says of the set, read when the disks had said what they have: what one remembers and is not there was lost, and
    did not come in between.
    """

    set_map: SetMap | None
    revision: int
    is_led: bool
    lineage: Lineage
    etcd_revision: int = 0
    """etcd's own; 0: not known."""
    stamps: Stamps = NO_STAMPS
    is_set_back: bool = False
    """It says so of itself, or a disk does (`in_sight_of`): nothing that nobody leads is as it should be."""

    def in_sight_of(self, found: Mapping[SetName, Sequence[DiskFound]]) -> "EtcdKnows":
        """The same, with what the disks of all sets tell of it (`with_all_seen`): its brokers may have yet to say so in it."""
        is_told = any(disk.is_broker_ahead for disks in found.values() for disk in disks)
        return replace(self, is_set_back=self.is_set_back or is_told)

    def goes_on_from(self, before: "EtcdKnows") -> bool:
        """Whether what the disks have said since etcd was read `before` may be compared with this: whoever leads now led when its
        disk was asked, and in between nobody has begun an epoch, or set etcd back, or given it another generation.
        """
        if self.etcd_revision < before.etcd_revision or self.stamps.lacks(before.stamps.newest):
            return False
        return self._reign == before._reign

    @property
    def _reign(self) -> tuple[object, ...]:
        entry = self.set_map
        led = (entry.epoch, entry.primary_incarnation) if entry is not None else None
        return led, self.is_led, self.lineage, self.is_set_back


class Verdict(Enum):
    """What `rebuild-map` does with a set."""

    LED = "led"
    """Somebody leads it: left alone."""
    CURRENT = "current"
    """No disk is ahead of etcd: left alone."""
    REBUILT = "rebuilt"
    """It gets the entry of the plan."""
    UNHEARD = "unheard"
    """None of its disks in sync could be asked: left alone, and to be looked at again when they are back."""
    STUCK = "stuck"
    """It has to be rebuilt and cannot: see `problem`."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    """What becomes of one set."""

    set_name: SetName
    verdict: Verdict
    entry: SetMap | None = None
    """The entry to write, when it is to be rebuilt."""
    disks: tuple[DiskFound, ...] = ()
    problem: str = ""
    is_lead_doubtful: bool = False
    """etcd was set back, and says that somebody leads it: his lease may have come back with it, and he may be gone or deposed."""
    unheard: tuple[BrokerId, ...] = ()
    """Configured brokers whose disks were not heard of, are not whole, or have another in their place."""


def plan_set(
    set_name: SetName,
    etcd: EtcdKnows,
    found: Sequence[DiskFound],
    reached: Collection[BrokerId],
    without: Collection[BrokerId],
    by: Incarnation,
) -> SetPlan | None:
    """What to do with a set; None when neither etcd nor a disk knows anything of it.

    `reached`: brokers whose stores were asked; one without this set has nothing of it, unless the newest entry that is known says
    that a disk there was in sync. `without`: brokers whose disks the operator gives up. `by` signs the entry.
    """
    disks = tuple(sorted((disk for disk in found if disk.is_used), key=lambda disk: disk.broker))
    if etcd.is_led:
        return _led(set_name, etcd, disks, reached, without)
    if not disks and etcd.set_map is None:
        return None
    if etcd.set_map is not None and not any(_is_ahead(disk, etcd, etcd.set_map) for disk in disks):
        if away := _away(etcd, disks, reached, without):
            return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=_not_found(away), unheard=away)
        is_heard = not etcd.set_map.epoch or any(etcd.set_map.names_disk(disk.disk) for disk in disks)
        return SetPlan(set_name, Verdict.CURRENT if is_heard else Verdict.UNHEARD, disks=disks)
    last = EPOCH_MAX - EPOCHS_LEFT_FREE
    believed = [disk for disk in disks if disk.epoch_seen < last or disk.broker not in without]
    entries = [
        (entry.epoch, disk.map_revision, entry)
        for disk in believed
        if (entry := disk.remembered()) and entry.set_name == set_name
    ]
    newest = max(entries, key=lambda known: known[:2])[2] if entries else etcd.set_map
    if newest is None:
        problem = "no disk remembers an entry of the map"
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=problem)
    whole = {disk.broker: disk.disk for disk in disks if not disk.trouble}
    replaced = {member.broker for member in newest.in_sync if whole.get(member.broker) != member.disk}
    heard = _answered(disks, reached) - replaced
    unheard = tuple(broker for broker in sorted(newest.brokers) if broker not in heard)
    given_up = [broker for broker in unheard if broker not in without]
    if given_up:
        problem = _not_found(given_up)
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=problem, unheard=unheard)
    rivals = _rivals([disk for disk in disks if disk.broker not in without])
    if rivals is not None:
        one, other, epoch = rivals
        problem = (
            f"epoch {epoch} has begun twice, and {one} has the log of the one, {other} of the other: what was acknowledged is in "
            "both, and one of them has to be given up (--without)"
        )
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=problem, unheard=unheard)
    usable = [disk for disk in disks if disk.broker in newest.brokers and disk.broker not in without]
    usable = [disk for disk in usable if not disk.trouble]
    if not usable:
        problem = "no whole disk is left"
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=problem, unheard=unheard)
    epoch = _epoch(newest, etcd, believed, EPOCHS_LEFT_FREE if unheard else 1)
    if epoch > EPOCH_MAX:
        highest = max(believed, key=lambda disk: disk.epoch_seen)
        problem = (
            f"the disk of {highest.broker} has seen epoch {highest.epoch_seen}, and there is none above: give it up "
            "(--without), and let its broker begin with an empty one"
        )
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=problem, unheard=unheard)
    # Where no other is left, an operator has given the others up, and says next what becomes of what is wrong (R7).
    usable = [disk for disk in usable if not disk.found_by_broker] or usable
    best = max(usable, key=_place)
    longer = _longer_of_no_use(disks, best, without)
    if longer:
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=longer, unheard=unheard)
    alone = _known_alone([disk for disk in disks if disk.broker not in without], best, etcd)
    if alone:
        return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=alone, unheard=unheard)
    entry = _entry(
        newest, usable, epoch, by, is_forked=etcd.set_map is not None or _rivals(disks) is not None
    )
    return SetPlan(set_name, Verdict.REBUILT, entry, disks, unheard=unheard)


def with_all_seen(
    found: Mapping[SetName, Sequence[DiskFound]], lineage: Lineage, etcd_revision: int, stamps: Stamps
) -> dict[SetName, list[DiskFound]]:
    """The same disks, with what their brokers have seen of etcd: of its revision and stamps a broker tells the stores of its sets
    in turns, but each of them has the entry of its own set as that was then. (One that could not be told for a while, for its
    disk is full, say, has an older one, and may be asked for without need.)
    """
    etcd = EtcdKnows(None, 0, False, lineage, etcd_revision, stamps)
    ahead = {disk.broker for disks in found.values() for disk in disks if _has_seen_more(disk, etcd)}
    return {
        set_name: [replace(disk, is_broker_ahead=disk.broker in ahead) for disk in disks]
        for set_name, disks in found.items()
    }


def _answered(disks: Sequence[DiskFound], reached: Collection[BrokerId]) -> set[BrokerId]:
    """Brokers of which it is known what they have of the set."""
    empty = set(reached) - {disk.broker for disk in disks}
    return empty | {disk.broker for disk in disks if not disk.trouble}


def _away(
    etcd: EtcdKnows,
    disks: Sequence[DiskFound],
    reached: Collection[BrokerId],
    without: Collection[BrokerId],
) -> tuple[BrokerId, ...]:
    """Configured brokers that are not heard of and not given up, though this etcd was set back: what they know of that nobody
    learns in a new generation.
    """
    if not etcd.is_set_back or etcd.set_map is None:
        return ()
    known = _answered(disks, reached) | set(without)
    return tuple(broker for broker in sorted(etcd.set_map.brokers) if broker not in known)


def _not_found(brokers: Sequence[BrokerId]) -> str:
    names = ", ".join(brokers)
    return f"no whole disk of {names} was found: bring it back, or give up what only it has (--without)"


def _led(
    set_name: SetName,
    etcd: EtcdKnows,
    disks: tuple[DiskFound, ...],
    reached: Collection[BrokerId],
    without: Collection[BrokerId],
) -> SetPlan:
    """Who leads, as etcd says, does it by the last entry that any disk of its history remembers. By an older one a replica may be
    in sync that lacks what was acknowledged since, and be promoted one day, in a generation in which nobody tells any more. Where
    etcd was set back all disks are asked before, and above all the one of whoever leads: with that the others are compared.
    """
    epoch = etcd.set_map.epoch if etcd.set_map is not None else Epoch(0)
    for disk in disks:
        if disk.broker in without or disk.generation not in etcd.lineage:
            continue
        remembered = disk.remembered()
        is_rival = (
            etcd.set_map is not None and remembered is not None and remembered.is_rival_of(etcd.set_map)
        )
        if disk.highest_epoch > epoch or disk.map_revision > etcd.revision or is_rival:
            primary = etcd.set_map.primary if etcd.set_map is not None else "somebody"
            which = "another" if is_rival else "a later"
            problem = (
                f"etcd says that {primary} leads epoch {epoch}, and the disk of {disk.broker} has seen {which} entry of the map: "
                f"run it again when that lease has ended; where it does not end, stop {primary} and start it again"
            )
            return SetPlan(set_name, Verdict.STUCK, disks=disks, problem=problem, is_lead_doubtful=True)
    leader = next(
        (disk for disk in disks if etcd.set_map is not None and disk.broker == etcd.set_map.primary), None
    )
    kept = [disk for disk in disks if disk.broker not in without]
    away = _away(etcd, disks, reached, without)
    problem = ""
    if away:
        problem = _not_found(away)
    elif leader is not None and not leader.trouble:
        problem = _known_alone(kept, leader, etcd)
    elif etcd.is_set_back and etcd.set_map is not None:
        primary = etcd.set_map.primary
        problem = f"no whole disk of {primary} was found, who leads: run it again when it is there, or stop {primary}"
    verdict = Verdict.STUCK if problem else Verdict.LED
    return SetPlan(
        set_name, verdict, disks=disks, problem=problem, is_lead_doubtful=etcd.is_set_back, unheard=away
    )


def _is_ahead(disk: DiskFound, etcd: EtcdKnows, entry: SetMap) -> bool:
    """As `SetFacts` judges it when the disk is opened; of a disk that the entry does not name the generation does not matter."""
    remembered = disk.remembered()
    if disk.highest_epoch > entry.epoch or (remembered is not None and remembered.is_rival_of(entry)):
        return True
    if etcd.is_set_back and entry.names_disk(disk.disk):
        return True
    if disk.generation in etcd.lineage:
        return _knows_more(disk, etcd)
    return entry.names_disk(disk.disk) and bool(disk.generation) and disk.generation not in entry.supersedes


def _knows_more(disk: DiskFound, etcd: EtcdKnows) -> bool:
    """Whether it remembers what this etcd lacks, which has forgotten it."""
    if disk.generation not in etcd.lineage:
        return False
    return disk.map_revision > etcd.revision or _has_seen_more(disk, etcd)


def _has_seen_more(disk: DiskFound, etcd: EtcdKnows) -> bool:
    """The same of etcd as a whole, whichever set's the disk is."""
    if disk.generation not in etcd.lineage:
        return False
    is_later = bool(etcd.etcd_revision) and disk.etcd_revision > etcd.etcd_revision
    return is_later or etcd.stamps.lacks(Stamp.decode(disk.stamp))


def _rivals(disks: Sequence[DiskFound]) -> tuple[BrokerId, BrokerId, Epoch] | None:
    """Two whose disks remember the same epoch, each under another primary."""
    known: dict[Epoch, tuple[BrokerId, SetMap]] = {}
    for disk in disks:
        entry = disk.remembered()
        if entry is None:
            continue
        other, before = known.setdefault(entry.epoch, (disk.broker, entry))
        if entry.is_rival_of(before):
            return other, disk.broker, entry.epoch
    return None


def _known_alone(disks: Sequence[DiskFound], best: DiskFound, etcd: EtcdKnows) -> str:
    """What one of the disks knows to have been acknowledged, or may know, and the best one lacks, in words; "": nothing."""
    for disk in disks:
        if disk.trouble or best.trouble or disk.disk == best.disk or not (disk.epochs and best.epochs):
            continue
        agreed, twice = agreement(disk.outline, best.outline), rival_epoch(disk.outline, best.outline)
        is_unknown = disk.log_end > agreed and _has_gone_on_without(disk, best, etcd, agreed)
        # The best one's may be surveyed before it had what this one knows already.
        if twice is None and not is_unknown and agreed >= min(disk.acknowledged, best.log_end):
            continue
        has_begun = f"epoch {twice} has begun twice: " if twice is not None else ""
        known = ", and that may have been acknowledged" if is_unknown else ""
        known = f", and {disk.acknowledged} was acknowledged" if disk.acknowledged > agreed else known
        return (
            f"{has_begun}behind index {agreed} the disk of {disk.broker} has another log than that of {best.broker}, up to index "
            f"{disk.log_end}{known}: one of them has to be given up (--without), and who leads to be stopped for that"
        )
    return ""


def _has_gone_on_without(disk: DiskFound, best: DiskFound, etcd: EtcdKnows, agreed: LogIndex) -> bool:
    """Whether the best one's log goes on behind `agreed`, or is about to, in an epoch that began in this etcd, which had
    forgotten what the disk remembers. What the disk has behind that may have been acknowledged: it may have been gone before it
    heard so, or heard that it was in the set. Where a primary was deposed as ever, its successor's epoch began before etcd was
    set back: its disk knows that epoch, or remembers nothing that etcd lacks, or etcd has forgotten the epoch, too. That the
    best one remembers more than etcd has says nothing of it: who has begun an epoch here may have lived through the loss.
    """
    entry = disk.remembered()
    if entry is None or etcd.set_map is None or best.last_epoch > etcd.set_map.epoch:
        return False
    begun = next((epoch for epoch, first in best.epochs if first > agreed), None)
    if begun is None and etcd.is_led and best.last_epoch < etcd.set_map.epoch:
        begun = etcd.set_map.epoch  # Whoever leads it has yet to write its first record.
    if begun is None or (begun <= entry.epoch and _has_come_to(entry, best, etcd.set_map.epoch)):
        return False
    return _knows_more(disk, etcd) or (disk.is_broker_ahead and disk.generation in etcd.lineage)


def _has_come_to(entry: SetMap, best: DiskFound, epoch: Epoch) -> bool:
    """Whether the epoch of the entry that a disk remembers is one that the best one's log came to, and etcd, which is at `epoch`,
    as far as can be told: no later one that etcd has forgotten, and none that has begun twice.
    """
    reign = dict(best.reigns).get(entry.epoch, UNKNOWN_REIGN)
    return entry.epoch <= epoch and reign in (UNKNOWN_REIGN, reign_of(entry.primary_incarnation))


def _longer_of_no_use(disks: Sequence[DiskFound], best: DiskFound, without: Collection[BrokerId]) -> str:
    """Of which disk, on which a broker does not stand, the log has more than the best one's, in words; "": there is none."""
    for disk in disks:
        is_asked = disk.found_by_broker and not disk.trouble and disk.broker not in without
        if is_asked and _place(disk) > _place(best):
            return (
                f"the disk of {disk.broker} has more, up to index {disk.log_end} in epoch {disk.last_epoch}, than that of "
                f"{best.broker}, up to {best.log_end} in epoch {best.last_epoch}, and its broker does not stand with it: "
                f"{disk.found_by_broker}. Give up what only it has (--without), or all others"
            )
    return ""


def _place(disk: DiskFound) -> tuple[Epoch, LogIndex]:
    """The higher, the more it has."""
    return disk.last_epoch, disk.log_end


def _epoch(newest: SetMap, etcd: EtcdKnows, disks: Sequence[DiskFound], epochs_on: int) -> Epoch:
    """The epoch of the entry: above all that were ever given."""
    known = [newest.epoch, *(disk.highest_epoch for disk in disks)]
    if etcd.set_map is not None:
        known.append(etcd.set_map.epoch)
    return Epoch(max(known) + epochs_on)


def _entry(
    newest: SetMap, usable: Sequence[DiskFound], epoch: Epoch, by: Incarnation, is_forked: bool
) -> SetMap:
    best = max(map(_place, usable))
    named = [disk for disk in usable if _place(disk) == best]
    return SetMap(
        set_name=newest.set_name,
        epoch=epoch,
        # Nobody led this epoch: whoever is promoted begins the next one, as a restarted replica (R12).
        primary=BrokerId(""),
        primary_incarnation=Incarnation(""),
        in_sync=tuple(sorted(Member(disk.broker, disk.disk, Incarnation("")) for disk in named)),
        learners=(),
        brokers=newest.brokers,
        min_in_sync=newest.min_in_sync,
        change=1,
        changed_by=by,
        supersedes=tuple(sorted({disk.generation for disk in named if disk.generation})),
        is_forked=is_forked,
    )


def directory_of(
    names: Mapping[SetName, Collection[tuple[str, str]]],
) -> tuple[dict[tuple[str, str], SetName], list[tuple[str, str]]]:
    """((kind, name) -> set, names that more than one set has); of those the first set in order keeps the name."""
    owners: dict[tuple[str, str], SetName] = {}
    disputed: list[tuple[str, str]] = []
    for set_name in sorted(names):
        for name in sorted(names[set_name]):
            if owners.setdefault(name, set_name) != set_name:
                disputed.append(name)
    return owners, disputed
