"""Installing a snapshot that another broker sent, over whatever was here (DESIGN R8).

Law: it is marked on disk before old state is touched, and the mark goes when all of the new state is durable. A crash in
between, or an installation that its sender gave up, leaves an empty set with a new disk id: half a snapshot is never taken for
a set.
"""

from itertools import pairwise

from lockstep.core.epoch_table import EpochTable
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import INDEX_MAX, Epoch, LogIndex, TimeMs
from lockstep.core.store_protocol import (
    BeginInstall,
    EndInstall,
    Installed,
    InstallItems,
    ItemsInstalled,
)
from services.store.core.disk import (
    DeleteSegments,
    Lane,
    SnapshotClear,
    SnapshotFlush,
    SnapshotWrite,
)
from services.store.core.journal import Journal
from services.store.core.meta import MARK_INSTALL, SnapshotMeta, encode_meta
from services.store.core.opening import write_meta
from services.store.core.procedure import Procedure, list_segments, make_disk_id
from services.store.core.stored_set import Phase, StoredSet


def begin_install(the: StoredSet, stream: int, request: BeginInstall) -> Procedure[None]:
    """Mark, then remove what is here. A second beginning starts over."""
    if not _is_table(request):
        what = f"these are no epochs of a log that ends at {request.index} in epoch {request.epoch}"
        the.refuse(stream, request, ErrorCode.INVALID_ARGUMENT, what)
        return
    the.phase, the.journal = Phase.INSTALLING, None
    yield from the.wait_for(Lane.SNAPSHOT, Lane.SPARE, Lane.READ)
    segments = yield from list_segments()
    first = max([the.number_max, *(number for number, _ in segments)]) + 1
    yield from write_meta(
        the,
        disk=the.meta.disk or (yield from make_disk_id()),
        mark=MARK_INSTALL,
        highest_epoch=max(request.epoch, the.meta.highest_epoch),
        first_segment=first,
    )
    yield (SnapshotClear(), DeleteSegments(tuple(number for number, _ in segments)))
    the.damage = the.corruption = ""
    the.unreadable.forget()
    the.commit_reached = the.acknowledged_end = the.flushed_index = LogIndex(0)
    the.spare, the.number_max = None, first
    the.snapshot = SnapshotMeta(
        request.index,
        request.epochs,
        TimeMs(request.time_ms),
        first,
        reigns=request.reigns,
        is_installed=True,
    )
    the.is_snapshot_known = True


def install_items(the: StoredSet, stream: int, request: InstallItems) -> Procedure[None]:
    """Write some of the items, and say so."""
    if the.phase is not Phase.INSTALLING:
        the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, "no snapshot is being installed")
        return
    durable = tuple(item for item in request.items if item.is_durable)
    size = the.limits.batch_items_max
    for begin in range(0, len(durable), size):
        yield (SnapshotWrite(durable[begin : begin + size], (), b""),)
    the.reply(stream, ItemsInstalled(request.set_name, request.epoch, request.incarnation))


def end_install(the: StoredSet, stream: int, request: EndInstall) -> Procedure[None]:
    """Make the snapshot durable, then take the mark away: from here on it is the set's state."""
    if the.phase is not Phase.INSTALLING or the.snapshot is None:
        the.refuse(stream, request, ErrorCode.ILLEGAL_STATE, "no snapshot is being installed")
        return
    snapshot = the.snapshot
    yield (SnapshotWrite((), (), encode_meta(snapshot)), SnapshotFlush())
    yield from write_meta(
        the, mark="", commit_index=LogIndex(0), first_segment=snapshot.first_segment, seals=()
    )
    epochs = EpochTable(snapshot.epochs, snapshot.reigns)
    the.journal = Journal(snapshot.index, epochs, snapshot.time_ms, snapshot.first_segment)
    # How much of it is committed the primary tells behind it: it may reach beyond that (R11).
    the.commit_told, the.flushed_index, the.phase = LogIndex(0), LogIndex(snapshot.index), Phase.OPEN
    the.reply(stream, Installed(request.set_name, request.epoch, request.incarnation, snapshot.index))


def _is_table(request: BeginInstall) -> bool:
    """Whether its epochs can be those of a log that ends there: a disk that believed in others could not be read again."""
    starts = (*request.epochs, (Epoch(request.epoch + 1), LogIndex(request.index + 1)))
    return request.index <= INDEX_MAX and all(
        epoch < next_epoch and first < next_first
        for (epoch, first), (next_epoch, next_first) in pairwise(starts)
    )
