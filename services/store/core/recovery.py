"""Recovery: from the files of a set to its journal, deciding what is whole, what is torn and what is damaged (DESIGN R10).

Law: a bad tail is *torn* only if no later group follows it, in this segment or a later one, and no commit index known to this
disk covers it. A segment whose first frame leaves a gap is a later group of what is missing. A torn tail is cut silently, by a
seal. Anything else is damage: the log ends before it, and whoever opens is told. What is reported as durable was synced by this
recovery before it was read (an earlier process may have been killed before its sync), and read from the disk rather than from a
page cache that a failed sync may have left wrong.
"""

from dataclasses import dataclass, field

from lockstep.core.epoch_table import EpochTable
from lockstep.core.ids import LogIndex, TimeMs
from services.store.core.disk import DiskError, SettleSegment
from services.store.core.journal import Journal
from services.store.core.journal_format import SEGMENT_HEADER_BYTES, salt_of
from services.store.core.meta import OwedSegment, Seal, SetMeta, SnapshotMeta
from services.store.core.procedure import Procedure, list_segments, read_snapshot_meta
from services.store.core.segment import Segment
from services.store.core.segment_scan import SegmentScan
from services.store.core.unreadable import Unreadable


@dataclass(slots=True)
class Recovered:
    """What a recovery found."""

    journal: Journal
    snapshot: SnapshotMeta | None
    commit_index: LogIndex
    """Highest that any of the files knows."""
    number_max: int
    """Highest segment number ever used, as far as the files tell."""
    damage: str = ""
    is_snapshot_good: bool = True
    """It could be read, or there is none."""
    torn: str = ""
    """Why the last segment of the journal must be sealed where the journal ends; "": it need not."""
    void: list[int] = field(default_factory=list)
    """Segment files that belong to nothing, are owed to nobody, and may be deleted."""


def recover(meta: SetMeta, unreadable: Unreadable, scan_bytes: int) -> Procedure[Recovered]:
    """Reads the set's files; `meta` is without a mark. `scan_bytes`: size of one read. Raises `DiskError` for an I/O error that
    is not damage, or not yet.
    """
    sizes = dict((yield from list_segments()))
    snapshot, damage = None, ""
    try:
        snapshot = yield from read_snapshot_meta()
    except DiskError as error:
        damage = unreadable.damage_in(error)
        if not damage:
            raise
        damage = f"snapshot: {damage}"
    first = snapshot.first_segment if snapshot else meta.first_segment
    number_max = max([first - 1, *sizes, *(seal.next_number - 1 for seal in meta.seals)])
    base = snapshot.index if snapshot else LogIndex(0)
    epochs = EpochTable(snapshot.epochs, snapshot.reigns) if snapshot else EpochTable()
    owed = _owed_that_are_there(snapshot, sizes) if snapshot else []
    journal = Journal(base, epochs, snapshot.time_ms if snapshot else TimeMs(0), first, owed)
    committed = base if snapshot and not snapshot.is_installed else LogIndex(0)
    found = Recovered(journal, snapshot, max(meta.commit_index, committed), number_max, damage, not damage)
    if damage:
        return found  # without the snapshot there is no state, however good the frames behind it are
    try:
        yield from _walk(
            found, sizes, {seal.number: seal for seal in meta.seals}, salt_of(meta.disk), scan_bytes
        )
    except DiskError as error:
        found.damage = unreadable.damage_in(error)
        if not found.damage:
            raise
    if not found.damage and journal.end < found.commit_index:
        found.damage = f"the log ends at {journal.end}, but {found.commit_index} was acknowledged"
    return found


def _walk(
    found: Recovered, sizes: dict[int, int], seals: dict[int, Seal], salt: int, scan_bytes: int
) -> Procedure[None]:
    """Scans the chain of segments, then makes sure that nothing of the log lies outside of it."""
    journal, number = found.journal, found.journal.next_number
    spans = dict(found.snapshot.spans) if found.snapshot else {}
    behind: list[int] = []
    while number in sizes or _is_given_up(seals.get(number)):
        seal = seals.get(number)
        if seal is not None and seal.next_number <= number:
            found.damage = f"segment {number} is continued by {seal.next_number}"
            return
        if found.torn:
            behind += [number] if number in sizes else []
        elif _is_given_up(seal):
            # Nothing of it counts, not even that it is there.
            journal.segments.append(Segment(number, sizes.get(number, SEGMENT_HEADER_BYTES)))
        else:
            yield (SettleSegment(number),)
            journal.segments.append(Segment(number, sizes[number], spans_from=spans.get(number, LogIndex(0))))
            scan = SegmentScan(journal, salt, seal.end if seal else None, scan_bytes)
            try:
                found.torn = yield from scan.run()
            finally:
                found.commit_index = max(found.commit_index, scan.commit_index)
            is_damaged = seal is not None or scan.is_shortened or scan.has_gap
            if found.torn and (is_damaged or (yield from scan.has_group_behind())):
                found.damage = found.torn
                return
            if scan.is_headless:
                # Its creation was interrupted. Nothing was ever written to it, and the chain ends before it.
                journal.segments.pop()
                found.torn = ""
                break
        journal.is_last_closed = seal is not None
        journal.next_number = number = seal.next_number if seal else number + 1
    if not found.torn:
        _give_back_spare(journal, seals)
    for other in sorted({*behind, *(other for other in sizes if other > number)}):
        alone = Journal(LogIndex(0), EpochTable(), TimeMs(0), other)
        alone.segments.append(Segment(other, sizes[other]))
        scan = SegmentScan(alone, salt, None, scan_bytes)
        if (yield from scan.has_group_behind()):
            found.damage = found.torn or f"segment {number} is missing, but segment {other} is there"
            return
    chain = {segment.number for segment in journal.segments}
    found.void = sorted(set(sizes) - chain - {entry.number for entry in journal.owed.entries})


def _owed_that_are_there(snapshot: SnapshotMeta, sizes: dict[int, int]) -> list[OwedSegment]:
    """The youngest of those listed, without a gap between them. None is read: how many there are says how much happened."""
    found: list[OwedSegment] = []
    for entry in reversed(snapshot.owed):
        if sizes.get(entry.number, 0) < entry.end or (found and entry.last + 1 != found[-1].first):
            break
        found.append(entry)
    return found[::-1]


def _is_given_up(seal: Seal | None) -> bool:
    """Whether a segment was sealed where it begins: damage that took all of it was accepted."""
    return seal is not None and seal.end <= SEGMENT_HEADER_BYTES


def _give_back_spare(journal: Journal, seals: dict[int, Seal]) -> None:
    """An empty segment at the end was created ahead of its use, while the one before it still had room: go on in that one."""
    if len(journal.segments) < 2 or not journal.segments[-1].is_empty:
        return
    if seals.keys() & {segment.number for segment in journal.segments[-2:]}:
        return
    spare = journal.segments.pop()
    journal.is_last_closed, journal.next_number = False, spare.number
