"""What an epoch ends before its own record is applied, and its primary has to tell of all the same: nobody listened yet."""

from typing import NamedTuple, Self

from lockstep.core.set_state import SetState


class GoneBefore(NamedTuple):
    """Of one epoch."""

    aborted: int = 0
    """Transactions that were open."""
    lost: int = 0
    """Messages of durable queues that were not durable."""
    names: tuple[tuple[str, str], ...] = ()
    """(kind, name) of queues and exchanges that were not durable: they are this set's in the directory still."""

    @classmethod
    def of(cls, state: SetState, is_restarted: bool) -> Self:
        """What a state has of that, before an epoch begins that nothing is handed over to."""
        if not is_restarted:
            return cls(state.transactions.open_count)
        queues, exchanges = state.queues.by_id.values(), state.exchanges.by_id.values()
        return cls(
            state.transactions.open_count,
            sum([len(queue.transient_positions) for queue in queues if queue.is_durable]),
            (
                *[("queue", queue.name) for queue in queues if not queue.is_durable],
                *[("exchange", exchange.name) for exchange in exchanges if not exchange.is_durable],
            ),
        )


NOTHING_GONE = GoneBefore()
