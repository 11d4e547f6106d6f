"""Targets: which queues an exchange chooses for each message of a batch.

Law: a binding with a selector is for the messages that the selector matches, on exchanges of every kind; a queue gets a message
once, through however many bindings. Records name queues: only the primary asks a selector.
"""

from collections.abc import Mapping
from typing import NamedTuple

from lockstep.core.exchanges import Exchange
from lockstep.core.ids import QueueId

QueueIds = tuple[QueueId, ...]


class Targets(NamedTuple):
    """What an exchange chooses for messages of one routing key and headers."""

    certain: QueueIds
    """Queues that get every one of them, ascending."""
    selecting: tuple[tuple[str, QueueIds], ...] = ()
    """Queues that get those that a selector matches."""


def targets_of(exchange: Exchange, key: str, headers: Mapping[str, str]) -> Targets:
    """The queues bound to an exchange for a routing key and headers."""
    certain = exchange.matcher.match(key, headers)
    if not exchange.matcher.has_selectors:
        return Targets(certain)
    return Targets(certain, tuple(exchange.matcher.match_selecting(key, headers)))
