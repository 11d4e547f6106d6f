"""Handing on: what only a primary knows of open transactions and deliveries, told by one reign to the next (DESIGN T6, T8).

Law: it goes with the log that it belongs to. Who leads the next epoch behind that very log takes it up, and what was open or in
hand stays so; behind any other log, or without it, everything open is aborted with the new epoch (R12).
"""

from collections.abc import Generator, Iterator
from itertools import islice

from lockstep.core.ids import BrokerId, Epoch
from lockstep.core.log_copy import LogCopy
from lockstep.core.records import RollbackReason
from lockstep.core.replication import HELD_IN_ONE, HandedOver, HeldMessages, OpenProgress
from lockstep.core.tx_buffer import DtxBuffer
from services.primary.core.attachments import Attachments
from services.primary.core.context import Context
from services.primary.core.open_transactions import TransactionProgress
from services.primary.core.transacting import append_rollback, open_named

_TRANSACTION_COST = 5
_HELD_A_UNIT = 4
"""Messages in hand that are looked at in a microsecond."""


def roll_back_unfit(context: Context, attachments: Attachments) -> Iterator[int]:
    """Clients that take a new epoch for the end of what they have open hear that it was rolled back; it does not stay locked.

    What stays open, and the log knows by name alone, is opened there: whoever is next has it from the log (`fits`). In steps that
    say what they cost (`Alone`).
    """
    for key in context.progress.names():
        open_named(context, key)
        yield _TRANSACTION_COST
    for key in [key for key, _ in context.progress.items()]:
        buffer = context.state.transactions.get(key)
        assert buffer is not None, f"{key} is open"
        sessions = buffer.associations if isinstance(buffer, DtxBuffer) else (context.progress[key].session,)
        if any(not attachments.outlives_hand_over(session) for session in sessions):
            append_rollback(context, key, RollbackReason.FAILOVER)
            yield from context.state.finish_in_steps()
        yield _TRANSACTION_COST


def handed_over(
    context: Context, attachments: Attachments, to: BrokerId, is_chosen: bool = False
) -> Generator[int, None, HandedOver]:
    """What `to` has to know, at the log's end; in steps that say what they cost (`Pieces`), while nothing of it changes any more.
    `is_chosen`: somebody said that it should lead.
    """
    now_ms, log_end = context.now.boottime_ms, context.writer.log.end
    open_ones: list[OpenProgress] = []
    for key, progress in sorted(context.progress.items()):
        remaining_ms = max(1, progress.ends_ms - now_ms) if progress.ends_ms else 0
        sequences = tuple(sorted(progress.sequences.items()))
        open_ones.append(
            OpenProgress(
                key,
                progress.session,
                remaining_ms,
                sequences,
                progress.ordinal,
                progress.bytes,
                progress.places,
            )
        )
        yield _TRANSACTION_COST
    held = [HeldMessages()]
    for session, queue_id, positions in context.dispatch.held():
        if attachments.outlives_hand_over(session):
            left = iter(positions)
            while some := tuple(islice(left, HELD_IN_ONE - len(held[-1].positions))):
                held[-1].add(session, queue_id, some)
                yield len(some) // _HELD_A_UNIT
                if len(held[-1].positions) == HELD_IN_ONE:
                    held.append(HeldMessages())
        yield 1
    parts = tuple(held if held[-1].positions else held[:-1])
    return HandedOver(context.state.set_name, context.epoch, to, log_end, tuple(open_ones), parts, is_chosen)


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
        progress = TransactionProgress(
            one.session, ends_ms, dict(one.sequences), one.ordinal, one.bytes, one.places
        )
        context.progress.begin(one.transaction, progress)
        context.writer.observe(one.transaction)
        yield _TRANSACTION_COST
    for held in handed.held:
        for session, queue_id, positions in held.by_holder():
            context.dispatch.hold(session, queue_id, positions)
        yield len(held.positions)
