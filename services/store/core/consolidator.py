"""The log consolidator: applies the journal to the state snapshot, by the same state machine as the broker, and drops segments.

Law: never beyond the commit index (DESIGN R11, history 11), and a segment is dropped only when it is closed and the snapshot
that covers it is durable. Every write carries all that changed up to the end of one frame, together with that frame's
index: a crash leaves an older snapshot that is as good as a new one. No state needs a segment that it covers: contents of
transactions without outcome are items like all others. Readers of committed events may need it: a segment that holds what the
state says is owed to somebody leaves the chain all the same, and the write that covers it lists it as owed (`owed_segments`).

It follows the segment that is being written, too: a few bytes of journal accept thousands of messages, and a snapshot that did
not know of them would make a recovery load them all. It goes on when nothing is being appended, when frames have lain behind it
for some ticks without a burst (more of them where much is appended in each), or when there are very many: a burst is journalled
first, wherever in it a segment ends. What it has applied and a crash may take back is bounded in items.

While somebody reads the snapshot chunk by chunk it waits, but neither for a stream that takes nothing nor when very many frames
lie behind it: what is left of such a reading is refused.

What it cannot apply or write is damage from that frame on, whatever is wrong with it: other sets of the store go on (R10).

It works in jobs of the snapshot lane, computing included: the lane has a thread of its own, and appends do not wait for it. There
a state that it has given up is taken apart, too, before anything else is done: freed in one go, a big one would keep everybody.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from lockstep.core import restoration
from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex, MessageId, QueueId, QueuePosition, TransactionKey
from lockstep.core.item_blocks import Block, messages_block_key
from lockstep.core.outcomes import Outcome
from lockstep.core.set_state import SetState
from lockstep.core.state_listener import StateListener
from lockstep.core.store_protocol import StateItem
from services.store.core.blocks import damage, scan_of
from services.store.core.disk import (
    ReadSegment,
    SnapshotFlush,
    SnapshotWrite,
    Unusable,
)
from services.store.core.journal import Journal
from services.store.core.loading import checked_at
from services.store.core.meta import SnapshotMeta, encode_meta
from services.store.core.owed_keeping import delete_segments, must_trim, release, trim
from services.store.core.owed_segments import owed_segment
from services.store.core.procedure import Procedure, compute, read_bytes, read_values
from services.store.core.segment import FramesAt, Segment
from services.store.core.snapshot_changes import Batch, SnapshotChanges
from services.store.core.stored_set import Phase, StoredSet


class Consolidator(StateListener):
    """Of one set; lives as long as it. Its state is loaded when there is work for the first time, and kept without bodies."""

    def __init__(self, the: StoredSet) -> None:
        self._the = the
        self._state: SetState | None = None
        self._loading: restoration.Restoration | None = None
        """While the state is loaded."""
        self._left: list[Iterator[int]] = []
        """Works that take apart what was given up."""
        self._journal: Journal | None = None
        """The journal that the state was loaded beside; another one means that the set was opened again."""
        self._changes = SnapshotChanges()
        """Since the last write; a computation that is under way owns it."""
        self._changed_items = 0
        """In `_changes`, since the last computation ended."""
        self._spans_from = LogIndex(0)
        """Where the earliest began of the transactions that have ended in what was applied last; 0: none has."""
        self._unflushed_items = 0
        """Written since the last flush."""
        self._is_flush_wanted = False
        """Nothing was appended for a while, and much would be lost by a crash."""
        self._is_release_wanted = False
        """Nothing was appended for a while, and what was appended before may say that less is owed."""
        self._is_catching_up = False
        """Much lies behind, and has for long, or while nothing was appended; until all that was committed is applied."""
        self._dense_ticks_behind = 0
        """With much behind and not of a burst, since all that was committed was applied last, or little was behind; a tick that
        is not dense counts as several.
        """
        self.is_resting = False
        """After a failure, until the next tick."""
        self._bytes_least = min(the.limits.unconsolidated_bytes, the.limits.segment_bytes)
        """Never is less too much to lie behind it (`unconsolidated_bytes_max`)."""

    def items_changed(self, keys: Iterable[bytes]) -> None:
        self._changes.items_changed(keys)

    def messages_changed(self, messages: Sequence[MessageId]) -> None:
        self._changes.messages_changed(messages)

    def entries_changed(self, queue: QueueId, positions: Sequence[QueuePosition]) -> None:
        self._changes.entries_changed(queue, positions)

    def transaction_ended(self, key: TransactionKey, outcome: Outcome) -> None:
        self._spans_from = min(self._spans_from or key[0], key[0])

    def has_work(self) -> bool:
        return bool(self._left) or self._is_wanted()

    def _is_wanted(self) -> bool:
        """Whether there is anything to consolidate."""
        the, journal = self._the, self._the.journal
        if the.phase is not Phase.OPEN or journal is None or the.damage or the.loads or self.is_resting:
            return False
        behind_bytes = self._behind_bytes(journal)
        if behind_bytes >= self._bytes_least and behind_bytes >= the.unconsolidated_bytes_max:
            return True
        is_quiet_work = (self._is_flush_wanted or self._is_release_wanted) and self._journal is journal
        if not (is_quiet_work or self._is_catching_up) or the.is_scanned:
            return False
        return is_quiet_work or self._is_behind(journal, behind_bytes)

    def _is_behind(self, journal: Journal, behind_bytes: int) -> bool:
        """Whether there is enough to do for a quiet moment: much lies behind, or a segment can go."""
        if behind_bytes >= self._the.limits.unconsolidated_quiet_bytes:
            return True
        return bool(journal.closed_up_to(self._the.commit_index))

    def _behind_bytes(self, journal: Journal) -> int:
        return journal.bytes_between(self._applied(journal), self._the.commit_index)

    def tick(self, is_quiet: bool) -> None:
        """`is_quiet`: nothing was appended since the last one, and nothing is being appended."""
        journal, limits = self._the.journal, self._the.limits
        self.is_resting = False
        is_behind = journal is not None and self._is_behind(journal, self._behind_bytes(journal))
        if not is_behind:
            self._dense_ticks_behind = 0
        elif self._the.appended_bytes < limits.burst_bytes:
            is_dense = self._the.appended_bytes >= limits.dense_bytes
            self._dense_ticks_behind += 1 if is_dense else limits.dense_ticks
        has_waited = self._dense_ticks_behind >= limits.unconsolidated_ticks * limits.dense_ticks
        self._is_catching_up = is_behind and (is_quiet or has_waited)
        if is_quiet:
            self._be_quiet()

    def _be_quiet(self) -> None:
        """Nothing is being appended: a good moment to make durable what was consolidated, if it is worth it, and to see who is
        owed what.
        """
        the, journal = self._the, self._the.journal
        unflushed = self._unflushed_items + self._changed_items
        self._is_flush_wanted = unflushed >= the.limits.unflushed_quiet_items_max
        is_owed = journal is not None and bool(journal.owed.entries)
        self._is_release_wanted = (
            is_owed and journal is not None and self._applied(journal) < the.commit_index
        )

    def give_up(self) -> None:
        """A job failed, of whatever lane: forget the state, which may be ahead of what is written. What is under way with it
        stops behind its present step.
        """
        if self._state is not None:
            self._left.append(_take_apart(self._loading, self._state, self._changes))
        self._state, self._loading, self._journal, self.is_resting = None, None, None, True
        self._unflushed_items, self._is_flush_wanted, self._is_release_wanted = 0, False, False
        self._changes, self._changed_items = SnapshotChanges(), 0

    def run(self) -> Procedure[None]:
        """Consolidate all that can be; gives way to readers and to whatever closes the set."""
        yield from self._let_go()
        if not self._is_wanted():
            return
        the, journal = self._the, self._the.journal
        assert journal is not None
        if self._journal is not journal:
            self.give_up()
            self.is_resting = False
            yield from self._let_go()
            if not (yield from self._load()):
                return
            self._journal = journal
        while closed := journal.closed_up_to(the.commit_index):
            if not (yield from self._consolidate(journal, closed[0])):
                return
        if not (yield from self._apply_up_to(journal, the.commit_index)):
            return
        self._is_release_wanted = self._is_catching_up = False
        self._dense_ticks_behind = 0
        yield from release(the, journal, self._owed_after(journal))
        if self._is_flush_wanted:
            self._is_flush_wanted = False
            yield from self._write(journal, journal.first_number())
            yield from self._flush()

    def _applied(self, journal: Journal) -> LogIndex:
        """How far this consolidator is."""
        is_loaded = self._journal is journal and self._state is not None
        return self._state.applied if is_loaded and self._state else self._the.snapshot_index

    def _unflushed_items_max(self, state: SetState) -> int:
        """A crash makes a recovery load what the flushed snapshot still holds of them: little beside what is alive."""
        limits = self._the.limits
        live_items = 2 * len(state.contents)
        return max(limits.unflushed_items_max, live_items // limits.unflushed_fraction)

    def _rest(self, journal: Journal) -> float:
        """How long to rest behind some work, as many times as that takes."""
        the = self._the
        if not the.appended_bytes:
            return 0.0
        half = the.unconsolidated_bytes_max / 2
        left = 3 * half - self._behind_bytes(journal)
        return the.limits.consolidator_rest * min(max(left / half, 0.0), 1.0)

    def _must_stop(self, journal: Journal) -> bool:
        the, is_given_up = self._the, self._state is None
        return is_given_up or the.loads > 0 or the.phase is not Phase.OPEN or the.journal is not journal

    def _let_go(self) -> Procedure[None]:
        while self._left:
            yield from compute(partial(_finish, self._left.pop()))

    def _load(self) -> Procedure[bool]:
        """Answers whether nobody gave it up meanwhile."""
        state = self._state = SetState(self._the.name)
        reigns = self._the.snapshot.reigns if self._the.snapshot is not None else ()
        blocks: list[Block] = []
        loading = self._loading = restoration.Restoration(state, 0, blocks, with_checksums=False)
        scan = yield from scan_of(self._the)
        changes, is_last = self._changes, scan.is_empty
        while not is_last and self._state is state:
            items, is_last = yield from scan.blocks(self._the.limits.chunk_bytes)
            yield from compute(partial(_take, loading, items))
            yield from compute(partial(changes.found, tuple(blocks)))
            blocks.clear()
        if self._state is state:
            yield from compute(partial(_settle, loading, state, scan.index))
        if self._state is not state:
            return False
        state.epochs.learn(reigns)
        state.set_listener(self)
        self._loading = None
        return True

    def _consolidate(self, journal: Journal, segment: Segment) -> Procedure[bool]:
        """Apply one closed segment, write what it changed, let it go; answers whether to go on."""
        the = self._the
        last = LogIndex(0) if segment.is_empty else segment.last
        if not (yield from self._apply_up_to(journal, last)):
            return False
        assert self._state is not None and self._state.applied >= last, f"{segment} lacks a frame"
        yield from release(the, journal, self._owed_after(journal))
        yield from self._write(journal, self._number_behind(journal, segment))
        yield from self._flush()
        if self._must_stop(journal):
            return False
        is_owed = self._is_owed(journal, segment)
        journal.let_go(segment.number, the.flushed_index, is_owed)
        if not is_owed:
            yield from delete_segments(the, journal, (segment.number,))
        elif must_trim(the):
            yield from trim(the)
        return not self._must_stop(journal)

    def _is_owed(self, journal: Journal, segment: Segment) -> bool:
        """Said of one that is applied: the same until the next frame is."""
        return not segment.is_empty and segment.last > self._owed_after(journal)

    def _owed_after(self, journal: Journal) -> LogIndex:
        """Everything at or below it is owed to nobody. The events of a transaction that is owed, because it ended behind what the
        groups are done with, are in the frames from its beginning on (history 19).
        """
        assert self._state is not None
        applied, owed_after = self._state.applied, self._state.owed_after()
        ends = [(entry.last, entry.spans_from) for entry in journal.owed.entries]
        ends += [(segment.last, segment.spans_from) for segment in journal.segments if not segment.is_empty]
        begins = [LogIndex(begin - 1) for last, begin in ends if begin and min(last, applied) > owed_after]
        return min([owed_after, *begins])

    def _apply_up_to(self, journal: Journal, last: LogIndex) -> Procedure[bool]:
        """Apply all whole frames up to `last`; writes whenever much has changed. Answers whether to go on."""
        the, state = self._the, self._state
        assert state is not None
        while state.applied < last:
            run = journal.frames_behind(state.applied, last, the.limits.consolidated_bytes)
            if run is None:
                break
            data = yield from read_bytes(ReadSegment(run.segment, run.offset, run.length))
            self._spans_from = LogIndex(0)
            yield from compute(partial(_apply, state, run, data), self._rest(journal))
            if self._state is not state:
                return False
            self._changed_items = len(self._changes)
            journal.spans(run.segment, self._spans_from)
            if self._changed_items >= the.limits.batch_items_max:
                yield from self._write(journal, run.segment)
                if self._unflushed_items >= self._unflushed_items_max(state):
                    yield from self._flush()
            if self._must_stop(journal):
                return False
        return True

    def _flush(self) -> Procedure[None]:
        yield (SnapshotFlush(),)
        self._the.flushed_index = self._the.snapshot_index
        self._unflushed_items = 0

    @staticmethod
    def _number_behind(journal: Journal, segment: Segment) -> int:
        """What continues a closed segment; this never changes any more (see `Journal.plan_cut`)."""
        place = journal.segments.index(segment)
        return (
            journal.segments[place + 1].number if place + 1 < len(journal.segments) else journal.next_number
        )

    def _write(self, journal: Journal, first_segment: int) -> Procedure[None]:
        """Write what is dirty as one batch, with the index that the state has now, unless that was given up; all below
        `first_segment` is covered.
        """
        the, state = self._the, self._state
        if state is None:
            return
        take = partial(_take_changes, self._changes, state, the.snapshot_index)
        batch = yield from compute(take, self._rest(journal))
        if self._state is not state:
            return
        count, self._changed_items = self._changed_items, 0
        leaving = (segment for segment in journal.segments if segment.number < first_segment)
        owed = (
            *journal.owed.entries,
            *(owed_segment(segment) for segment in leaving if self._is_owed(journal, segment)),
        )
        spans = tuple(
            (segment.number, segment.spans_from)
            for segment in journal.segments
            if segment.number >= first_segment and segment.spans_from
        )
        epochs, reigns = tuple(state.epochs.entries), state.epochs.reigns
        before = the.snapshot
        is_installed = before is not None and before.is_installed and before.index == state.applied
        meta = SnapshotMeta(
            state.applied, epochs, state.time_ms, first_segment, owed, spans, reigns, is_installed
        )
        yield (SnapshotWrite(batch.puts, batch.deletes, encode_meta(meta)),)
        self._unflushed_items += count
        the.snapshot = meta
        for name in batch.sparse:
            (block,) = yield from read_values((messages_block_key(name),))
            thinned = yield from compute(partial(self._changes.thinned, name, block))
            yield (SnapshotWrite(thinned.puts, thinned.deletes, b""),)


def _apply(state: SetState, run: FramesAt, data: bytes) -> None:
    for begin, end in run.spans:
        durable = data[begin:end]
        header = checked_at(run, begin, durable)
        try:
            state.apply_frame(Frame(header, durable, b""))
        except MemoryError:
            raise
        except Exception as error:
            what = f"frame {header.first}..{header.last} cannot be applied: {error!r}"
            raise Unusable(header.first, what) from error


def _take(loading: restoration.Restoration, items: tuple[StateItem, ...]) -> None:
    with damage():
        loading.take(items)


def _settle(loading: restoration.Restoration, state: SetState, index: LogIndex) -> None:
    with damage():
        loading.settle()
        if state.applied != index:
            raise ValueError(f"of index {state.applied}, in one at {index}")


def _take_changes(changes: SnapshotChanges, state: SetState, written: LogIndex) -> Batch:
    """What is wrong in a message is found when it is written: in one of the frames since the last write."""
    try:
        return changes.take(state, written)
    except MemoryError:
        raise
    except Exception as error:
        what = f"what is behind {written}, up to {state.applied}, cannot be written: {error!r}"
        raise Unusable(LogIndex(written + 1), what) from error


def _take_apart(
    loading: restoration.Restoration | None, state: SetState, changes: SnapshotChanges
) -> Iterator[int]:
    if loading is not None:
        yield from loading.take_apart()
    yield from state.take_apart()
    yield from changes.take_apart()


def _finish(work: Iterator[int]) -> None:
    for _ in work:
        pass
