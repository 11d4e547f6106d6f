"""Keeping segments that are owed to somebody, within bounds (DESIGN 5).

Law: a file is deleted when nothing names it but a meta that is older, and that may name one that is gone. What nobody is owed any
more goes; what is owed goes, the oldest first, when there is too much of it or too little room for everything else. Its readers
are told so when they ask for it (`frame_reading`).
"""

from lockstep.core.ids import LogIndex
from lockstep.core.store_protocol import FREE_BYTES_UNKNOWN
from services.store.core.disk import DeleteSegments, MeasureRoom
from services.store.core.journal import Journal
from services.store.core.procedure import Procedure
from services.store.core.stored_set import Phase, StoredSet

KEPT_MIN = 2
"""Files that wait to be segments again: to fill a new one with zeros costs as much as to write it. For each segment that is begun
the consolidator lets one go, and at times two; behind a burst as many as that was.
"""


def delete_segments(the: StoredSet, journal: Journal, numbers: tuple[int, ...]) -> Procedure[None]:
    """Delete files that no reader can find any more; a read of one of them that is under way is waited for. Kept are only those
    that hold no frame but what the snapshot covers: in a torn group one that was cut could be taken for what came instead.
    """
    while the.segment_read in numbers:
        yield ()
    is_roomy = the.free_bytes == FREE_BYTES_UNKNOWN or the.free_bytes > the.roomy_bytes
    kept = tuple(number for number in numbers if is_roomy and number in journal.begun)
    others = tuple(number for number in numbers if number not in kept)
    journal.begun.difference_update(numbers)
    if others:
        yield (DeleteSegments(others),)
    if kept:
        limits = the.limits
        kept_max = max(limits.unconsolidated_most // limits.segment_bytes, KEPT_MIN)
        yield (DeleteSegments(kept, kept_max),)


def release(the: StoredSet, journal: Journal, owed_after: LogIndex) -> Procedure[None]:
    """Delete what lies at or below `owed_after`: nobody is owed it any more."""
    dropped = journal.owed.drop(journal.owed.count_up_to(owed_after))
    if dropped:
        yield from delete_segments(the, journal, tuple(entry.number for entry in dropped))


def must_trim(the: StoredSet) -> bool:
    """Whether owed segments have to go all the same, or the room for them has to be looked at."""
    journal = the.journal
    if journal is None or not journal.owed.entries or the.phase is not Phase.OPEN or the.damage:
        return False
    return the.is_room_stale or _excess(the, journal) > 0


def trim(the: StoredSet) -> Procedure[None]:
    """Delete the oldest until their bytes and the room on the disk are within bounds. Runs in the snapshot lane."""
    journal = the.journal
    assert journal is not None
    the.is_room_stale = False
    (the.free_bytes,) = yield (MeasureRoom(the.roomy_bytes),)
    count = _excess(the, journal)
    if count:
        free_bytes, owed_bytes = the.free_bytes, journal.owed.bytes_total
        dropped = journal.owed.drop(count)
        place = f"{count} up to index {dropped[-1].last}"
        the.note("owed segments dropped", f"{place}: {owed_bytes} bytes were owed, {free_bytes} free")
        yield from delete_segments(the, journal, tuple(entry.number for entry in dropped))
        (the.free_bytes,) = yield (MeasureRoom(the.roomy_bytes),)


def _excess(the: StoredSet, journal: Journal) -> int:
    """How many of the oldest have to go."""
    excess_bytes = journal.owed.bytes_total - the.limits.owed_bytes_max
    if the.free_bytes != FREE_BYTES_UNKNOWN:
        # Before brokers stop publishing because no more than the reserve is left, and before a segment cannot be created.
        excess_bytes = max(excess_bytes, the.roomy_bytes - the.free_bytes)
    count = 0
    while excess_bytes > 0 and count < len(journal.owed.entries):
        excess_bytes -= journal.owed.entries[count].size_bytes
        count += 1
    return count
