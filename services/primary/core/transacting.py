"""Transactions of clients: begin, numbered operations, commit and rollback of a TX (DESIGN 4, T1, T2, T5).

Law: a commit whose count shows a gap, or behind an operation that failed, never commits: the transaction is rolled back and its
client told so. `prepare(commit_when_prepared)` is the commit of a TX: there is no later "no". Each function appends the record
that answers the command, or raises `Rejected` before it appended anything that the command did.
"""

from collections.abc import Iterator

from lockstep.core.commands import (
    SPAN_MS_MAX,
    BeginCommand,
    CommitCommand,
    RollbackCommand,
)
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import LogIndex, QueueId, SessionKey, TransactionKey, transaction_id
from lockstep.core.queues import Queue
from lockstep.core.records import (
    Begin,
    CommandRef,
    Dequeue,
    MarkRollbackOnly,
    Prepare,
    RejectCommand,
    Rollback,
    RollbackReason,
)
from lockstep.core.transaction_states import ROLLBACKS, TransactionState
from lockstep.core.tx_buffer import DtxBuffer, TxBuffer
from services.primary.core.context import Context, Request
from services.primary.core.open_transactions import TransactionProgress
from services.primary.core.removing import evict, evict_in_steps


def begin(context: Context, request: Request, command: BeginCommand) -> None:
    check_open(context, request.session)
    append_begin(context, request.session, request.ref, min(max(0, command.timeout_ms), SPAN_MS_MAX))


def append_begin(
    context: Context, session: SessionKey, ref: CommandRef | None, timeout_ms: int, xid: bytes = b""
) -> None:
    """Open a transaction, for which there is room. `timeout_ms` 0: none; `xid`: the branch's name, empty for a TX."""
    record = Begin(ref, session, xid, timeout_ms, context.now.wall_ms)
    index = context.writer.append(record, False)
    ends_ms = context.now.boottime_ms + timeout_ms if timeout_ms else 0
    context.progress.begin((index, context.epoch), TransactionProgress(session, ends_ms))


def give_names(context: Context, session: SessionKey, last: LogIndex, begins: int) -> None:
    """The session is told of so many new TX, whose names have the indexes up to `last`: they are open from now on, for it."""
    for index in range(last - begins + 1, last + 1):
        key = LogIndex(index), context.epoch
        context.progress.begin(key, TransactionProgress(session, is_name=True))


def open_named(context: Context, key: TransactionKey) -> None:
    """Open a TX of which the log has only the name, if this is one: somebody looks at it, or is about to do something in it.

    An accept of nothing does it: its begin would have to stand at its name's index.
    """
    if context.progress.is_name(key):
        context.progress[key].is_name = False
        context.writer.observe(key)
        context.writer.append(Dequeue(None, key, 0, QueueId(0), ()), False)


def _has_room(context: Context, session: SessionKey, begins: int) -> bool:
    """Whether so many more transactions may be open, in the set and in the session."""
    settings, progress = context.settings, context.progress
    return (
        len(progress) + begins <= settings.transactions_open_max
        and progress.count(session) + begins <= settings.session_transactions_open_max
    )


def check_open(context: Context, session: SessionKey) -> None:
    """Raises `Rejected` UNAVAILABLE when the set, or the session, has as many transactions open as it may."""
    if _has_room(context, session, 1):
        return
    settings, progress = context.settings, context.progress
    if len(progress) >= settings.transactions_open_max:
        raise LimitReached(
            "transactions_open_max",
            ErrorCode.UNAVAILABLE,
            f"{len(progress)} transactions are open, transactions_open_max is {settings.transactions_open_max}",
            set_name=context.state.set_name,
            transactions_open_max=settings.transactions_open_max,
        )
    limit = settings.session_transactions_open_max
    raise LimitReached(
        "session_transactions_open_max",
        ErrorCode.UNAVAILABLE,
        f"{progress.count(session)} transactions of this session are open, session_transactions_open_max is {limit}",
        session=session,
        session_transactions_open_max=limit,
    )


def operation(
    context: Context,
    session: SessionKey,
    key: TransactionKey,
    sequence: int,
    ordinals: int,
    content_bytes: int = 0,
    places: int = 0,
) -> TransactionProgress:
    """Take one operation of an open transaction: checks its owner, state, sequence number and size; raises `Rejected`.

    `ordinals`: messages and accepts in it; `content_bytes`: properties and bodies; `places`: of its messages in queues.
    """
    buffer = _open(context, session, key)
    progress = context.progress[key]
    if buffer.is_rollback_only:
        raise _rejected(context, ErrorCode.ROLLBACK_ONLY, "can only be rolled back", key)
    expected = progress.sequences.get(session, 0) + 1
    if sequence != expected:
        raise _rejected(context, ErrorCode.SEQUENCE_GAP, f"expects operation {expected}, not {sequence}", key)
    check_limits(context, key, progress, ordinals, content_bytes, places)
    progress.sequences[session] = sequence
    progress.bytes += content_bytes
    progress.places += places
    return progress


def check_limits(
    context: Context,
    key: TransactionKey,
    progress: TransactionProgress,
    ordinals: int,
    content_bytes: int,
    places: int,
) -> None:
    """Raises `Rejected` TOO_LARGE when a transaction may not have so much more."""
    settings = context.settings
    if progress.ordinal + ordinals > settings.transaction_operations_max:
        limit = settings.transaction_operations_max
        why = f"would have {progress.ordinal + ordinals} operations, transaction_operations_max is {limit}"
        raise _over(context, "transaction_operations_max", why, key)
    if progress.bytes + content_bytes > settings.transaction_bytes_max:
        limit = settings.transaction_bytes_max
        why = f"would have {progress.bytes + content_bytes} bytes, transaction_bytes_max is {limit}"
        raise _over(context, "transaction_bytes_max", why, key)
    if progress.places + places > settings.transaction_places_max:
        limit = settings.transaction_places_max
        why = f"would have {progress.places + places} places in queues, transaction_places_max is {limit}"
        raise _over(context, "transaction_places_max", why, key)


def operation_failed(context: Context, session: SessionKey, key: TransactionKey) -> None:
    """An operation of this transaction was refused: it can only be rolled back now (AMQP 1.0 part 4, 4.4.1)."""
    open_named(context, key)
    buffer = context.state.transactions.get(key)
    if buffer is None or not _works_in(context, session, buffer) or buffer.state is not TransactionState.OPEN:
        return
    if not buffer.is_rollback_only:
        context.writer.append(MarkRollbackOnly(None, key), False)


def commit(context: Context, request: Request, command: CommitCommand) -> None:
    key = command.transaction
    buffer = open_tx(context, request.session, key)
    taken = context.progress[key].sequences.get(request.session, 0)
    if buffer.is_rollback_only or command.operations != taken:
        why = (
            "can only be rolled back"
            if buffer.is_rollback_only
            else f"lacks operations: {taken} of {command.operations} came"
        )
        append_rollback(context, key, RollbackReason.ROLLBACK_ONLY)
        message = f"transaction {transaction_id(context.state.set_name, key)} {why}: rolled back"
        context.writer.append(RejectCommand(request.ref, ErrorCode.ROLLED_BACK, message), False)
        return
    begins = begins_of(context, request, command)
    context.writer.log.skip(begins)
    prepare = Prepare(request.ref, key, True, begun=begins, durable_records=buffer.durable_records)
    at = context.writer.append(prepare, True)
    context.progress.end(key)
    give_names(context, request.session, LogIndex(at - 1), begins)
    evict_touched(context, buffer)


def begins_of(context: Context, request: Request, command: CommitCommand) -> int:
    """How many TX a commit begins: as many as it asks for, if there is room for them; it makes room for one by itself."""
    return max(0, command.begins) if _has_room(context, request.session, command.begins - 1) else 0


def evict_touched(context: Context, buffer: TxBuffer) -> None:
    """The transaction has committed: queues that it filled beyond their limits let go of their oldest messages."""
    if context.alone.works:
        context.alone.do(_evict_behind(context, buffer))
        return
    for queue in _touched_by(context, buffer):
        evict(context, queue)


def _touched_by(context: Context, buffer: TxBuffer) -> list[Queue]:
    """Its queues that are there, by id."""
    by_id = context.state.queues.by_id
    return [by_id[queue_id] for queue_id in sorted(buffer.touched) if queue_id in by_id]


def _evict_behind(context: Context, buffer: TxBuffer) -> Iterator[int]:
    """The same when the commit has been done."""
    yield from context.state.finish_in_steps()
    for queue in _touched_by(context, buffer):
        yield from evict_in_steps(context, queue)


def rollback(context: Context, request: Request, command: RollbackCommand) -> None:
    key = command.transaction
    records = open_tx(context, request.session, key).durable_records
    context.writer.append(Rollback(request.ref, key, RollbackReason.CLIENT, records), True)
    context.progress.end(key)


def append_rollback(context: Context, key: TransactionKey, reason: int) -> None:
    """Roll an open transaction back by a record of the primary's own."""
    open_named(context, key)
    buffer = context.state.transactions.get(key)
    assert buffer is not None, f"transaction {key} is open"
    context.writer.append(Rollback(None, key, reason, buffer.durable_records), True)
    context.progress.end(key)


def roll_back_timed_out(context: Context) -> bool:
    """Time-outs run until prepare and act by records (T2). As many as leave others their turn, for thousands may have begun
    together; answers whether there are more."""
    now_ms, limit = context.now.boottime_ms, context.settings.time_outs_max
    due = [
        key for key, progress in context.progress.items() if progress.ends_ms and now_ms >= progress.ends_ms
    ]
    for number, key in enumerate(due[:limit], 1):
        append_rollback(context, key, RollbackReason.TIMED_OUT)
        if context.alone.works:
            return number < len(due)
    return len(due) > limit


def open_tx(context: Context, session: SessionKey, key: TransactionKey) -> TxBuffer:
    """The open TX of that name, which `session` began; raises `Rejected`, for a branch too: its own verbs are for that."""
    buffer = _open(context, session, key)
    if isinstance(buffer, DtxBuffer):
        raise _rejected(context, ErrorCode.ILLEGAL_STATE, "is a branch of a distributed transaction", key)
    return buffer


def untouched(context: Context, session: SessionKey, key: TransactionKey) -> TransactionProgress | None:
    """Of an open TX that `session` began and in which nothing was done: the log may have its name alone, and is not told more.

    None: something was. Raises `Rejected` as `open_tx` does.
    """
    if context.progress.is_name(key) and context.progress[key].session == session:
        return context.progress[key]
    buffer, progress = open_tx(context, session, key), context.progress[key]
    return None if buffer.operations or buffer.is_rollback_only or progress.sequences else progress


def _open(context: Context, session: SessionKey, key: TransactionKey) -> TxBuffer:
    """The open transaction of that name, in which `session` works; raises `Rejected`."""
    open_named(context, key)
    buffer = context.state.transactions.get(key)
    if buffer is not None and _works_in(context, session, buffer):
        if buffer.state is TransactionState.OPEN:
            return buffer
        raise _rejected(context, ErrorCode.ILLEGAL_STATE, f"is {buffer.state.name.lower()}", key)
    if buffer is not None:
        raise _rejected(context, ErrorCode.LOCKED, "belongs to another session", key)
    state = context.state.outcome(key).state
    if state in ROLLBACKS and key[0] <= context.state.applied:
        raise _rejected(context, ErrorCode.ROLLED_BACK, "was rolled back", key)
    if state is TransactionState.COMMITTED:
        raise _rejected(context, ErrorCode.TRANSACTION_FINISHED, "has committed", key)
    if state is TransactionState.EXPIRED:
        raise _rejected(context, ErrorCode.EXPIRED, "has ended, and its outcome was forgotten", key)
    raise _rejected(context, ErrorCode.UNKNOWN_TRANSACTION, "is not known", key)


def _works_in(context: Context, session: SessionKey, buffer: TxBuffer) -> bool:
    if buffer.key not in context.progress:
        return False
    if isinstance(buffer, DtxBuffer):
        return buffer.associations.get(session) is False
    return context.progress[buffer.key].session == session


def _rejected(context: Context, code: ErrorCode, why: str, key: TransactionKey) -> Rejected:
    name = transaction_id(context.state.set_name, key)
    return Rejected(code, f"transaction {name} {why}", transaction=name)


def _over(context: Context, limit: str, why: str, key: TransactionKey) -> LimitReached:
    name = transaction_id(context.state.set_name, key)
    return LimitReached(limit, ErrorCode.TOO_LARGE, f"transaction {name} {why}", transaction=name)
