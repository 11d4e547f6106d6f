"""Priorities: a message is delivered with the one that it was published with, and what is handed out together is in order (AMQP
1.0, 3.2.1; JMS 2.0, 3.4.10).
"""

from collections.abc import Iterator

from tests.simulation.checkers.record import Record, seconds


def check(record: Record) -> Iterator[str]:
    for given in record.history.deliveries:
        copies = record.copies(given.set_name, given.queue)
        for seen in given.messages:
            copy = copies.get(seen.position)
            if copy is not None and copy.priority != seen.priority:
                yield (
                    f"{given.client} got {seen.body[:24]!r} of {given.queue} at {seconds(given.time_us)} with priority "
                    f"{seen.priority}, and it was published with {copy.priority}"
                )
        order = [(-seen.priority, seen.position) for seen in given.messages]
        if order != sorted(order):
            yield (
                f"{given.client} got messages of {given.queue} at {seconds(given.time_us)} out of order: "
                f"{[(-level, position) for level, position in order[:6]]}, as (priority, position)"
            )
