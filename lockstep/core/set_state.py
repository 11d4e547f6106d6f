"""SetState: one resource set's state, the deterministic state machine over its replication log (DESIGN 3).

Law: applying never checks, fails or decides; two states that applied the same records are equal, and their durable parts are
equal already when they applied the same durable records, whichever transient ones one of them missed. The same code runs on a
primary (at the log's end), on backups (at the commit index) and in the log consolidator (durable records only).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.core.apply_epochs import begin_epoch
from lockstep.core.apply_messages import QUEUE_COST
from lockstep.core.apply_table import APPLY
from lockstep.core.apply_whole import AppliedAt, apply_whole, stretch
from lockstep.core.clearing import Clearing
from lockstep.core.contents import Contents
from lockstep.core.entry_pages import PAGE_ENTRIES
from lockstep.core.epoch_table import EpochTable
from lockstep.core.exchanges import DEFAULT_EXCHANGE, Exchanges
from lockstep.core.frames import Frame, FrameHeader, decode_packed
from lockstep.core.ids import (
    Epoch,
    ExchangeId,
    LogIndex,
    MessageId,
    QueueId,
    QueuePosition,
    SetName,
    TimeMs,
    TransactionKey,
)
from lockstep.core.items import META_KEY, Changes, Item, epoch_key, operation_key, transaction_key
from lockstep.core.outcomes import Outcome, Outcomes
from lockstep.core.queues import Queues
from lockstep.core.records import AcceptCommand, AppliedRecord, EpochBegins, Message, RejectCommand
from lockstep.core.restoration import lay_over, restore
from lockstep.core.sessions import Answer, Session, Sessions
from lockstep.core.snapshot import all_items, one_item
from lockstep.core.state_listener import StateListener
from lockstep.core.subscriptions import Subscriptions
from lockstep.core.taking_apart import emptied
from lockstep.core.transaction_states import TransactionState
from lockstep.core.transactions import Transactions
from lockstep.core.tx_buffer import Operation, TxBuffer

STEP_RECORDS = 80
"""In one step, but for those of a transaction that is applied as a whole."""
CALLED_IN_ONE, CALL_COST = 250, 2
"""Calls of a listener in one step, behind a record that does much; and what each costs, about."""
DONE_IN_ONE = 500
"""What a record does at once, in units of `Pieces`."""
WHOLE_MAX = 200
"""Records of a transaction that are applied as a whole: those of a longer one are collected in several steps."""
DECODED_AT_ONCE = 256 * 1024
"""Bytes of a frame that is decoded and begun to be applied in one step."""
_DECODED_SHIFT = 8
"""So many bytes are decoded in a microsecond, as a power of two."""
RECORD_COST = 6
"""In microseconds, about."""
SPREAD_IN_ONE = 150
"""What publishes to several queues cost, in queues, behind which others have their turn."""
_ANSWERS = AcceptCommand, RejectCommand
"""They change nothing but what their session is told."""


class SetState:
    """The state after the record at `applied`; whoever holds the log drives it by `apply_frame` or `apply` and `close_frame`."""

    def __init__(
        self, set_name: SetName, listener: StateListener | None = None, page_entries: int | None = None
    ) -> None:
        self.set_name = set_name
        self.page_entries = page_entries or PAGE_ENTRIES
        """Of its queues; nobody sees it in what they have."""
        self.applied = LogIndex(0)
        """The last index that was applied, or that a frame said was there."""
        self.time_ms = TimeMs(0)
        """Of the last frame."""
        self.epochs = EpochTable()
        self.open_from = Epoch(0)
        """The last epoch that aborted what was open (R12); those behind it were handed over. Open transactions began in these."""
        self.begun_at = LogIndex(0)
        """What the epoch's record at this index does has been done, whether or not that is applied yet."""
        self.changes = Changes()
        self.contents = Contents(self.changes)
        self.exchanges = Exchanges(self.changes)
        self.queues = Queues()
        self.clearing = Clearing(self.contents, self.changes)
        self.sessions = Sessions()
        self.transactions = Transactions()
        self.outcomes = Outcomes(self.changes)
        self.subscriptions = Subscriptions(self.changes)
        self.is_taken_apart = False
        """Nobody has it any more, and it is being taken apart."""
        self.unfinished: Iterator[int] | None = None
        """What the last record does still: it ended a transaction in which very much was done. Whoever drives the state shows it
        to nobody before that is done (`finish_in_steps`); the next record finds it done."""
        self.done_in_one = DONE_IN_ONE
        """What a record does before it leaves the rest."""
        self.leave: Callable[[Iterator[int]], object] | None = None
        """Is given what goes on with that, where another one than who drives the state looks after it."""
        self.spread = 0
        """To how many queues more than one publishes went, and as much for places that were looked at one by one, and for what
        records took out, counted or moved, since it was counted what that takes."""
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.set_listener(listener)

    if TYPE_CHECKING:
        # An attribute, since it is read for each record; but whoever assigned to it would leave `changes` without it.
        @property
        def listener(self) -> StateListener | None:
            """Who is told of what happens while records are applied (`set_listener`)."""

    # --- driving it ---------------------------------------------------------------------------------------------------

    def set_listener(self, listener: StateListener | None) -> None:
        """From now on this one is told of what happens; may be done between records."""
        object.__setattr__(self, "listener", listener)
        hears_items = listener is not None and type(listener).items_changed is not StateListener.items_changed
        self.changes.listener = listener if hears_items else None

    def apply_frame(self, frame: Frame, between: Callable[[], object] | None = None) -> None:
        """Apply a whole frame, which follows the last one; raises `BadFrame` and changes nothing if it does not decode.

        `between` is called before each of its transactions; it must not come back to this state.
        """
        for _ in self.apply_in_steps(frame, between):
            pass

    def apply_in_steps(self, frame: Frame, between: Callable[[], object] | None = None) -> Iterator[int]:
        """The same, in steps that say what they cost (`Pieces`), whole transactions each."""
        header = frame.header
        assert header.first == self.applied + 1, f"frame {header.first}..{header.last} behind {self.applied}"
        records = decode_packed(frame)
        size = len(frame.durable) + len(frame.transient)
        if size >= DECODED_AT_ONCE:
            yield size >> _DECODED_SHIFT
        epoch, count = header.epoch, len(records)
        self._observe(epoch, header.first)
        place = begin = behind = 0
        while place < count:
            if place - begin >= STEP_RECORDS or self.spread >= SPREAD_IN_ONE:
                yield RECORD_COST * (place - begin) + self.spread_cost()
                begin = place
            if place == behind:
                if between is not None:
                    between()
                behind, is_whole = stretch(records, place)
                if (
                    is_whole
                    and behind - place <= WHOLE_MAX
                    and self.apply_whole(epoch, records[place:behind])
                ):
                    place = behind
                    continue
            index, record, is_durable = records[place]
            place += 1
            if type(record) is EpochBegins and self.listener is None:
                # A state half-way through a frame is shown to nobody. Who listens hears of it by the record, as ever.
                yield from begin_epoch(self, index, record)
            self.apply(index, epoch, record, is_durable)
            if self.unfinished is not None:
                yield from self.finish_in_steps()
        self.close_frame(header)
        yield RECORD_COST * (count - begin) + self.spread_cost()

    def spread_cost(self) -> int:
        """Of what `spread` has counted, since it was asked for last."""
        spread, self.spread = self.spread, 0
        return QUEUE_COST * spread

    def apply_whole(self, epoch: Epoch, records: Sequence[AppliedAt]) -> bool:
        """Apply the records of one TX, its commit being the last, in one; False: they are to be applied one by one."""
        if self.unfinished is not None:
            self.finish()
        values = apply_whole(self, epoch, records)
        if values is None:
            return False
        self.applied = records[-1][0]
        for (index, record, _), value in zip(records, values, strict=True):
            command = record.command
            if command is not None:
                session = self.sessions.by_key.get(command.session)
                if session is not None:
                    self._answer(session, command.number, Answer(index, value=value))
        if self._calls:
            self._call_listener()
        return True

    def apply(self, index: LogIndex, epoch: Epoch, record: AppliedRecord, is_durable: bool) -> None:
        """Apply one record, at a higher index than all before, but for what is left `unfinished`. `time_ms` follows with
        `close_frame`.
        """
        if self.unfinished is not None and type(record) not in _ANSWERS:
            self.finish()
        assert index > self.applied, f"record {index} behind {self.applied}"
        self.applied = index
        self._observe(epoch, index)
        # A session that this very record closes still hears its answer.
        session = self.sessions.by_key.get(record.command.session) if record.command is not None else None
        reply = APPLY[type(record)](self, index, epoch, record, is_durable)
        if session is not None and record.command is not None:
            self._answer(session, record.command.number, Answer(index, *reply))
        if self._calls and self.unfinished is None:
            self._call_listener()

    def do(self, work: Iterator[int]) -> None:
        """For a record: do what it does, in steps that say what they cost. Where the state is driven in pieces, what is too much
        for one is left `unfinished`.
        """
        cost, is_left = 0, self.clearing.is_left
        for step in work:
            cost += step
            if is_left and cost >= self.done_in_one:
                self.unfinished = work
                self.spread += cost // QUEUE_COST
                if self.leave is not None:
                    self.leave(self.finish_in_steps())
                return

    def finish_in_steps(self) -> Iterator[int]:
        """Do what is `unfinished`, in steps that say what they cost (`Pieces`): first what was done of it already."""
        if self.unfinished is not None:
            yield self.spread_cost()
        while (work := self.unfinished) is not None:
            cost = next(work, None)
            if cost is not None:
                yield cost
            else:
                self.unfinished = self._call_in_steps() if self._calls else None

    def _call_in_steps(self) -> Iterator[int]:
        """Tell the listener what such a record did."""
        calls, self._calls = self._calls, []
        for begin in range(0, len(calls), CALLED_IN_ONE):
            some = calls[begin : begin + CALLED_IN_ONE]
            for call, arguments in some:
                call(*arguments)
            yield CALL_COST * len(some)

    def finish(self) -> None:
        """The same at once."""
        for _ in self.finish_in_steps():
            pass

    def _answer(self, session: Session, number: int, answer: Answer) -> None:
        session.answer(number, answer)
        if self.listener is not None:
            self.tell(self.listener.answered, session.key, number, answer)

    def _call_listener(self) -> None:
        calls, self._calls = self._calls, []
        for call, arguments in calls:
            call(*arguments)

    def close_frame(self, header: FrameHeader) -> None:
        """All records of this frame that are to be had were applied: take over its last index, epoch and time.

        A primary applies records before it cuts their frame, and may be further already.
        """
        self._observe(header.epoch, header.first)
        if header.reign != self.epochs.last_reign:
            self.epochs.observe(header.epoch, header.first, header.reign)
        self.applied = max(self.applied, header.last)
        self.time_ms = header.time_ms
        self.changed(META_KEY)

    def _observe(self, epoch: Epoch, index: LogIndex) -> None:
        if epoch != self.epochs.last and self.epochs.observe(epoch, index):
            self.changed(epoch_key(epoch))

    # --- asking it ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        """The epoch of the last record."""
        return self.epochs.last

    @property
    def retention_floor(self) -> LogIndex:
        """Outcomes recorded at or below it are forgotten."""
        return self.outcomes.floor

    def owed_after(self) -> LogIndex:
        """Everything at or below this index is owed to nobody: no group of readers lacks it, and no transaction without outcome
        has content there (DESIGN 5, history 19).
        """
        floor = self.subscriptions.floor
        begins = [key[0] - 1 for key in self.transactions.live]
        return LogIndex(min([self.applied if floor is None else floor, *begins]))

    def route(self, exchange: str | ExchangeId, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        """Queues for a message published to an exchange, by name or id, ascending; none if there is no such exchange."""
        if exchange == DEFAULT_EXCHANGE:
            queue = self.queues.by_name.get(key)
            return (queue.id,) if queue is not None else ()
        return self.exchanges.route(exchange, key, headers)

    def message(self, queue: QueueId, position: QueuePosition) -> Message | None:
        """The message at a position of a queue; None if it is gone or its body is away."""
        found = self.queues.by_id.get(queue)
        return found.message(position) if found is not None else None

    def outcome(self, key: TransactionKey) -> Outcome:
        """What became of a transaction, as far as this state can say (DESIGN T5)."""
        buffer = self.transactions.live.get(key)
        if buffer is not None:
            return Outcome(buffer.state, xid=buffer.xid)
        recorded = self.outcomes.get(key)
        if recorded is not None:
            return recorded
        index, epoch = key
        if epoch > self.epoch or (epoch == self.epoch and index > self.applied):
            return Outcome(TransactionState.UNKNOWN)
        # Of another epoch than the log has there: its begin was in a suffix that was dropped.
        if index > self.retention_floor or self.epochs.epoch_at(index) not in (epoch, None):
            return Outcome(TransactionState.ROLLED_BACK)
        return Outcome(TransactionState.EXPIRED)

    def recover(self) -> list[tuple[TransactionKey, Outcome]]:
        """Prepared and heuristically ended branches, by key (the DTX contract's recover)."""
        prepared = [
            (buffer.key, Outcome(buffer.state, xid=buffer.xid)) for buffer in self.transactions.prepared()
        ]
        return sorted([*prepared, *self.outcomes.heuristic()])

    # --- bodies -------------------------------------------------------------------------------------------------------

    def drop_content(self, message_id: MessageId) -> None:
        """Let a message's body go; sizes and checksum stay, and every record can still be applied."""
        self.contents.drop((message_id,))

    def set_content(self, message_id: MessageId, message: Message) -> None:
        """Bring a dropped body back; nothing if the message is gone meanwhile."""
        self.contents.restore(message_id, message)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def items(
        self,
        durable: bool = True,
        transient: bool = True,
        bodies: bool = True,
        in_blocks: bool = False,
    ) -> Iterator[Item]:
        """The state as items in key order, as it is now, however long reading them takes, and whatever is applied meanwhile.

        Contents whose bodies are away come without them (`item_values.decode_content` tells); without `bodies` all do. With
        `in_blocks` messages and entries that came together come together, as a newcomer takes them.
        """
        paced = self.items_in_pieces(durable, transient, bodies, in_blocks)
        return (item for item in paced if item is not None)

    def items_in_pieces(
        self,
        durable: bool = True,
        transient: bool = True,
        bodies: bool = True,
        in_blocks: bool = False,
    ) -> Iterator[Item | None]:
        """The same for whoever lets others have their turn: with None between items where much was looked at for nothing."""
        self.finish()
        self.clearing.finish()
        return all_items(self, durable, transient, bodies, in_blocks)

    def item(self, key: bytes) -> Item | None:
        """The present item of a key; None if there is none (any more)."""
        self.finish()
        self.clearing.finish()
        return one_item(self, key)

    @classmethod
    def from_items(cls, set_name: SetName, items: Iterable[Item]) -> "SetState":
        """The state that gave these items: all of them, or the durable ones."""
        state = cls(set_name)
        restore(state, items)
        return state

    def overlay(self, items: Iterable[Item]) -> None:
        """Add a live state's transient items to this one, which durable records built up to the same index (DESIGN R12)."""
        for _ in self.overlay_in_steps(tuple(items)):
            pass

    def overlay_in_steps(self, items: Sequence[Item]) -> Iterator[int]:
        """The same, in steps that say what they cost (`Pieces`); in between the state is good for nothing."""
        return lay_over(self, items)

    # --- its end --------------------------------------------------------------------------------------------------------

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave nothing of it, in steps that say what they cost (`taking_apart`). Whoever still
        reads it has to look whether `is_taken_apart`.
        """
        yield from self.finish_in_steps()
        self.is_taken_apart = True
        queues = [*self.queues.by_id.values(), *self.clearing.queues]
        self.clearing.queues.clear()
        yield 1
        yield from self.contents.take_apart()
        while queues:
            yield from queues.pop().take_apart()
        self.queues.by_name.clear()
        yield from emptied(self.queues.by_id)
        for part in (self.outcomes, self.transactions, self.sessions, self.exchanges):
            yield from part.take_apart()

    # --- for the functions that apply records --------------------------------------------------------------------------

    def buffer_of(self, key: TransactionKey, epoch: Epoch) -> TxBuffer | None:
        """The buffer that a record of `epoch` names, made if its `begin` was not to be had; None if it ended."""
        buffer = self.transactions.live.get(key)
        if buffer is None and self.open_from <= key[1] <= epoch and key not in self.outcomes:
            buffer = TxBuffer(key)
            self.transactions.add(buffer)
        return buffer

    def collect(self, buffer: TxBuffer, operation: Operation) -> None:
        """Add an operation to an open transaction."""
        if operation.is_durable and self.changes.listener is not None:
            if not buffer.is_durable:
                self.changed(transaction_key(buffer.key))
            self.changed(operation_key(buffer.key, operation.index))
        buffer.add(operation)

    def changed(self, key: bytes) -> None:
        """A durable item came, changed or went."""
        if self.changes.listener is not None:
            self.changes.listener.items_changed((key,))

    def tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the listener once the record that is being applied is done."""
        self._calls.append((call, arguments))
