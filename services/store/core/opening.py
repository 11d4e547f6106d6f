"""Opening a set: reading what the disk holds, formatting what is empty, fencing, setting aside (DESIGN R1, R2, R10).

Law: the highest epoch ever seen survives everything but the loss of the meta file, formatting and setting aside included. A disk
id is given when a directory becomes empty, and never to old content. While the meta file has a mark, what lies beside it is
being removed: that is finished first, however often the process dies in between.
"""

from lockstep.core.epoch_table import EpochTable
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import DiskId, Epoch, LogIndex, TimeMs
from lockstep.core.store_protocol import AcceptDamage, OpenSet, RememberMap, SetAside
from services.store.core.disk import (
    CreateSegment,
    DeleteSegments,
    DiskError,
    DiskProblem,
    Lane,
    MoveAside,
    ReadMeta,
    ReadSnapshotMeta,
    SnapshotClear,
    WriteMeta,
)
from services.store.core.journal import Journal
from services.store.core.journal_format import (
    SEGMENT_HEADER_BYTES,
    encode_segment_header,
    end_behind,
    salt_of,
)
from services.store.core.meta import (
    MARK_ASIDE,
    MARK_INSTALL,
    MARK_LOST,
    BadMeta,
    Seal,
    SetMeta,
    decode_set_meta,
    encode_meta,
)
from services.store.core.procedure import Procedure, list_segments, make_disk_id, read_bytes
from services.store.core.recovery import Recovered, recover
from services.store.core.stored_set import Phase, StoredSet, is_higher


def open_set(the: StoredSet, stream: int, request: OpenSet) -> Procedure[None]:
    """Make the sender the only writer; read the disk first unless the set is open."""
    if the.phase is not Phase.OPEN:
        yield from read_set(the)
    if refusal := the.refusal_of_epoch(request.epoch):
        the.refuse(stream, request, *refusal)
        return
    yield from raise_epoch(the, request.epoch)
    the.writer = (stream, request.incarnation)
    the.reply(stream, the.opened(request))


def raise_epoch(the: StoredSet, epoch: Epoch) -> Procedure[None]:
    """Make `epoch` durable if it is higher than all before (R2)."""
    if is_higher(epoch, the):
        if not the.damage:
            # What was told of records that are not here is no word on those that a later epoch may have there (R7, R11).
            the.commit_told = the.commit_index
        yield from write_meta(the, highest_epoch=epoch)


def write_meta(the: StoredSet, **changes: object) -> Procedure[None]:
    """Replace the meta file by itself with `changes`, with what is still to be remembered, and with the commit index as it is
    known now.
    """
    fields = {name: getattr(the.meta, name) for name in SetMeta.__struct_fields__}
    if the.phase is Phase.OPEN and not the.damage:
        fields["commit_index"] = the.commit_index
    meta = SetMeta(**{**fields, **the.unremembered, **changes})
    yield (WriteMeta(encode_meta(meta)),)
    the.meta, the.unremembered = meta, {}


def remember(the: StoredSet, **changes: object) -> Procedure[None]:
    """As `write_meta`, of what nobody waits for: a disk without room for it is as good as before, and it is tried again.

    `changes`: nothing of it was told before that is not among them.
    """
    try:
        yield from write_meta(the, **changes)
    except DiskError as error:
        if error.problem is not DiskProblem.FULL:
            raise
        the.unremembered = {**the.unremembered, **changes}
        the.is_room_stale = True
        if not the.has_no_memory:
            the.note("not remembered", error.message)
        the.has_no_memory = True
    else:
        the.has_no_memory = False


def remember_map(the: StoredSet, stream: int, request: RememberMap) -> Procedure[None]:
    """Keep map, revisions, stamp and generation. Another generation is newer whatever its revisions: etcd was rebuilt (R1)."""
    meta, is_same = the.meta, request.generation == the.meta.generation
    is_entry_newer = not is_same or request.revision > meta.map_revision
    is_etcd_newer = not is_same or request.etcd_revision > meta.etcd_revision
    has_stamp = bool(request.stamp) and request.etcd_revision >= meta.etcd_revision
    is_stamp_newer = not is_same or (has_stamp and request.stamp != meta.stamp)
    if not (is_entry_newer or is_etcd_newer or is_stamp_newer):
        return
    yield from remember(
        the,
        map_bytes=request.map_bytes if is_entry_newer else meta.map_bytes,
        map_revision=request.revision if is_entry_newer else meta.map_revision,
        generation=request.generation,
        etcd_revision=request.etcd_revision if is_etcd_newer else meta.etcd_revision,
        stamp=request.stamp if is_stamp_newer else meta.stamp,
    )


def set_aside(the: StoredSet, stream: int, request: SetAside) -> Procedure[None]:
    """Move the content away and start again as an empty set with a new disk id and the old epoch.

    What is whole here goes only for whoever names the disk: he has read it, and knows more of it than the disk does (R10).
    """
    if not the.damage and request.disk != the.meta.disk:
        named = f"names {request.disk}" if request.disk else "does not name it"
        the.refuse(
            stream,
            request,
            ErrorCode.ILLEGAL_STATE,
            f"disk {the.meta.disk} is whole, and the request {named}",
        )
        return
    the.phase = Phase.UNREAD
    yield from the.wait_for(Lane.SNAPSHOT, Lane.SPARE, Lane.READ)
    yield from write_meta(the, mark=MARK_ASIDE, highest_epoch=max(request.epoch, the.meta.highest_epoch))
    the.note("set aside", f"{the.meta.disk}: {the.damage or 'undamaged'}")
    the.corruption = ""
    the.unreadable.forget()
    yield from read_set(the)
    the.reply(stream, the.opened(request))


def accept_damage(the: StoredSet, stream: int, request: AcceptDamage) -> Procedure[None]:
    """End the log where its undamaged part does (R7), by one replacement of the meta file: a seal there, and a commit index that
    is not above it. Whoever crashes before it finds the damage again, whoever does behind it an undamaged set.
    """
    if the.journal is None:
        the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, "a snapshot is being installed")
        return
    if request.unusable_from and not the.damage:
        if refusal := _why_not_unusable(the, request):
            the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, refusal)
            return
        the.found_corrupt(request.reason, request.unusable_from, is_unusable=True)
        yield from read_set(the)
    journal = the.journal
    assert journal is not None, "it is open"
    if not the.is_prefix_good:
        the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, f"nothing undamaged is left: {the.damage}")
        return
    if the.damage:
        lost = f"{the.damage}: the log ends at {journal.end}, {the.commit_told} was committed"
        the.note("damage accepted", lost)
        # The segment that is sealed may be one that is missing, with a number above all that are there.
        the.number_max = max(the.number_max, journal.next_number) + 1
        if journal.segments:
            last = journal.segments[-1]
            end = Seal(last.number, last.end, the.number_max)
        else:
            end = Seal(journal.next_number, SEGMENT_HEADER_BYTES, the.number_max)
        yield from seal(the, end, commit_index=the.commit_index)
        the.commit_reached = the.acknowledged_end = LogIndex(0)
        the.corruption = ""
        yield from read_set(the)
    the.reply(stream, the.opened(request))


def _why_not_unusable(the: StoredSet, request: AcceptDamage) -> str:
    """Why nothing of this disk ends because of what its broker cannot use; "": it may."""
    if request.disk != the.meta.disk:
        return f"disk {the.meta.disk} is whole, and the request names {request.disk}"
    if request.unusable_from <= the.snapshot_index:
        return f"what is unusable is in the snapshot, which reaches {the.snapshot_index}: nothing before it is left"
    return ""


def read_set(the: StoredSet) -> Procedure[None]:
    """From whatever the disk holds to an open set, damaged or not."""
    the.close()
    yield from the.wait_for(Lane.SNAPSHOT, Lane.SPARE, Lane.READ)
    the.snapshot, the.spare = None, None
    yield from _read_meta(the)
    if the.meta.mark in (MARK_INSTALL, MARK_ASIDE):
        yield from _start_empty(the)
    found = yield from recover(the.meta, the.unreadable, the.limits.scan_bytes)
    if found.commit_index < the.commit_reached:
        # What this process was told is in no file yet, perhaps.
        found.commit_index = the.commit_reached
        if not found.damage and found.journal.end < the.commit_reached:
            found.damage = (
                f"the log ends at {found.journal.end}, but {the.commit_reached} was acknowledged here"
            )
        if found.damage:
            yield from write_meta(the, commit_index=the.commit_reached)  # The next one has to know it, too.
    if not found.damage and found.journal.end < the.acknowledged_end:
        found.damage = (
            f"the log ends at {found.journal.end}, but {the.acknowledged_end} was acknowledged here"
        )
    if the.corruption:
        _end_where_corrupt(the, found)
    the.journal, the.snapshot, the.number_max = found.journal, found.snapshot, found.number_max
    the.is_snapshot_known = True
    # An earlier process took with it what it had not flushed; this one may still have written more than that.
    flushed_index = the.flushed_index if the.was_read else the.snapshot_index
    the.flushed_index, the.was_read = min(flushed_index, the.snapshot_index), True
    the.commit_told = found.commit_index
    the.damage = "the meta file was lost" if the.meta.mark == MARK_LOST else found.damage
    the.is_prefix_good = the.meta.mark != MARK_LOST and found.is_snapshot_good
    if the.damage:
        the.note("damaged", the.damage)
    else:
        yield from _make_ready(the, found)
    the.phase = Phase.OPEN


def _end_where_corrupt(the: StoredSet, found: Recovered) -> None:
    """The log ends before what this process has found to be no good, though it is whole; without the snapshot there is none."""
    journal, end = found.journal, LogIndex(the.corrupt_from - 1)
    if the.corrupt_from and journal.end <= end:
        the.corruption = ""  # It is behind other damage.
        return
    plan = journal.plan_cut(end) if the.corrupt_from else None
    if plan is not None:
        journal.cut(end, plan, journal.next_number)
    else:
        found.snapshot, found.is_snapshot_good = None, False
        found.journal = Journal(LogIndex(0), EpochTable(), TimeMs(0), found.number_max + 1)
    found.damage = the.corruption


def _read_meta(the: StoredSet) -> Procedure[None]:
    """A meta file that is gone, or cannot be read, where something lies beside it is lost; where nothing does, a set begins."""
    try:
        if data := (yield from read_bytes(ReadMeta())):
            the.meta = decode_set_meta(data)
            return
        is_lost = bool((yield from list_segments()) or (yield from read_bytes(ReadSnapshotMeta())))
    except BadMeta:
        is_lost = True
    except DiskError as error:
        if not the.unreadable.damage_in(error):
            raise
        is_lost = True
    if is_lost:
        the.meta = SetMeta(DiskId(""), mark=MARK_LOST)
        return
    the.meta = SetMeta(DiskId(""))
    yield from write_meta(the, disk=(yield from make_disk_id()))


def _start_empty(the: StoredSet) -> Procedure[None]:
    """Finish what a mark says; what was here before is deleted, or moved away if it was set aside."""
    segments = yield from list_segments()
    the.commit_reached = the.acknowledged_end = the.flushed_index = LogIndex(0)
    if the.meta.mark == MARK_ASIDE:
        yield (MoveAside(the.meta.disk or (yield from make_disk_id())),)
    else:
        yield (SnapshotClear(), DeleteSegments(tuple(number for number, _ in segments)))
    # Deleted files may come back after a power loss: a number above theirs, and another disk's salt, keep them void.
    first = max([the.meta.first_segment, *(number for number, _ in segments)]) + 1
    disk = yield from make_disk_id()
    yield from write_meta(the, disk=disk, mark="", commit_index=LogIndex(0), first_segment=first, seals=())


def _make_ready(the: StoredSet, found: Recovered) -> Procedure[None]:
    """Seal a torn tail, delete what is void."""
    journal = found.journal
    if found.torn:
        last = journal.segments[-1]
        the.note("torn tail", f"{found.torn}; the log ends at {journal.end}")
        the.number_max += 1
        yield from seal(the, Seal(last.number, last.end, the.number_max))
        journal.is_last_closed, journal.next_number = True, the.number_max
    if found.void:
        yield (DeleteSegments(tuple(found.void)),)


def seal(the: StoredSet, new: Seal, **changes: object) -> Procedure[None]:
    """Make a seal durable, and `changes` to the meta with it; seals of segments that have left the chain are forgotten."""
    assert the.journal is not None
    first = min(the.journal.first_number(), new.number)
    kept = tuple(old for old in the.meta.seals if old.number >= first and old.number != new.number)
    yield from write_meta(the, seals=(*kept, new), **changes)


def create_next_segment(the: StoredSet, bytes_min: int) -> Procedure[None]:
    """Continue the chain with a segment that has room for `bytes_min`; raises `DiskError`, FULL if there is no room for it."""
    journal = the.journal
    assert journal is not None
    number, size = journal.next_number, max(the.limits.segment_bytes, bytes_min)
    yield from the.change_chain()
    try:
        if the.spare != number or size > the.limits.segment_bytes:
            the.spare = None  # It would be replaced, and is gone if that fails.
            yield (create_step(the, number, size),)
    except DiskError:
        the.is_room_stale = True
        raise
    finally:
        the.is_chain_changing = False
    the.spare = None
    the.number_max = max(the.number_max, number)
    journal.add_segment(number, size)


def create_step(the: StoredSet, number: int, size_bytes: int) -> CreateSegment:
    header = encode_segment_header(salt_of(the.meta.disk), number, size_bytes)
    header += end_behind(SEGMENT_HEADER_BYTES, size_bytes - SEGMENT_HEADER_BYTES, the.limits.page_bytes)
    # Half of the reserve: when no more than the reserve is left brokers stop publishing, but accepts and commits go on.
    is_prefilled = size_bytes <= the.limits.segment_bytes
    return CreateSegment(number, size_bytes, header, the.limits.reserve_bytes // 2, is_prefilled)


def create_spare(the: StoredSet) -> Procedure[None]:
    """Create the next segment before it is needed; a failure is met again when it is."""
    assert the.journal is not None
    number = the.journal.next_number
    try:
        yield (create_step(the, number, the.limits.segment_bytes),)
    except DiskError as error:
        the.has_no_spare = the.is_room_stale = True
        the.note("no spare segment", error.message)
        return
    the.number_max = max(the.number_max, number)
    the.spare = number
