"""Settling deliveries: accept, release, fail, reject (DESIGN T6).

Law: only the session that holds a delivery settles it, in the epoch that delivered it or one to which that was handed over; an
accept of anything else takes none of its messages and makes its transaction rollback-only. Each function appends the record that
answers the command, or raises `Rejected` before it appended anything. A reject takes what is there of its messages: parts of it
may have been done before (`waiting_rejects.py`), and what is gone is nobody's any more.
"""

from collections.abc import Iterator, Sequence

from lockstep.core.amqp.annotations import check_pairs
from lockstep.core.commands import (
    Disposition,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode, LimitReached, Rejected
from lockstep.core.ids import QueuePosition, SessionKey
from lockstep.core.queues import Queue
from lockstep.core.records import AcceptCommand, Dequeue, DequeueReason
from services.primary.core.alone import LongCommand
from services.primary.core.context import Context, Request
from services.primary.core.dead_letters import dead_letter, move_few
from services.primary.core.removing import (
    append_annotations,
    append_dequeue,
    append_requeue_part,
    by_durability,
)
from services.primary.core.transacting import operation

ANNOTATIONS_BYTES_MAX = 4096
"""Of one message, beside what was sent: they stay in memory."""
SETTLED_IN_ONE = 2000
"""Messages that are settled at once: more are settled in parts, which are some milliseconds' work each."""
SETTLED_PART = 500
_SETTLE_COST, _LOCK_COST = 2, 4
"""Of each message."""


def settle(context: Context, request: Request, command: SettleCommand) -> None:
    """Raises `Rejected`, or `LongCommand`."""
    queue = context.queue(command.queue, request.session)
    check_held(context, request.session, command, queue)
    if command.transaction is not None:
        _accept_in_transaction(context, request, command, queue)
        return
    if len(command.positions) > SETTLED_IN_ONE:
        raise LongCommand(_settle_in_steps(context, request, command, queue))
    if command.disposition == Disposition.ACCEPT:
        context.dispatch.let_go(request.session, queue.id, command.positions)
        _accept(context, request, command, queue)
        return
    _exclude(context, request.session, command, queue)
    _settle_some(context, request.session, command, queue, named(command, queue))
    context.writer.append(AcceptCommand(request.ref, len(command.positions)), False)


def _settle_in_steps(
    context: Context, request: Request, command: SettleCommand, queue: Queue
) -> Iterator[int]:
    _exclude(context, request.session, command, queue)
    positions = named(command, queue)
    for begin in range(0, len(positions), SETTLED_PART):
        some = positions[begin : begin + SETTLED_PART]
        _settle_some(context, request.session, command, queue, some)
        yield _SETTLE_COST * len(some)
    context.writer.append(AcceptCommand(request.ref, len(command.positions)), False)


def _exclude(context: Context, session: SessionKey, command: SettleCommand, queue: Queue) -> None:
    if command.excluded_consumer:
        context.dispatch.exclude(session, command.excluded_consumer, queue.id, command.positions)


def _settle_some(
    context: Context,
    session: SessionKey,
    command: SettleCommand,
    queue: Queue,
    positions: Sequence[QueuePosition],
) -> None:
    """All that a command names, or a part of it; another record answers the command."""
    context.dispatch.let_go(session, queue.id, positions)
    match command.disposition:
        case Disposition.ACCEPT:
            append_dequeue(context, queue, positions, DequeueReason.ACCEPTED)
        case Disposition.RELEASE if command.annotations:
            append_annotations(context, queue, positions, command.annotations)
            context.dispatch.gave_back(context.writer.log.end, queue.id, positions)
            context.expiry.watch_again(queue, positions)
        case Disposition.RELEASE:
            context.dispatch.returned(queue.id, positions)
            context.expiry.watch_again(queue, positions)
        case Disposition.FAIL:
            if command.annotations:
                append_annotations(context, queue, positions, command.annotations)
            append_requeue_part(context, queue, positions)
        case Disposition.REJECT:
            move_few(context, queue, positions, DequeueReason.REJECTED)


def give_back(context: Context, queue: Queue, positions: Sequence[QueuePosition]) -> None:
    """Messages came back after a failed delivery or a rollback: worn-out ones are dead letters, the others may go out again.

    They go out when the record that gave them back is committed: a successor without it may still hold them locked (P3).
    """
    worn_out: Sequence[QueuePosition] = ()
    fresh = positions
    if queue.definition.delivery_count_max:
        worn_out = [position for position in positions if queue.is_worn_out(position)]
        fresh = [position for position in positions if not queue.is_worn_out(position)]
    context.dispatch.gave_back(context.writer.log.end, queue.id, fresh)
    context.expiry.watch_again(queue, fresh)
    if worn_out:
        dead_letter(context, queue, worn_out, DequeueReason.REJECTED)


def named(command: SettleCommand, queue: Queue) -> Sequence[QueuePosition]:
    """The positions that the session has to hold."""
    if command.disposition == Disposition.REJECT:
        return queue.present(command.positions)
    return command.positions


def check_held(context: Context, session: SessionKey, command: SettleCommand, queue: Queue) -> None:
    """Whether the session may settle so; raises `Rejected`."""
    if not 1 <= command.disposition <= Disposition.REJECT:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"no disposition {command.disposition}")
    if command.excluded_consumer and command.disposition not in (Disposition.RELEASE, Disposition.FAIL):
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT, "only what goes back can exclude a consumer", queue=command.queue
        )
    if command.annotations:
        _check_annotations(command, queue)
    if len(command.positions) > context.settings.command_messages_max:
        text = f"{len(command.positions)} positions in one command"
        raise LimitReached("command_messages_max", ErrorCode.TOO_LARGE, text)
    if len(set(command.positions)) != len(command.positions):
        raise Rejected(ErrorCode.INVALID_ARGUMENT, "a position is named twice", queue=command.queue)
    is_kept = context.state.open_from <= command.delivery_epoch <= context.epoch
    if not is_kept or not context.dispatch.is_held_by(session, queue.id, named(command, queue)):
        raise Rejected(
            ErrorCode.STALE_DELIVERY,
            f"the session does not hold these deliveries of queue {command.queue!r} from epoch {command.delivery_epoch}",
            queue=command.queue,
            delivery_epoch=command.delivery_epoch,
        )


def _check_annotations(command: SettleCommand, queue: Queue) -> None:
    if command.disposition not in (Disposition.RELEASE, Disposition.FAIL):
        raise Rejected(ErrorCode.INVALID_ARGUMENT, "only what goes back is annotated", queue=command.queue)
    check_pairs(command.annotations)
    before = max([len(queue.annotations.get(position, b"")) for position in command.positions], default=0)
    if before + len(command.annotations) > ANNOTATIONS_BYTES_MAX:
        raise LimitReached(
            "annotations_bytes_max",
            ErrorCode.TOO_LARGE,
            f"a message would have {before + len(command.annotations)} bytes of annotations, at most {ANNOTATIONS_BYTES_MAX}",
            queue=command.queue,
        )


def _accept(context: Context, request: Request, command: SettleCommand, queue: Queue) -> None:
    kinds = by_durability(queue, command.positions)
    if len(kinds) == 1:
        is_durable, positions = kinds[0]
        context.writer.append(Dequeue(request.ref, None, 0, queue.id, positions), is_durable)
        return
    append_dequeue(context, queue, command.positions, DequeueReason.ACCEPTED)
    context.writer.append(AcceptCommand(request.ref, len(command.positions)), False)


def _accept_in_transaction(context: Context, request: Request, command: SettleCommand, queue: Queue) -> None:
    if command.disposition != Disposition.ACCEPT:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT, "only accepts can be in a transaction", queue=command.queue
        )
    key = command.transaction
    assert key is not None
    kinds = by_durability(queue, command.positions)
    progress = operation(context, request.session, key, command.sequence, len(kinds))
    context.dispatch.let_go(request.session, queue.id, command.positions)
    single = len(kinds) == 1
    for is_durable, positions in kinds:
        ref = request.ref if single else None
        context.writer.append(Dequeue(ref, key, progress.ordinal, queue.id, positions), is_durable)
        progress.ordinal += 1
    if not single:
        context.writer.append(AcceptCommand(request.ref, len(command.positions)), False)
    if len(command.positions) > SETTLED_IN_ONE:
        # Others have their turn before the next one: there may be hundreds.
        context.alone.do(iter((_LOCK_COST * len(command.positions),)))
