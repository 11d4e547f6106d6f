"""P8 Fenced: no client believes a deposed primary against its successor; a session's commands take effect exactly once."""

from collections.abc import Iterator

from lockstep.core.ids import Epoch, SetName
from tests.simulation.checkers.record import Record, seconds
from tests.simulation.history import Browsed, Delivered


def check(record: Record) -> Iterator[str]:
    for set_name, model in record.models.items():
        for (session, number), indexes in model.commands.items():
            if len(indexes) > 1:
                yield f"command {number} of session {session} in {set_name} took effect at {indexes}"
    yield from _rejected(record)
    yield from _epochs(record)


def _rejected(record: Record) -> Iterator[str]:
    """What was rejected did not happen, and does not later either (history 25)."""
    bodies: dict[SetName, set[bytes]] = {
        set_name: {copy.body for life in model.queues.values() for copy in life.copies.values()}
        for set_name, model in record.models.items()
    }
    for operation in record.history.operations:
        if operation.is_rejected and operation.kind == "publish":
            for body in operation.bodies:
                if body in bodies[operation.set_name]:
                    yield (
                        f"{operation.client} heard at {seconds(operation.ended_us or 0)} that its publish of {body[:24]!r} "
                        f"was rejected ({operation.code!r}), and it is in the log"
                    )


def _epochs(record: Record) -> Iterator[str]:
    """A client never takes a delivery of a lower epoch than it has taken one of before, nor is shown anything so."""
    highest: dict[tuple[str, SetName], Epoch] = {}
    given: list[Delivered | Browsed] = [*record.history.deliveries, *record.history.browses]
    for one in sorted(given, key=lambda one: one.time_us):
        key = (one.client, one.set_name)
        if one.epoch < highest.get(key, Epoch(0)):
            yield (
                f"{one.client} took messages of epoch {one.epoch} in {one.set_name} at {seconds(one.time_us)}, "
                f"after some of epoch {highest[key]}"
            )
        highest[key] = max(one.epoch, highest.get(key, Epoch(0)))
