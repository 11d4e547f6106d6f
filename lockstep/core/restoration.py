"""Restoration: a state from items, and transient items laid over a state that durable records alone have built (DESIGN R12).

Law: items may come in any order, blocks of them in that of their keys; afterwards everything that is derived (order, sizes,
references, locks, reserved room, names) is computed anew from all items, so that it cannot disagree with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from lockstep.core import item_values as values
from lockstep.core import items as keys
from lockstep.core.apply_messages import QUEUE_COST, reserve, shares_in, spread_of
from lockstep.core.deaths import Deaths
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
from lockstep.core.item_blocks import LEFT, Block, DeadEntryRunValue, entries_in, is_block, messages_in
from lockstep.core.items import Item
from lockstep.core.outcomes import Outcome
from lockstep.core.packed_messages import RUN_MIN
from lockstep.core.position_tables import PositionTable
from lockstep.core.queues import Queue
from lockstep.core.restored_contents import RestoredContents
from lockstep.core.restored_references import RestoredReferences
from lockstep.core.sessions import Session
from lockstep.core.subscriptions import DeletedResource, Group
from lockstep.core.taking_apart import emptied
from lockstep.core.transactions import Undone
from lockstep.core.tx_buffer import DequeueOperation, DtxBuffer, TxBuffer

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


UNLIMITED_BYTES = 1 << 62
TAKEN_IN_ONE = 16
"""Items that are taken in one step."""
BLOCK_COST, ITEM_COST, BINDING_COST, RUN_COST, ENTRY_COST = 100, 3, 10, 10, 2
"""In microseconds, about: of a block of items, of one alone, of a binding, of a run of entries, of one of them alone."""
SAID_IN_ONE = 500
"""Entries of which something is said, that are taken over in one step."""
_Entry = tuple[QueuePosition, MessageId]
_Said = TypeVar("_Said")


def restore(state: SetState, items: Iterable[Item], resident_bytes_max: int = UNLIMITED_BYTES) -> None:
    """Add items to a state, which is new or, for transient items, at the index at which they were taken."""
    restoration = Restoration(state, resident_bytes_max)
    restoration.take(items)
    restoration.settle()


def lay_over(state: SetState, items: Sequence[Item]) -> Iterator[int]:
    """Add a live state's transient items to one that durable records built up to the same index (DESIGN R12), in steps that say
    what they cost (`Pieces`). In between the state is good for nothing.
    """
    restoration = Restoration(state)
    for item in items:
        assert not item.is_durable, f"durable item {item.key!r} laid over durable state"
    yield from restoration.take_in_steps(items)
    yield from restoration.settle_in_steps()


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
        state.clearing.finish()
        state.changes.captures.finish()
        self._references = RestoredReferences(state.contents)
        self._contents = RestoredContents(
            state.contents, self._references, resident_bytes_max, with_checksums
        )
        self._operations: dict[TransactionKey, set[LogIndex]] = {}
        """Those that came."""
        self._blocks = blocks
        self._left: bytes | None = None
        """Of the block that comes next."""
        self._epochs: list[tuple[Epoch, LogIndex]] = []
        self._exchanges: list[Exchange] = []
        self._queues: list[Queue] = []
        self._entries: dict[QueueId, list[_Entry]] = {}
        """Kept one by one: those that are durable where their queue is, and all of a queue that is not."""
        self._entry_runs: dict[QueueId, list[EntryRun]] = {}
        self._transient: dict[QueueId, list[_Entry]] = {}
        """Those that are not durable in a queue that may be."""
        self._unordered: set[QueueId] = set()
        """Queues whose entries of either kind did not come in their order."""
        self._counts: dict[QueueId, list[tuple[QueuePosition, int]]] = {}
        self._expiries: dict[QueueId, list[tuple[QueuePosition, int]]] = {}
        self._deaths: dict[QueueId, list[tuple[QueuePosition, Deaths]]] = {}
        self._annotations: dict[QueueId, list[tuple[QueuePosition, bytes]]] = {}
        self._bindings: list[tuple[Binding, bool]] = []
        self._outcomes: list[tuple[TransactionKey, Outcome]] = []
        self._floor = state.outcomes.floor
        self._name_horizon_ms = state.outcomes.name_horizon_ms
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
        if alone and runs and runs[0].first < alone[-1][0]:
            self._unordered.add(queue)
        together = self._entry_runs.setdefault(queue, [])
        for run in runs:
            if run.delivery_count or run.expires_ms is not None or run.deaths or run.annotations:
                self._take_aside(queue, run)
            elif run.count >= RUN_MIN:
                together.append(EntryRun(range(run.first, run.first + run.count), run.message - run.first, 0))
                continue
            alone += zip(run.positions, run.messages, strict=True)
        if self._blocks is not None:
            self._blocks.append(Block(queue, last, tuple(run.positions for run in runs), None))

    def _take_aside(self, queue: QueueId, run: DeadEntryRunValue) -> None:
        """What is said of entries beside their places."""
        for position in run.positions:
            if run.delivery_count:
                self._counts.setdefault(queue, []).append((position, run.delivery_count))
            if run.expires_ms is not None:
                self._expiries.setdefault(queue, []).append((position, run.expires_ms))
            if run.deaths:
                self._deaths.setdefault(queue, []).append((position, run.deaths))
            if run.annotations:
                self._annotations.setdefault(queue, []).append((position, run.annotations))

    def _take_entry(self, key: bytes, value: bytes, is_durable: bool) -> None:
        queue: QueueId
        position: QueuePosition
        queue, position = keys.numbers_in(key)  # type: ignore[assignment]
        entry = values.decode_entry(value)
        kept = self._entries if is_durable else self._transient
        entries = kept.get(queue)
        if entries is None:
            entries = kept[queue] = []
        elif entries and position < entries[-1][0]:
            self._unordered.add(queue)
        entries.append((position, entry.message))
        if entry.delivery_count:
            self._counts.setdefault(queue, []).append((position, entry.delivery_count))
        if entry.expires_ms is not None:
            self._expiries.setdefault(queue, []).append((position, entry.expires_ms))
        if entry.deaths:
            self._deaths.setdefault(queue, []).append((position, entry.deaths))
        if entry.annotations:
            self._annotations.setdefault(queue, []).append((position, entry.annotations))

    def _take_other(self, item: Item) -> None:
        kind = item.key[:1]
        if kind == keys.META:
            meta = values.decode_meta(item.value)
            self._state.applied, self._state.time_ms = meta.applied, meta.time_ms
            self._floor, self._open_from = meta.retention_floor, meta.open_from
            self._names_from = meta.names_from
            self._name_horizon_ms = meta.name_horizon_ms
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
            self._queues.append(
                Queue(QueueId(number), definition, state.contents, state.changes, state.page_entries)
            )
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
            if key not in self._operations:
                self._operations[key] = set()
                buffer.operations = list(buffer.operations)  # Somebody may still read what was there.
            buffer.add(values.decode_operation(item.value, index, item.is_durable))
            self._operations[key].add(index)
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

    def take_in_steps(self, items: Sequence[Item]) -> Iterator[int]:
        """As `take`, in steps that say what they cost (`Pieces`)."""
        for begin in range(0, len(items), TAKEN_IN_ONE):
            part = items[begin : begin + TAKEN_IN_ONE]
            self.take(part)
            yield sum(BLOCK_COST if is_block(item.key) else ITEM_COST for item in part)

    def take_apart(self) -> Iterator[int]:
        """It is void, or done with: leave nothing that was on its way, in steps that say what they cost (`taking_apart`)."""
        for by_queue in (
            self._entries,
            self._transient,
            self._counts,
            self._expiries,
            self._deaths,
            self._annotations,
            self._entry_runs,
        ):
            while by_queue:
                yield from emptied(by_queue.popitem()[1])
        for kept in (self._outcomes, self._bindings, self._queues, self._sessions, self._operations):
            yield from emptied(kept)
        yield from self._references.take_apart()

    def settle(self) -> None:
        """Everything is here: put it in order and derive the rest."""
        for _ in self.settle_in_steps():
            pass

    def settle_in_steps(self) -> Iterator[int]:
        """The same, in steps that say what they cost (`Pieces`)."""
        state = self._state
        for epoch, first in sorted(self._epochs):
            state.epochs.observe(epoch, first)
        state.open_from = state.epochs.last if self._open_from is None else self._open_from
        for exchange in sorted(self._exchanges, key=lambda exchange: exchange.id):
            state.exchanges.declare(exchange)
            yield 1
        for queue in sorted(self._queues, key=lambda queue: queue.id):
            state.queues.add(queue)
            yield 1
        for binding, is_durable in sorted(self._bindings):
            state.exchanges.bind(binding, is_durable)
            yield BINDING_COST
        for session in sorted(self._sessions, key=lambda session: session.key):
            state.sessions.add(session)
            yield 1
        yield from state.outcomes.restore(self._outcomes, self._floor, self._name_horizon_ms)
        state.subscriptions.restore(self._groups, self._deleted, self._names_from)
        yield from self._settle_queues()
        yield from self._settle_transactions()
        self._references.end()
        yield from self.take_apart()

    def _settle_queues(self) -> Iterator[int]:
        """Entries, and what they refer to."""
        queues = self._state.queues.by_id
        for queue_id in sorted(self._entries.keys() | self._entry_runs.keys() | self._transient.keys()):
            queue = queues[queue_id]
            durable, transient = self._entries.pop(queue_id, []), self._transient.pop(queue_id, [])
            if queue_id in self._unordered:
                durable.sort()
                transient.sort()
            runs = self._entry_runs.pop(queue_id, [])
            for entries, with_runs, are_durable in ((durable, runs, True), (transient, [], False)):
                for _, ids in queue.restore(entries, with_runs, are_durable):
                    self._references.count(ids, queue.is_durable and are_durable)
                    yield RUN_COST if type(ids) is range else ENTRY_COST * len(ids)
            for entries in (durable, transient):
                yield from emptied(entries)
            yield from _say(queue.delivery_counts, self._counts.pop(queue_id, []))
            yield from _say(queue.expiries, self._expiries.pop(queue_id, []))
            yield from _say(queue.deaths, self._deaths.pop(queue_id, []))
            yield from _say(queue.annotations, self._annotations.pop(queue_id, []))
            yield 1

    def _settle_transactions(self) -> Iterator[int]:
        """Locks and reserved room of all, references of what came."""
        state = self._state
        for queue in state.queues.by_id.values():
            yield from queue.locks.take_apart()
            queue.reserved_length = queue.reserved_bytes = 0
            yield 1
        for _, buffer in sorted(state.transactions.live.items()):
            buffer.operations.sort(key=lambda operation: operation.index)
            fresh = self._operations.get(buffer.key, ())
            for operation in buffer.operations:
                if isinstance(operation, DequeueOperation):
                    buffer.touched.add(operation.queue)
                    held = state.queues.by_id.get(operation.queue)
                    if held is not None:
                        held.lock(operation.positions, buffer.key, operation.is_durable)
                    yield len(operation.positions)
                    continue
                ids = operation.message_ids
                shares = shares_in(state, buffer, operation)
                buffer.touched.update(share.queue for share in shares)
                reserve(state, shares, 1)
                if operation.index in fresh:
                    self._references.count(ids, operation.is_durable)
                yield len(ids) + QUEUE_COST * spread_of(shares, ())
            if buffer.is_prepared:
                state.transactions.note_prepared(buffer)


def _say(table: PositionTable[_Said], said: list[tuple[QueuePosition, _Said]]) -> Iterator[int]:
    """What is said of entries, from the last one on, in steps that say what they cost."""
    while said:
        some = said[-SAID_IN_ONE:]
        del said[-SAID_IN_ONE:]
        table.update(some)
        yield len(some)
