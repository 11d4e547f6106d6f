"""The account at the end: every message that went in is in each target, once.

Law: it is taken from what the queues hold, read by browsing, and not from what the movers believe.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import astuple, dataclass

from lockstep.cli.demo.data import id_of
from lockstep.client import Session


@dataclass(frozen=True, slots=True)
class Account:
    """Counts of messages, by id."""

    messages_in: int
    left: int
    """Still in the source."""
    messages_out: int
    """In all targets together."""
    lost: int
    """Neither in the source nor in any target."""
    duplicated: int
    """More than once in a target, or in the source and in a target."""
    torn: int
    """In one target and not in the other: half of a transaction."""

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.duplicated or self.torn)

    def __add__(self, other: "Account") -> "Account":
        mine, others = astuple(self), astuple(other)
        return Account(*(one + another for one, another in zip(mine, others, strict=True)))


def balance(ids: Collection[int], source: Counter[int], targets: list[Counter[int]]) -> Account:
    """Counts what is wrong, for the messages with these ids."""
    lost = duplicated = torn = 0
    for number in ids:
        copies = [target[number] for target in targets]
        if source[number]:
            duplicated += source[number] > 1 or any(copies)
            continue
        lost += not any(copies)
        torn += any(copies) and not all(copies)
        duplicated += any(count > 1 for count in copies)
    return Account(
        len(ids), source.total(), sum(target.total() for target in targets), lost, duplicated, torn
    )


async def count(session: Session, queue: str) -> Counter[int]:
    """Ids in a queue."""
    return Counter([id_of(message.body) async for message in session.browse(queue)])
