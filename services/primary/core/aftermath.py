"""What records that were just applied call for: messages that came back to their queues, queues and exchanges that went.

Law: it is settled behind each command, and before frames are cut. What is done here may cause more of it, and that is done too.
"""

from collections.abc import Iterator

from services.primary.core.client_streams import ClientStreams
from services.primary.core.consuming import queue_deleted
from services.primary.core.context import Context
from services.primary.core.expiry import WATCH_COST
from services.primary.core.listener import PrimaryListener
from services.primary.core.name_claims import NameClaims
from services.primary.core.settling import give_back

WATCHED_IN_ONE = 500
"""Messages that came together and are begun to be watched in one step."""
GIVEN_BACK_IN_ONE = 500
"""Messages that came back and are looked at in one step."""
_RETURN_COST = 4
"""Of some that came back to a queue, beside each of them."""
_DELETED_COST = 4
"""Of a queue that went, beside its consumers."""


class Aftermath:
    """Lives as long as the epoch; driven by the primary core, and behind each message of a client."""

    def __init__(
        self, context: Context, listener: PrimaryListener, streams: ClientStreams, names: NameClaims
    ) -> None:
        self._context = context
        self._listener = listener
        self._streams = streams
        self._names = names
        self.has_looked_through = False
        """What the last reign has left is found; it is settled behind that."""

    def look_through(self) -> Iterator[int]:
        """Messages that the last reign found worn out may be there still: it waited for their bodies. In steps that say what they
        cost (`Pieces`); what is found is settled behind each piece.
        """
        context = self._context
        by_id = context.state.queues.by_id
        for queue_id in sorted(by_id):
            if (queue := by_id.get(queue_id)) is None:
                continue
            for counted in queue.delivery_counts.parts() if queue.definition.delivery_count_max else ():
                worn_out = [
                    position
                    for position in counted
                    if position in queue
                    and queue.is_worn_out(position)
                    and position not in queue.locks
                    and not context.dispatch.is_held(queue_id, position)
                ]
                if worn_out:
                    self._listener.came_back.append((queue, worn_out))
                yield 1 + len(counted)
            yield 1
        self.has_looked_through = True

    def settle(self) -> None:
        """Do all that the listener has noticed."""
        if self._listener.has_news:
            for _ in self.settle_in_steps():
                pass

    def settle_in_steps(self) -> Iterator[int]:
        """The same, in steps that say what they cost; nothing may come between."""
        listener = self._listener
        while listener.has_news:
            came, listener.came = listener.came, []
            for queue, positions in came:
                for begin in range(0, len(positions), WATCHED_IN_ONE):
                    some = positions[begin : begin + WATCHED_IN_ONE]
                    self._context.expiry.watch(queue, some)
                    yield 1 + WATCH_COST * len(some)
            came_back, listener.came_back = listener.came_back, []
            for queue, positions in came_back:
                for begin in range(0, len(positions), GIVEN_BACK_IN_ONE):
                    some = positions[begin : begin + GIVEN_BACK_IN_ONE]
                    if queue.id in self._context.state.queues.by_id:
                        give_back(self._context, queue, some)
                    yield _RETURN_COST + len(some) // 2
            deleted, listener.deleted = listener.deleted, []
            for queue, consumers in deleted:
                queue_deleted(self._streams, queue.name, consumers)
                self._names.release_unused("queue", queue.name)
                yield _DELETED_COST + len(consumers)
            deleted_exchanges, listener.deleted_exchanges = listener.deleted_exchanges, []
            for name in deleted_exchanges:
                self._names.release_unused("exchange", name)
