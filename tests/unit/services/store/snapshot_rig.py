"""A snapshot on a virtual disk, and a consolidator in small: what the real one does with the changes of its state.

Law: `Consolidation.reload` knows nothing but what was written, as a process that starts after a crash.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex, MessageId, TimeMs
from lockstep.core.item_blocks import Block, messages_block_key
from lockstep.core.restoration import Restoration
from lockstep.core.set_state import SetState
from lockstep.core.store_protocol import StateItem
from services.store.core.blocks import Scan, kept_messages
from services.store.core.disk import SnapshotWrite
from services.store.core.limits import StoreLimits
from services.store.core.meta import SnapshotMeta
from services.store.core.procedure import Procedure
from services.store.core.snapshot_changes import Batch, SnapshotChanges
from services.store.core.stored_set import StoredSet
from tests.simulation.disk import VirtualDisk
from tests.unit.services.store.store_rig import SET

T = TypeVar("T")


class Snapshot:
    """The items of one set, as the database has them."""

    def __init__(self) -> None:
        self.disk = VirtualDisk()
        self.the = StoredSet(SET, StoreLimits())
        self.the.snapshot = SnapshotMeta(LogIndex(1), (), TimeMs(0), 1)
        self.jobs = 0
        """Of the procedures so far."""

    def write(self, puts: Iterable[StateItem], deletes: Iterable[bytes] = ()) -> None:
        self.disk.perform(SET, SnapshotWrite(tuple(puts), tuple(deletes), b""))

    def run(self, procedure: Procedure[T]) -> T:
        """Performs all steps of a procedure."""
        try:
            steps = next(procedure)
            while True:
                self.jobs += 1
                steps = procedure.send(tuple(self.disk.perform(SET, step) for step in steps))
        except StopIteration as end:
            result: T = end.value
            return result

    @property
    def keys(self) -> list[bytes]:
        return sorted(self.disk.directories[SET].snapshot.items) if SET in self.disk.directories else []

    def value(self, key: bytes) -> bytes | None:
        item = self.disk.directories[SET].snapshot.items.get(key)
        return item.value if item is not None else None

    def scan(self, from_key: bytes = b"", bytes_max: int = 1000) -> list[StateItem]:
        """All items from a key on, in the order in which they come."""
        return self._all(Scan(self.the, from_key).next, bytes_max)

    def blocks(self, bytes_max: int = 1000) -> list[StateItem]:
        """All that is kept, as it is."""
        return self._all(Scan(self.the).blocks, bytes_max)

    def _all(
        self, read: Callable[[int], Procedure[tuple[tuple[StateItem, ...], bool]]], bytes_max: int
    ) -> list[StateItem]:
        found, is_last = list[StateItem](), False
        while not is_last:
            items, is_last = self.run(read(bytes_max))
            found += items
        return found

    def messages(self, *wanted: MessageId) -> dict[MessageId, bytes]:
        found, unread = self.run(kept_messages(self.the, wanted, 1 << 30))
        assert not unread
        return found


class Consolidation:
    """A state that durable records build, written into a snapshot."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot or Snapshot()
        self.reload()

    def reload(self) -> None:
        blocks: list[Block] = []
        self.state, self.changes = SetState(SET), SnapshotChanges()
        loading = Restoration(self.state, 0, blocks, with_checksums=False)
        loading.take(self.snapshot.blocks())
        self.changes.found(blocks)
        loading.settle()
        self.written = LogIndex(self.state.applied)
        self.state.changes.listener = self.changes

    def apply(self, frames: Sequence[Frame]) -> None:
        """Apply those of these frames that it lacks."""
        for frame in frames:
            if frame.header.first > self.state.applied:
                self.state.apply_frame(frame._replace(transient=b""))

    def write(self, thinned_max: int = 1000) -> Batch:
        """Write what has changed, and then so many of the blocks that are to be written anew; answers the first batch."""
        batch = self.changes.take(self.state, self.written)
        assert len(self.changes) == 0
        assert len({item.key for item in batch.puts}) == len(batch.puts)
        assert not {item.key for item in batch.puts} & set(batch.deletes), "a write is in no order"
        self.snapshot.write(batch.puts, batch.deletes)
        self.written = self.state.applied
        for name in batch.sparse[:thinned_max]:
            thinned = self.changes.thinned(name, self.snapshot.value(messages_block_key(name)))
            self.snapshot.write(thinned.puts, thinned.deletes)
        return batch
