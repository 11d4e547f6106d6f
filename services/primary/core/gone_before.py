"""What an epoch ends before its own record is applied, and its primary has to tell of all the same: nobody listened yet."""

from collections.abc import Generator, Iterator
from itertools import chain
from typing import NamedTuple, Self

from lockstep.core.exchanges import Exchange
from lockstep.core.queues import Queue
from lockstep.core.set_state import SetState

LOOKED_AT_IN_ONE = 500
"""Queues and exchanges, in one step."""


class GoneBefore(NamedTuple):
    """Of one epoch."""

    aborted: int = 0
    """Transactions that were open."""
    lost: int = 0
    """Messages of durable queues that were not durable."""
    names: tuple[tuple[str, str], ...] = ()
    """(kind, name) of queues and exchanges that were not durable: they are this set's in the directory still."""

    @classmethod
    def of(cls, state: SetState, is_restarted: bool) -> Generator[int, None, Self]:
        """What a state has of that, before an epoch begins that nothing is handed over to. In steps that say what they cost
        (`Pieces`); nothing changes meanwhile.
        """
        aborted, lost, names = state.transactions.open_count, 0, list[tuple[str, str]]()
        if not is_restarted:
            return cls(aborted)
        all_of_them: Iterator[Queue | Exchange] = chain(
            state.queues.by_id.values(), state.exchanges.by_id.values()
        )
        for looked, one in enumerate(all_of_them, 1):
            if not one.is_durable:
                names.append(("queue" if isinstance(one, Queue) else "exchange", one.name))
            elif isinstance(one, Queue):
                lost += len(one.transient_positions)
            if looked % LOOKED_AT_IN_ONE == 0:
                yield LOOKED_AT_IN_ONE // 2
        return cls(aborted, lost, tuple(names))


NOTHING_GONE = GoneBefore()
