"""Targets: which queues an exchange chooses for each message of a batch.

Law: a binding with a selector is for the messages that the selector matches, on exchanges of every kind; a queue gets a message
once, through however many bindings. Records name queues: only the primary asks a selector.
"""

from collections.abc import Mapping
from typing import NamedTuple

from lockstep.core.amqp.selector import Selector
from lockstep.core.exchanges import Exchange
from lockstep.core.ids import QueueId
from services.primary.core.context import Context
from services.primary.core.selecting import is_selected

QueueIds = tuple[QueueId, ...]


class Targets(NamedTuple):
    """What an exchange chooses for messages of one routing key and headers."""

    certain: QueueIds
    """Queues that get every one of them, ascending."""
    selecting: tuple[tuple[Selector, QueueIds], ...] = ()
    """Queues that get those that a selector matches."""

    def of(self, properties: bytes, is_durable: bool) -> QueueIds:
        """The queues that get a message, ascending."""
        chosen = set(self.certain)
        for selector, queues in self.selecting:
            if not chosen.issuperset(queues) and is_selected(selector, properties, 0, is_durable):
                chosen.update(queues)
        return tuple(sorted(chosen))


def targets_of(context: Context, exchange: Exchange, key: str, headers: Mapping[str, str]) -> Targets:
    """The queues bound to an exchange for a routing key and headers."""
    certain = exchange.matcher.match(key, headers)
    if not exchange.matcher.has_selectors:
        return Targets(certain)
    found = [
        (context.selectors.of(text), queues)
        for text, queues in exchange.matcher.match_selecting(key, headers)
    ]
    return Targets(certain, tuple((selector, queues) for selector, queues in found if selector is not None))
