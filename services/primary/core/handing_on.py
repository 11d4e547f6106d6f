"""Handing on: what only a primary knows of open transactions and deliveries, told by one reign to the next (DESIGN T6, T8).

Law: it goes with the log that it belongs to. Who leads the next epoch behind that very log takes it up, and what was open or in
hand stays so; behind any other log, or without it, everything open is aborted with the new epoch (R12).
"""

from collections.abc import Iterator

from lockstep.core.ids import BrokerId, Epoch
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import RollbackReason
from lockstep.core.replication import HandedOver, HeldMessages, OpenProgress
from lockstep.core.tx_buffer import DtxBuffer
from services.primary.core.attachments import Attachments
from services.primary.core.context import Context, TransactionProgress
from services.primary.core.transacting import append_rollback, open_named

HELD_IN_ONE = 500
"""Messages of a session that are taken up in one step."""
_TRANSACTION_COST = 5


def roll_back_unfit(context: Context, attachments: Attachments) -> None:
    """Clients that take a new epoch for the end of what they have open hear that it was rolled back; it does not stay locked.

    What stays open, and the log knows by name alone, is opened there: whoever is next has it from the log (`fits`).
    """
    for key in context.progress.names():
        open_named(context, key)
    for key in [key for key, _ in context.progress.items()]:
        buffer = context.state.transactions.get(key)
        assert buffer is not None, f"{key} is open"
        sessions = buffer.associations if isinstance(buffer, DtxBuffer) else (context.progress[key].session,)
        if any(not attachments.outlives_hand_over(session) for session in sessions):
            append_rollback(context, key, RollbackReason.FAILOVER)


def handed_over(
    context: Context, attachments: Attachments, to: BrokerId, is_chosen: bool = False
) -> HandedOver:
    """What `to` has to know, at the log's end. `is_chosen`: somebody said that it should lead."""
    now_ms = context.now.boottime_ms
    open_ones = tuple(
        OpenProgress(
            key,
            progress.session,
            max(1, progress.ends_ms - now_ms) if progress.ends_ms else 0,
            tuple(sorted(progress.sequences.items())),
            progress.ordinal,
            progress.bytes,
        )
        for key, progress in sorted(context.progress.items())
    )
    held = tuple(
        HeldMessages(session, queue_id, positions)
        for session, by_queue in context.dispatch.held().items()
        if attachments.outlives_hand_over(session)
        for queue_id, positions in by_queue.items()
    )
    log_end = context.writer.log.end
    return HandedOver(context.state.set_name, context.epoch, to, log_end, open_ones, held, is_chosen)


def fits(handed: HandedOver, epoch: Epoch, copy: LogCopy) -> bool:
    """Whether what was handed on holds for `epoch`, which begins behind this copy of the log (all of it applied)."""
    is_next = epoch == handed.epoch + 1 and copy.state.epoch == handed.epoch
    if not is_next or not handed.log_end or copy.log_end != handed.log_end:
        return False
    return [one.transaction for one in handed.open] == [
        buffer.key for buffer in copy.state.transactions.open()
    ]


def take_up(context: Context, handed: HandedOver) -> Iterator[int]:
    """Go on with what was open and in hand, in steps that say what they cost (`Pieces`): nobody is served before all are done."""
    now_ms = context.now.boottime_ms
    for one in handed.open:
        ends_ms = now_ms + one.remaining_ms if one.remaining_ms else 0
        progress = TransactionProgress(one.session, ends_ms, dict(one.sequences), one.ordinal, one.bytes)
        context.progress.begin(one.transaction, progress)
        context.writer.observe(one.transaction)
        yield _TRANSACTION_COST
    for held in handed.held:
        for begin in range(0, len(held.positions), HELD_IN_ONE):
            positions = held.positions[begin : begin + HELD_IN_ONE]
            context.dispatch.hold(held.session, held.queue, positions)
            yield len(positions)
