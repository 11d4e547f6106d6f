"""Whole transactions: such as come with their commit, and are appended and applied together with it (DESIGN 4, T1).

Law: it comes to the same as executing their commands one by one, and is done only where all of them are in order; whatever is to
be refused is refused by those who execute one. Each function appends the record that answers the commit, or raises `Rejected`
before it appended anything that the command did.
"""

from collections.abc import Iterable, Iterator, Sequence

from lockstep.core.commands import CommitCommand, Disposition, PublishCommand, SettleCommand
from lockstep.core.errors import Rejected
from lockstep.core.ids import LogIndex, QueueId, SessionKey, TransactionKey
from lockstep.core.queues import Queue
from lockstep.core.records import CommandRef, Dequeue, Prepare, RejectCommand, RollbackReason
from services.primary.core.alone import LongCommand
from services.primary.core.context import Context, Request
from services.primary.core.publish_routes import Arriving, find
from services.primary.core.publishing import (
    Batch,
    admit,
    append_batch,
    is_long,
    only_run,
    publish_in_steps,
    take_operation,
)
from services.primary.core.removing import by_durability, evict
from services.primary.core.selecting import LongSelection
from services.primary.core.settling import SETTLED_IN_ONE, check_held
from services.primary.core.transacting import (
    append_rollback,
    begins_of,
    check_limits,
    commit,
    give_names,
    open_tx,
    untouched,
)
from services.primary.core.writer import WholeOperation


def commit_with_last_publish(context: Context, request: Request, command: CommitCommand) -> None:
    """A commit, and right before it the publish that it brings. If that is refused the transaction is rolled back.

    Where the publish is all that the transaction does, and is not long, both are applied as a whole. Raises `LongCommand`.
    """
    key, last = command.transaction, command.last_publish
    if last is None:
        commit(context, request, command)
        return
    is_all = command.operations == last.sequence == 1 and last.transaction == key
    fresh = untouched(context, request.session, key) if is_all else None
    if fresh is None:
        open_tx(context, request.session, key)
    try:
        arriving = find(context, last)
        if is_long(context, arriving):
            raise LongCommand(_commit_in_steps(context, request, command, last, arriving))
        batch = admit(context, last, arriving)
        is_whole = fresh is not None and len(batch.runs) == 1
        if fresh is not None and is_whole:
            check_limits(context, key, fresh, len(batch.runs[0].messages), batch.bytes, batch.places)
            progress = None
        else:
            progress = take_operation(context, request.session, last, batch)
    except Rejected as error:
        _roll_back(context, request, key, error)
        return
    if is_whole:
        _append_whole(context, request, command, [_published(last, 0, batch)], batch.queues)
    else:
        append_batch(context, Request(None, request.session), last, batch, progress)
        commit(context, request, command)


def _commit_in_steps(
    context: Context, request: Request, command: CommitCommand, last: PublishCommand, arriving: Arriving
) -> Iterator[int]:
    """The same in steps that say what they cost, one operation behind the other; nothing may come between."""
    try:
        yield from publish_in_steps(context, Request(None, request.session), last, arriving)
    except Rejected as error:
        _roll_back(context, request, command.transaction, error)
    else:
        commit(context, request, command)


def _roll_back(context: Context, request: Request, key: TransactionKey, error: Rejected) -> None:
    """The publish that the commit brings is refused."""
    context.note_refusal(error)
    append_rollback(context, key, RollbackReason.ROLLBACK_ONLY)
    context.writer.append(RejectCommand(request.ref, error.code, error.message), False)


def commit_with_accepts(
    context: Context, session: SessionKey, accepts: Sequence[SettleCommand], command: CommitCommand
) -> bool:
    """Accepts that are all that a TX does, but for the publish that its commit brings, and the commit, which came with them.

    Answers all of these commands; or returns False, and nothing is done: they are to be executed one by one.
    """
    key, last = command.transaction, command.last_publish
    if not context.progress.is_name(key) or context.progress[key].session != session:
        return False
    if not _is_complete(accepts, command):
        return False
    operations: list[WholeOperation] = []
    touched: dict[int, Queue] = {}
    taken_from: list[QueueId] = []
    settled = 0
    try:
        for accept in accepts:
            settled += len(accept.positions)
            if settled > SETTLED_IN_ONE:
                return False
            queue = context.queue(accept.queue, session)
            check_held(context, session, accept, queue)
            kinds = by_durability(queue, accept.positions)
            if len(kinds) != 1 or queue.id in touched:
                return False
            [(is_durable, positions)] = kinds
            ref = CommandRef(session, accept.number)
            operations.append((Dequeue(ref, key, len(operations), queue.id, positions), is_durable, 0))
            touched[queue.id] = queue
            taken_from.append(queue.id)
        ordinals, content_bytes, places = len(operations), 0, 0
        if last is not None:
            arriving = find(context, last)
            if is_long(context, arriving):
                return False
            batch = admit(context, last, arriving)
            if len(batch.runs) != 1:
                return False
            operations.append(_published(last, ordinals, batch))
            touched.update({queue.id: queue for queue in batch.queues})
            ordinals += len(batch.runs[0].messages)
            content_bytes, places = batch.bytes, batch.places
        check_limits(context, key, context.progress[key], ordinals, content_bytes, places)
    except (Rejected, LongSelection):
        return False
    for accept, queue_id in zip(accepts, taken_from, strict=True):
        context.dispatch.let_go(session, queue_id, accept.positions)
    request = Request(CommandRef(session, command.number), session)
    _append_whole(context, request, command, operations, [touched[number] for number in sorted(touched)])
    return True


def _is_complete(accepts: Sequence[SettleCommand], command: CommitCommand) -> bool:
    """Whether these are the operations that the commit counts, and nothing else is asked for."""
    count, last = len(accepts), command.last_publish
    if last is not None and (last.sequence != count + 1 or last.transaction != command.transaction):
        return False
    if command.operations != count + (last is not None):
        return False
    for number, accept in enumerate(accepts, 1):
        if (
            accept.sequence != number
            or accept.disposition != Disposition.ACCEPT
            or accept.transaction != command.transaction
        ):
            return False
    return True


def _published(command: PublishCommand, ordinal: int, batch: Batch) -> WholeOperation:
    is_durable, record = only_run(None, command, ordinal, batch)
    return record, is_durable, batch.bytes


def _append_whole(
    context: Context,
    request: Request,
    command: CommitCommand,
    operations: Sequence[WholeOperation],
    touched: Iterable[Queue],
) -> None:
    """`touched`: the queues that may have been filled beyond their limits, by id."""
    key, begins = command.transaction, begins_of(context, request, command)
    records = [is_durable for _, is_durable, _ in operations].count(True)
    prepare = Prepare(request.ref, key, True, begun=begins, durable_records=records)
    at = context.writer.append_whole(operations, prepare)
    context.progress.end(key)
    give_names(context, request.session, LogIndex(at - 1), begins)
    for queue in touched:
        evict(context, queue)
