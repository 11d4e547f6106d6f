"""A writer of histories: appends what a primary might, by a primary's rules, to a state that stands at the log's end.

Rules kept (DESIGN 3): a record has the durability of its effect; whatever a non-durable effect would do to durable state is a
durable record; only free messages are taken; open transactions are written to, prepared ones only ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from lockstep.core.content import size_of
from lockstep.core.epoch_table import UNKNOWN_REIGN
from lockstep.core.frames import Frame, encode_frame
from lockstep.core.ids import (
    Epoch,
    ExchangeId,
    LogIndex,
    QueuePosition,
    SessionKey,
    SetName,
    TimeMs,
    TransactionKey,
)
from lockstep.core.packed_messages import alike_of
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from lockstep.core.records import (
    AcceptCommand,
    AdvanceSubscription,
    Alike,
    Annotate,
    AnyRecord,
    Begin,
    Bind,
    CloseSession,
    CloseSubscription,
    CommandRef,
    Commit,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Dequeue,
    DequeueReason,
    EpochBegins,
    ForgetHeuristic,
    ForgetOutcomes,
    MarkRollbackOnly,
    Message,
    Move,
    OpenSession,
    OpenSubscription,
    Prepare,
    Publish,
    RejectCommand,
    Requeue,
    Rollback,
    RollbackReason,
    Unbind,
    UseQueue,
)
from lockstep.core.set_state import SetState
from lockstep.core.state_listener import StateListener
from lockstep.core.transaction_states import TransactionState
from lockstep.core.tx_buffer import TxBuffer

SET = SetName("orders")
KEYS = ("a", "a.b", "a.*", "#", "b.#", "")


def message(
    queues: tuple[Queue, ...],
    body: bytes = b"body",
    is_durable: bool = True,
    properties: bytes = b"",
    priority: int = PRIORITY_DEFAULT,
) -> Message:
    """A message for these queues."""
    return Message(tuple(sorted(queue.id for queue in queues)), properties, body, 0, is_durable, priority)


@dataclass
class Log:
    """A log and the state at its end."""

    state: SetState = field(default_factory=lambda: SetState(SET, page_entries=5))
    """With pages as small as no other state has, so that nothing depends on where entries are."""
    frames: list[Frame] = field(default_factory=list)
    epoch: Epoch = field(default_factory=lambda: Epoch(0))
    _waiting: list[tuple[AnyRecord, bool]] = field(default_factory=list)
    reign: int = UNKNOWN_REIGN

    def begin_epoch(self, is_restarted: bool = False, is_handed_over: bool = False) -> None:
        self.flush()
        self.epoch = Epoch(self.epoch + 1)
        self.append(EpochBegins(None, self.epoch, "broker", is_restarted, is_handed_over))

    def append(self, record: AnyRecord, is_durable: bool = True) -> LogIndex:
        """Append a record and apply it; answers its index."""
        if not self.epoch:
            self.epoch = Epoch(1)
        index = LogIndex(self.state.applied + 1)
        self._waiting.append((record, is_durable))
        self.state.apply(index, self.epoch, record, is_durable)
        return index

    def flush(self) -> None:
        """Make a frame of what was appended since the last."""
        if self._waiting:
            first = LogIndex(self.state.applied - len(self._waiting) + 1)
            time_ms = TimeMs(self.state.time_ms + 7)
            frame = encode_frame(
                self.epoch, first, LogIndex(first - 1), time_ms, self._waiting, reign=self.reign
            )
            self.state.close_frame(frame.header)
            self.frames.append(frame)
            self._waiting = []

    # --- short words for tests that tell a story -----------------------------------------------------------------------

    def queue(self, name: str, is_durable: bool = True, **options: object) -> Queue:
        self.append(DeclareQueue(None, name, is_durable, **options), is_durable)  # type: ignore[arg-type]
        return self.state.queues.by_name[name]

    def exchange(self, name: str, kind: str = "topic", is_durable: bool = True) -> ExchangeId:
        return ExchangeId(self.append(DeclareExchange(None, name, kind, is_durable), is_durable))

    def publish(
        self, *messages: Message, transaction: TransactionKey | None = None, is_durable: bool = True
    ) -> LogIndex:
        ordinal = 0
        if transaction is not None:
            buffer = self.state.transactions.live.get(transaction)
            ordinal = buffer.next_ordinal if buffer is not None else 0
        return self.append(Publish(None, transaction, ordinal, messages, alike(messages)), is_durable)

    def dequeue(
        self,
        queue: Queue,
        *positions: QueuePosition,
        transaction: TransactionKey | None = None,
        is_durable: bool = True,
        reason: int = DequeueReason.ACCEPTED,
    ) -> LogIndex:
        ordinal = 0
        if transaction is not None:
            buffer = self.state.transactions.live.get(transaction)
            ordinal = buffer.next_ordinal if buffer is not None else 0
        return self.append(Dequeue(None, transaction, ordinal, queue.id, positions, reason), is_durable)

    def begin(self, xid: bytes = b"", session: SessionKey | None = None) -> TransactionKey:
        index = self.append(Begin(None, session or SessionKey(0), xid, 60_000, 1), is_durable=False)
        return index, self.epoch

    def durable_records(self, key: TransactionKey) -> int:
        """What a primary says of a transaction in the record that ends it."""
        buffer = self.state.transactions.get(key)
        return buffer.durable_records if buffer is not None else 0

    def prepare(self, key: TransactionKey, xid: bytes, resource_sets: tuple[str, ...] = ()) -> LogIndex:
        records = self.durable_records(key)
        return self.append(Prepare(None, key, False, xid, 0, resource_sets, durable_records=records))

    def commit(self, key: TransactionKey, xid: bytes = b"") -> LogIndex:
        """The one-record commit of a TX."""
        return self.append(Prepare(None, key, True, xid, durable_records=self.durable_records(key)))

    def commit_prepared(self, key: TransactionKey, is_heuristic: bool = False) -> LogIndex:
        return self.append(Commit(None, key, is_heuristic, self.durable_records(key)))

    def rollback(self, key: TransactionKey, reason: int = RollbackReason.CLIENT) -> LogIndex:
        return self.append(Rollback(None, key, reason, self.durable_records(key)))


def alike(messages: Sequence[Message]) -> Alike | None:
    """What a primary says of a batch."""
    return alike_of(messages, map(size_of, messages)) if messages else None


def bodies(queue: Queue) -> list[bytes]:
    """What a consumer of the queue would get now, in order."""
    found = [queue.message(position) for position in queue.positions() if position not in queue.locks]
    return [message.body for message in found if message is not None]


def durable_replay(frames: list[Frame], listener: StateListener | None = None) -> SetState:
    """The state that the durable parts of these frames build, as in a journal."""
    state = SetState(SET, listener)
    for frame in frames:
        state.apply_frame(frame._replace(transient=b""))
    return state


def replay(frames: list[Frame], listener: StateListener | None = None) -> SetState:
    """The state that these frames build."""
    state = SetState(SET, listener)
    for frame in frames:
        state.apply_frame(frame)
    return state


class Writer:
    """Writes a random history into a log. `random` is hypothesis's, so that failures shrink."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.log = Log()
        self._names = 0
        self.log.begin_epoch()

    def write(self, steps: int) -> Log:
        for _ in range(steps):
            self.step()
        self.log.flush()
        return self.log

    def step(self) -> None:
        """One command, in one frame with those before it or not."""
        deeds = (
            [self._declare_queue] * 3
            + [self._declare_exchange, self._bind, self._unbind, self._delete]
            + [self._publish] * 5
            + [self._dequeue] * 3
            + [self._requeue, self._annotate, self._move]
            + [self._begin] * 3
            + [self._publish_in_transaction] * 5
            + [self._dequeue_in_transaction] * 4
            + [self._end] * 4
            + [self._whole_transaction] * 4
            + [self._end_prepared] * 2
            + [self._session] * 2
            + [self._consume]
            + [self._forget, self._mark]
            + [self._subscribe] * 2
        )
        if self.random.random() < 0.03:
            fate = self.random.random()
            self.log.begin_epoch(is_restarted=fate < 0.4, is_handed_over=fate > 0.7)
        else:
            self.random.choice(deeds)()
        if self.random.random() < 0.6:
            self.log.flush()

    # --- choosing ------------------------------------------------------------------------------------------------------

    def _chance(self, share: float = 0.5) -> bool:
        return self.random.random() < share

    def _queue(self) -> Queue | None:
        queues = sorted(self.log.state.queues.by_id.items())
        return self.random.choice(queues)[1] if queues else None

    def _exchange(self) -> ExchangeId | None:
        exchanges = sorted(self.log.state.exchanges.by_id)
        return self.random.choice(exchanges) if exchanges else None

    def _some_queues(self) -> tuple[Queue, ...]:
        queues = [queue for _, queue in sorted(self.log.state.queues.by_id.items())]
        return tuple(self.random.sample(queues, min(len(queues), self.random.randint(1, 3))))

    def _free(self, queue: Queue) -> list[QueuePosition]:
        """Some positions that nobody has locked, ascending."""
        free = [position for position in queue.positions() if position not in queue.locks]
        if self._chance(0.3):
            begin = self.random.choice((0, 0, len(free) // 2))
            return free[begin : begin + self.random.randint(1, 12)]
        return sorted(self.random.sample(free, min(len(free), self.random.randint(1, 4))))

    def _open(self) -> TxBuffer | None:
        open_ones = self.log.state.transactions.open()
        return self.random.choice(open_ones) if open_ones else None

    def _command(self) -> CommandRef | None:
        """The next command of some session, sometimes of one that ended or never was."""
        if self._chance(0.4):
            return None
        sessions = sorted(self.log.state.sessions.by_key)
        if not sessions or self._chance(0.1):
            return CommandRef(SessionKey(999_999), 3)
        key = self.random.choice(sessions)
        return CommandRef(key, self.log.state.sessions.by_key[key].next_number)

    # --- doing ---------------------------------------------------------------------------------------------------------

    def _declare_queue(self) -> None:
        self._names += 1
        is_durable = self._chance(0.7)
        self.log.append(DeclareQueue(self._command(), f"q{self._names}", is_durable), is_durable)

    def _declare_exchange(self) -> None:
        self._names += 1
        is_durable = self._chance(0.7)
        kind = self.random.choice(("direct", "fanout", "topic", "headers"))
        self.log.append(DeclareExchange(self._command(), f"x{self._names}", kind, is_durable), is_durable)

    def _bind(self) -> None:
        queue, exchange_id = self._queue(), self._exchange()
        if queue is not None and exchange_id is not None:
            is_durable = queue.is_durable and self.log.state.exchanges.by_id[exchange_id].is_durable
            arguments = (("colour", "red"),) if self._chance(0.3) else ()
            key = self.random.choice(KEYS)
            self.log.append(Bind(self._command(), exchange_id, queue.id, key, arguments), is_durable)

    def _unbind(self) -> None:
        exchange_id = self._exchange()
        if exchange_id is not None:
            bindings = self.log.state.exchanges.by_id[exchange_id].bindings
            if bindings:
                binding = self.random.choice(sorted(bindings))
                self.log.append(Unbind(self._command(), *binding), bindings[binding])

    def _delete(self) -> None:
        queue, exchange_id = self._queue(), self._exchange()
        if self._chance(0.6):
            if queue is not None:
                self.log.append(DeleteQueue(self._command(), queue.id), queue.is_durable)
        elif exchange_id is not None:
            is_durable = self.log.state.exchanges.by_id[exchange_id].is_durable
            self.log.append(DeleteExchange(self._command(), exchange_id), is_durable)

    def _messages(self, is_durable: bool) -> tuple[Message, ...]:
        """Messages for one durability of record; in a durable one a message may go to a transient queue besides."""
        made = []
        are_alike = self._chance(0.3)
        queues = self._some_queues()
        for _ in range(self.random.randint(1, 9 if are_alike else 4)):
            if not are_alike:
                queues = self._some_queues()
            if is_durable and not any(queue.is_durable for queue in queues):
                continue
            body = self.random.randbytes(self.random.randint(0, 6))
            priority = PRIORITY_DEFAULT if are_alike else self.random.choice((4, 4, 4, 0, 9))
            properties = self.random.choice((b"", b"p"))
            made.append(message(queues, body, is_durable, properties, priority))
        return tuple(made)

    def _alike(self, messages: tuple[Message, ...]) -> Alike | None:
        """Sometimes nobody says it."""
        return alike(messages) if self._chance(0.7) else None

    def _publish(self) -> None:
        is_durable = self._chance(0.7)
        made = self._messages(is_durable)
        if made:
            record = Publish(self._command(), None, self.random.randint(0, 2), made, self._alike(made))
            self.log.append(record, is_durable)

    def _dequeue(self) -> None:
        queue = self._queue()
        positions = self._free(queue) if queue is not None else []
        if queue is not None and positions:
            reason = self.random.randint(1, 5)
            is_durable = any(queue.is_entry_durable(position) for position in positions)
            self.log.append(Dequeue(self._command(), None, 0, queue.id, tuple(positions), reason), is_durable)

    def _requeue(self) -> None:
        queue = self._queue()
        positions = self._free(queue) if queue is not None else []
        if queue is not None and positions:
            is_durable = any(queue.is_entry_durable(position) for position in positions)
            self.log.append(Requeue(self._command(), queue.id, tuple(positions)), is_durable)

    def _annotate(self) -> None:
        queue = self._queue()
        positions = self._free(queue) if queue is not None else []
        if queue is not None and positions:
            is_durable = any(queue.is_entry_durable(position) for position in positions)
            pairs = self.random.choice((b"\xa3\x01a\x41", b"\xa3\x01a\x42\xa3\x01b\x40"))
            self.log.append(Annotate(self._command(), queue.id, tuple(positions), pairs), is_durable)

    def _move(self) -> None:
        queue = self._queue()
        positions = self._free(queue) if queue is not None else []
        if queue is not None and positions:
            is_durable = any(queue.is_entry_durable(position) for position in positions)
            targets = tuple(sorted(target.id for target in self._some_queues())) if self._chance(0.9) else ()
            expires_ms = tuple(self.random.choice((0, 99)) for _ in targets) if self._chance(0.5) else ()
            reason = self.random.choice((DequeueReason.REJECTED, DequeueReason.EXPIRED))
            time_ms = self.random.choice((0, 1, 2))
            move = Move(self._command(), 0, queue.id, tuple(positions), targets, reason, expires_ms, time_ms)
            self.log.append(move, is_durable)

    def _begin(self) -> None:
        sessions = sorted(self.log.state.sessions.by_key)
        session = self.random.choice(sessions) if sessions else SessionKey(0)
        self._names += 1
        xid = f"xid-{self._names}".encode() if self._chance(0.6) else b""
        self.log.append(Begin(self._command(), session, xid, 60_000, self._names), is_durable=False)

    def _publish_in_transaction(self) -> None:
        buffer, is_durable = self._open(), self._chance(0.6)
        made = self._messages(is_durable)
        if buffer is not None and made:
            record = Publish(self._command(), buffer.key, buffer.next_ordinal, made, self._alike(made))
            self.log.append(record, is_durable)

    def _dequeue_in_transaction(self) -> None:
        buffer = self._open()
        if buffer is not None:
            self._dequeue_for(buffer.key)

    def _dequeue_for(self, key: TransactionKey) -> None:
        queue = self._queue()
        positions = self._free(queue) if queue is not None else []
        if queue is not None and positions:
            is_durable = any(queue.is_entry_durable(position) for position in positions)
            ordinal = self.log.state.transactions.live[key].next_ordinal
            record = Dequeue(self._command(), key, ordinal, queue.id, tuple(positions))
            self.log.append(record, is_durable)

    def _end(self) -> None:
        """Prepare, commit or roll back an open transaction."""
        buffer = self._open()
        if buffer is None:
            return
        if buffer.is_rollback_only or self._chance(0.2):
            reason = self.random.choice(
                (RollbackReason.CLIENT, RollbackReason.TIMED_OUT, RollbackReason.COORDINATOR)
            )
            self.log.append(Rollback(self._command(), buffer.key, reason, buffer.durable_records))
        else:
            is_commit = not (buffer.xid and self._chance(0.8))
            records = buffer.durable_records
            record = Prepare(self._command(), buffer.key, is_commit, buffer.xid, durable_records=records)
            self.log.append(record)

    def _whole_transaction(self) -> None:
        """A TX that is done in one frame, or in two: its operations follow each other, and mostly its commit them."""
        key = self.log.begin()
        if self._chance():
            self.log.flush()
        for _ in range(self.random.randint(0, 4)):
            if self._chance(0.6):
                is_durable = self._chance(0.7)
                made = self._messages(is_durable)
                if made:
                    ordinal = self.log.state.transactions.live[key].next_ordinal
                    record = Publish(self._command(), key, ordinal, made, self._alike(made))
                    self.log.append(record, is_durable)
            else:
                self._dequeue_for(key)
            if self._chance(0.05):
                self.log.flush()
            if self._chance(0.05):
                self._declare_queue()
        begun = self.random.choice((0, 0, 0, 1, 2))
        for _ in range(begun):
            self.log.begin()
        records = self.log.durable_records(key)
        self.log.append(Prepare(self._command(), key, True, begun=begun, durable_records=records))

    def _end_prepared(self) -> None:
        """What coordinators and operators do, a vote that is repeated too, and what late time-outs try to."""
        prepared = self.log.state.transactions.prepared()
        if not prepared:
            return
        branch = self.random.choice(prepared)
        key, records = branch.key, branch.durable_records
        record = self.random.choice(
            (
                Prepare(
                    self._command(), key, False, branch.xid, 5, ("east", "west"), durable_records=records
                ),
                Commit(self._command(), key, False, records),
                Commit(self._command(), key, True, records),
                Rollback(self._command(), key, RollbackReason.COORDINATOR, records),
                Rollback(self._command(), key, RollbackReason.HEURISTIC, records),
                Rollback(self._command(), key, RollbackReason.TIMED_OUT, records),
                Rollback(self._command(), key, RollbackReason.FENCED, records),
            )
        )
        self.log.append(record)

    def _session(self) -> None:
        sessions = sorted(self.log.state.sessions.by_key)
        if not sessions or self._chance(0.4):
            self._names += 1
            self.log.append(OpenSession(None, f"session-{self._names}", 30_000), is_durable=False)
        elif self._chance(0.2):
            self.log.append(CloseSession(None, self.random.choice(sessions)), is_durable=False)
        elif self._chance():
            self.log.append(RejectCommand(self._command(), 5, "full"), is_durable=False)
        else:
            self.log.append(AcceptCommand(self._command(), 42), is_durable=False)

    def _consume(self) -> None:
        """A consumer of a queue comes, of a session that is there, or not any more."""
        queue = self._queue()
        if queue is not None:
            session = self.random.choice([SessionKey(999_999), *sorted(self.log.state.sessions.by_key)])
            if not queue.definition.is_used:
                self.log.append(UseQueue(None, queue.id), queue.is_durable)
            self.log.append(Consume(None, session, queue.id), is_durable=False)

    def _forget(self) -> None:
        heuristic = self.log.state.outcomes.heuristic()
        if heuristic and self._chance():
            self.log.append(ForgetHeuristic(None, self.random.choice(heuristic)[0], self._horizon()))
        else:
            oldest = min(self.log.state.transactions.live, default=(self.log.state.applied, Epoch(0)))[0]
            floor = LogIndex(self.random.randint(0, oldest))
            self.log.append(ForgetOutcomes(None, floor, self._horizon(), self._awaited(floor)))

    def _awaited(self, floor: LogIndex) -> tuple[TransactionKey, ...]:
        """Some branches that have committed, and somebody may still ask for."""
        return tuple(
            key
            for key, outcome in self.log.state.outcomes.all()
            if outcome.xid
            and outcome.state is TransactionState.COMMITTED
            and outcome.index <= floor
            and self.random.random() < 0.5
        )

    def _horizon(self) -> int:
        """It may fall, where a clock was wrong."""
        return self.random.choice((0, self.random.randint(1, 1 << 48)))

    def _mark(self) -> None:
        buffer = self._open()
        if buffer is not None and self._chance(0.3):
            self.log.append(MarkRollbackOnly(None, buffer.key), is_durable=False)

    def _subscribe(self) -> None:
        """Open a group, or have one go on or end; sometimes one that was closed."""
        state = self.log.state
        groups = sorted(state.subscriptions.by_id)
        floor = LogIndex(self.random.randint(0, state.applied))
        if not groups or self._chance(0.3):
            self._names += 1
            self.log.append(OpenSubscription(None, f"group-{self._names}", floor))
            return
        group = self.random.choice([*groups, LogIndex(self.random.randint(1, state.applied))])
        if self._chance(0.7):
            begins = self.random.choice(((), (("east", floor, Epoch(1)), ("west", LogIndex(3), Epoch(2)))))
            self.log.append(AdvanceSubscription(None, group, floor, begins))
        else:
            self.log.append(CloseSubscription(None, group, is_left_behind=self._chance(0.5)))
