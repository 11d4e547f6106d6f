"""Deaths: why and where from a message came to be a dead letter, as its entry keeps it and whoever receives it is told.

Law: the last one comes first. There is one for each queue and reason, however often that was; of a message that wandered through
too many queues the first and the last ones are known.
"""

from enum import IntEnum

import msgspec

DEATHS_MAX = 16
"""Of one entry."""


class DeathReason(IntEnum):
    """In state and on the wire: added, never reused."""

    REJECTED = 1
    EXPIRED = 2
    DELIVERY_LIMIT = 3
    """It failed as often as its queue allows."""


class Death(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message left a queue for its dead-letter targets."""

    queue: str
    reason: int
    """A `DeathReason`; of a later version perhaps a number that is not known here."""
    count: int
    """How often."""
    first_ms: int
    """When, by the primary's clock (TimeMs): the first time, and the last."""
    last_ms: int


Deaths = tuple[Death, ...]


def died_again(deaths: Deaths, queue: str, reason: int, time_ms: int) -> Deaths:
    """With one more death, of a queue by that name."""
    same = [death for death in deaths if death.queue == queue and death.reason == reason]
    count, first_ms = (same[0].count, same[0].first_ms) if same else (0, time_ms)
    others = tuple([death for death in deaths if death not in same])
    if len(others) >= DEATHS_MAX:
        others = (*others[: DEATHS_MAX - 2], others[-1])
    return (Death(queue, reason, count + 1, first_ms, time_ms), *others)
