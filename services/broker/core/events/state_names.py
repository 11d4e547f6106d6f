"""Names of queues and exchanges, from a state that has applied at least what is being read.

Law: all names are here of what was committed behind `Subscriptions.names_from`. Nobody may read what lies below: he would miss
what was committed to those that are not. Nor does a state that is being taken apart say of any name that it is not there.
"""

from lockstep.core.ids import ExchangeId, LogIndex, QueueId
from lockstep.core.set_state import SetState
from lockstep.core.subscriptions import DeletedResource


class NamesGone(Exception):
    """Nobody has this state any more; whoever reads asks the one that its replica has now."""


class StateNames:
    """Of one state, which goes on while it is asked, or is taken apart (`NamesGone`)."""

    def __init__(self, state: SetState) -> None:
        self._state = state

    def queue(self, queue: QueueId, at: LogIndex) -> str | None:
        """The name of a durable queue that exists at `at`; None for one that was deleted before."""
        live = self._state.queues.by_id.get(queue)
        if live is not None:
            return live.name if live.is_durable else None
        deleted = self._deleted(queue)
        return deleted.name if deleted is not None and deleted.index > at else None

    def exchange(self, exchange: int) -> str:
        """ "" if it is gone for so long that its name is not kept."""
        live = self._state.exchanges.by_id.get(ExchangeId(exchange))
        if live is not None:
            return live.name
        deleted = self._deleted(exchange)
        return deleted.name if deleted is not None else ""

    def _deleted(self, number: int) -> DeletedResource | None:
        deleted = self._state.subscriptions.deleted(number)
        if deleted is None and self._state.is_taken_apart:
            raise NamesGone
        return deleted
