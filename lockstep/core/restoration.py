"""Restoration: a state from items, and transient items laid over a state that durable records alone have built (DESIGN R12).

Law: items may come in any order, blocks of them in that of their keys; afterwards everything that is derived (order, sizes,
references, locks, reserved room, names) is computed anew from all items, so that it cannot disagree with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockstep.core import item_values as values
from lockstep.core import items as keys
from lockstep.core.apply_messages import reserve, shares_in
from lockstep.core.entry_runs import EntryRun
from lockstep.core.exchanges import Binding, Exchange
from lockstep.core.ids import (
    Epoch,
    ExchangeId,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    SessionKey,
    TransactionKey,
)
from lockstep.core.item_blocks import LEFT, Block, EntryRunValue, entries_in, is_block, messages_in
from lockstep.core.items import Item
from lockstep.core.outcomes import Outcome
from lockstep.core.packed_messages import RUN_MIN
from lockstep.core.queues import Queue
from lockstep.core.restored_contents import RestoredContents
from lockstep.core.sessions import Session
from lockstep.core.subscriptions import DeletedResource, Group
from lockstep.core.transactions import Undone
from lockstep.core.tx_buffer import DequeueOperation, DtxBuffer, TxBuffer

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


UNLIMITED_BYTES = 1 << 62


def restore(state: SetState, items: Iterable[Item], resident_bytes_max: int = UNLIMITED_BYTES) -> None:
    """Add items to a state, which is new or, for transient items, at the index at which they were taken."""
    restoration = Restoration(state, resident_bytes_max)
    restoration.take(items)
    restoration.settle()


class Restoration:
    """One restoration under way, for whoever gets the items piece by piece: `take` each piece, then `settle` once.

    In between the state is good for nothing. Of durable contents the first ones stay whole, up to `resident_bytes_max`.
    """

    def __init__(
        self,
        state: SetState,
        resident_bytes_max: int = UNLIMITED_BYTES,
        blocks: list[Block] | None = None,
        with_checksums: bool = True,
    ) -> None:
        """`blocks`: gets what was found of them. `with_checksums`: of bodies that are let go, see `Contents.drop`."""
        self._state = state
        self._contents = RestoredContents(state.contents, resident_bytes_max, with_checksums)
        self._blocks = blocks
        self._left: bytes | None = None
        """Of the block that comes next."""
        self._epochs: list[tuple[Epoch, LogIndex]] = []
        self._exchanges: list[Exchange] = []
        self._queues: list[Queue] = []
        self._entries: dict[QueueId, list[tuple[QueuePosition, MessageId]]] = {}
        self._entry_runs: dict[QueueId, list[EntryRun]] = {}
        self._transient: dict[QueueId, list[QueuePosition]] = {}
        self._counts: dict[QueueId, list[tuple[QueuePosition, int]]] = {}
        self._expiries: dict[QueueId, list[tuple[QueuePosition, int]]] = {}
        self._bindings: list[tuple[Binding, bool]] = []
        self._outcomes: list[tuple[TransactionKey, Outcome]] = []
        self._floor = state.outcomes.floor
        self._open_from: Epoch | None = state.open_from
        self._sessions: list[Session] = []
        self._groups: list[Group] = []
        self._deleted: list[tuple[int, DeletedResource]] = []
        self._names_from = state.subscriptions.names_from

    def take(self, items: Iterable[Item]) -> None:
        """Add a piece; raises `ValueError` (msgspec's included) for what is no item."""
        # A restart is mostly this loop: two items for each message, unless they lie in blocks.
        take_content = self._contents.take_item
        number: MessageId
        for item in items:
            key, value, is_durable = item
            kind = key[:1]
            if kind == keys.MESSAGE:
                if is_block(key):
                    self._take_messages(key, value)
                else:
                    (number,) = keys.numbers_in(key)  # type: ignore[assignment]
                    take_content(number, value, is_durable)
            elif kind == keys.ENTRY:
                if is_block(key):
                    self._take_entries(key, value)
                else:
                    self._take_entry(key, value, is_durable)
            else:
                self._take_other(item)

    def _take_messages(self, key: bytes, value: bytes) -> None:
        """One of the two items of a block."""
        if key[-1:] == LEFT:
            self._left = value
            return
        (last,) = keys.numbers_in(key[:-1])
        pieces, block = messages_in(last, value, self._left)
        self._left = None
        self._contents.take_block(pieces)
        if self._blocks is not None:
            self._blocks.append(block)

    def _take_entries(self, key: bytes, value: bytes) -> None:
        queue: QueueId
        queue, last = keys.numbers_in(key[:-1])  # type: ignore[assignment]
        runs = entries_in(value)
        alone = self._entries.setdefault(queue, [])
        together = self._entry_runs.setdefault(queue, [])
        for run in runs:
            if run.delivery_count or run.expires_ms is not None:
                self._take_aside(queue, run)
            elif run.count >= RUN_MIN:
                together.append(EntryRun(range(run.first, run.first + run.count), run.message - run.first, 0))
                continue
            alone += zip(run.positions, run.messages, strict=True)
        if self._blocks is not None:
            self._blocks.append(Block(queue, last, tuple(run.positions for run in runs), None))

    def _take_aside(self, queue: QueueId, run: EntryRunValue) -> None:
        """What is said of entries beside their places."""
        for position in run.positions:
            if run.delivery_count:
                self._counts.setdefault(queue, []).append((position, run.delivery_count))
            if run.expires_ms is not None:
                self._expiries.setdefault(queue, []).append((position, run.expires_ms))

    def _take_entry(self, key: bytes, value: bytes, is_durable: bool) -> None:
        queue: QueueId
        position: QueuePosition
        queue, position = keys.numbers_in(key)  # type: ignore[assignment]
        entry = values.decode_entry(value)
        entries = self._entries.get(queue)
        if entries is None:
            entries = self._entries[queue] = []
        entries.append((position, entry.message))
        if not is_durable:
            self._transient.setdefault(queue, []).append(position)
        if entry.delivery_count:
            self._counts.setdefault(queue, []).append((position, entry.delivery_count))
        if entry.expires_ms is not None:
            self._expiries.setdefault(queue, []).append((position, entry.expires_ms))

    def _take_other(self, item: Item) -> None:
        kind = item.key[:1]
        if kind == keys.META:
            meta = values.decode_meta(item.value)
            self._state.applied, self._state.time_ms = meta.applied, meta.time_ms
            self._floor, self._open_from = meta.retention_floor, meta.open_from
            self._names_from = meta.names_from
        elif kind == keys.EPOCH:
            (number,) = keys.numbers_in(item.key)
            self._epochs.append((Epoch(number), values.decode_epoch(item.value)))
        elif kind == keys.BINDING:
            self._bindings.append((Binding(*keys.parse_binding_key(item.key)), item.is_durable))
        elif kind == keys.OUTCOME:
            key = self._transaction_in(item.key)
            self._outcomes.append((key, values.decode_outcome(item.value)))
        elif kind == keys.SUBSCRIPTION:
            self._groups.append(values.decode_group(item.value))
        elif kind == keys.DELETED_RESOURCE:
            (number,) = keys.numbers_in(item.key)
            self._deleted.append((number, values.decode_deleted_resource(item.value)))
        elif kind == keys.UNDONE:
            undone = values.decode_undone(item.value)
            self._state.transactions.undone[undone.xid] = Undone(
                self._transaction_in(item.key), undone.reason, undone.index
            )
        elif kind in (keys.EXCHANGE, keys.QUEUE, keys.SESSION):
            self._take_declared(kind, item)
        elif kind in (keys.TRANSACTION, keys.OPERATION, keys.BEGINNING):
            self._take_transaction(kind, item)
        else:
            raise ValueError(f"no item kind {kind!r}")

    def _take_declared(self, kind: bytes, item: Item) -> None:
        state = self._state
        (number,) = keys.numbers_in(item.key)
        if kind == keys.EXCHANGE:
            exchange = values.decode_exchange(item.value)
            self._exchanges.append(
                Exchange(ExchangeId(number), exchange.name, exchange.kind, item.is_durable)
            )
        elif kind == keys.QUEUE:
            definition = values.decode_queue(item.value)
            self._queues.append(Queue(QueueId(number), definition, state.contents, state.changes))
        else:
            value = values.decode_session(item.value)
            session = Session(SessionKey(number), value.epoch, value.session_id, value.timeout_ms)
            session.next_number, session.dtx = value.next_number, value.dtx
            session.answers.update(value.answers)
            session.consumed.update(dict.fromkeys(value.consumed))
            self._sessions.append(session)

    def _take_transaction(self, kind: bytes, item: Item) -> None:
        transactions = self._state.transactions
        key = self._transaction_in(item.key)
        buffer = transactions.live.get(key)
        if buffer is None:
            buffer = TxBuffer(key)
            transactions.add(buffer)
        if kind == keys.OPERATION:
            index = LogIndex(keys.numbers_in(item.key)[2])
            buffer.add(values.decode_operation(item.value, index, item.is_durable))
        elif kind == keys.TRANSACTION:
            transaction = values.decode_transaction(item.value)
            buffer.state, buffer.is_durable = transaction.state, True
            if buffer.is_prepared:
                transactions.identify(buffer, transaction.xid).prepared_ms = transaction.prepared_ms
        else:
            beginning = values.decode_beginning(item.value)
            buffer.session, buffer.timeout_ms = beginning.session, beginning.timeout_ms
            buffer.started_ms, buffer.is_rollback_only = beginning.started_ms, beginning.is_rollback_only
            if beginning.xid and not isinstance(buffer, DtxBuffer):
                branch = transactions.identify(buffer, beginning.xid)
                for session, is_suspended in beginning.associations:
                    transactions.associate(branch, session, is_suspended)

    @staticmethod
    def _transaction_in(key: bytes) -> TransactionKey:
        index, epoch = keys.numbers_in(key)[:2]
        return LogIndex(index), Epoch(epoch)

    def settle(self) -> None:
        """Everything is here: put it in order and derive the rest."""
        state = self._state
        for epoch, first in sorted(self._epochs):
            state.epochs.observe(epoch, first)
        state.open_from = state.epochs.last if self._open_from is None else self._open_from
        for exchange in sorted(self._exchanges, key=lambda exchange: exchange.id):
            state.exchanges.declare(exchange)
        for queue in sorted(self._queues, key=lambda queue: queue.id):
            state.queues.add(queue)
        for binding, is_durable in sorted(self._bindings):
            state.exchanges.bind(binding, is_durable)
        for session in sorted(self._sessions, key=lambda session: session.key):
            state.sessions.add(session)
        state.outcomes.restore(self._outcomes, self._floor)
        state.subscriptions.restore(self._groups, self._deleted, self._names_from)
        for queue_id, entries in self._entries.items():
            queue = state.queues.by_id[queue_id]
            transient = self._transient.get(queue_id, ()) if queue.is_durable else ()
            queue.restore(entries, self._entry_runs.get(queue_id, ()), transient)
            queue.delivery_counts.update(self._counts.get(queue_id, ()))
            queue.expiries.update(self._expiries.get(queue_id, ()))
        self._derive()

    def _derive(self) -> None:
        state = self._state
        durable, transient = Counter[MessageId](), Counter[MessageId]()
        for queue in state.queues.by_id.values():
            queue.locks.clear()
            queue.reserved_length = queue.reserved_bytes = 0
            is_mixed = bool(queue.transient_positions)
            for positions, ids in queue.settle():
                if not is_mixed:
                    (durable if queue.is_durable else transient).update(ids)
                    continue
                for position, message_id in zip(positions, ids, strict=True):
                    (durable if queue.is_entry_durable(position) else transient)[message_id] += 1
        for _, buffer in sorted(state.transactions.live.items()):
            buffer.operations.sort(key=lambda operation: operation.index)
            for operation in buffer.operations:
                if isinstance(operation, DequeueOperation):
                    buffer.touched.add(operation.queue)
                    held = state.queues.by_id.get(operation.queue)
                    if held is not None:
                        held.lock(operation.positions, buffer.key, operation.is_durable)
                    continue
                ids = operation.message_ids
                shares = shares_in(state, buffer, operation)
                buffer.touched.update(share.queue for share in shares)
                reserve(state, shares, 1)
                (durable if operation.is_durable else transient).update(ids)
        state.contents.recount(durable, transient)
