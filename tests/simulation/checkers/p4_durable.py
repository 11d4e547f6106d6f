"""P4 Durable: every acknowledged durable effect is in the log and, unless a record took it away, in the final state, once."""

from collections import Counter
from collections.abc import Iterator

from lockstep.core.commands import Disposition
from lockstep.core.ids import SetName
from tests.simulation.checkers.record import Record, seconds
from tests.simulation.history import Operation
from tests.simulation.log_model import FOREVER, QUEUE_DELETED, Copy, LogModel


def check(record: Record) -> Iterator[str]:
    bodies = {set_name: _by_body(model) for set_name, model in record.models.items()}
    for operation in record.history.operations:
        if operation.is_ok and operation.set_name in record.models:
            if operation.kind == "publish":
                yield from _publish(operation, record.models[operation.set_name], bodies[operation.set_name])
            elif operation.kind == "settle":
                yield from _settle(operation, record)
            elif operation.kind == "declare queue" and operation.is_durable:
                yield from _declared(operation, record.models[operation.set_name])
    for set_name, found in bodies.items():
        yield from _doubled(set_name, found)
    yield from _final(record)


def _by_body(model: LogModel) -> dict[bytes, list[Copy]]:
    found: dict[bytes, list[Copy]] = {}
    for life in model.queues.values():
        for copy in life.copies.values():
            found.setdefault(copy.body, []).append(copy)
    return found


def _name(operation: Operation) -> str:
    return f"{operation.client}'s {operation.kind} acknowledged at {seconds(operation.ended_us or 0)}, epoch {operation.epoch},"


def _publish(operation: Operation, model: LogModel, bodies: dict[bytes, list[Copy]]) -> Iterator[str]:
    if operation.transaction is not None:
        life = model.transactions.get(operation.transaction)
        if life is None or not life.is_committed:
            return
        written = {
            message.body for publish in life.publishes for message in publish.messages if message.queues
        }
        for body in operation.bodies:
            if body not in written and operation.is_durable:
                yield f"{_name(operation)} {body[:24]!r}, is not in its committed transaction {operation.transaction}"
        return
    if not operation.is_durable or not operation.value:
        return
    for body in operation.bodies:
        if body not in bodies:
            yield f"{_name(operation)} {body[:24]!r} to {operation.queue}, is not in the log"


def _settle(operation: Operation, record: Record) -> Iterator[str]:
    model = record.models[operation.set_name]
    if operation.disposition != Disposition.ACCEPT:
        return
    if operation.transaction is not None:
        life = model.transactions.get(operation.transaction)
        if life is None or not life.is_committed:
            return
    copies = record.copies(operation.set_name, operation.queue)
    for position in operation.positions:
        copy = copies.get(position)
        if copy is not None and copy.removed == FOREVER and copy.is_durable:
            yield f"{_name(operation)} took {position} of {operation.queue}, which is still there"


def _declared(operation: Operation, model: LogModel) -> Iterator[str]:
    if not model.queues_named(operation.queue):
        yield f"{_name(operation)} {operation.queue}, is not in the log"


def _doubled(set_name: SetName, bodies: dict[bytes, list[Copy]]) -> Iterator[str]:
    for body, copies in bodies.items():
        queues = Counter(copy.queue for copy in copies if not copy.is_moved)
        for queue, count in queues.items():
            if count > 1:
                places = sorted(copy.position for copy in copies if copy.queue == queue)
                yield f"{body[:24]!r} is {count} times in queue {queue} of {set_name}, at {places}"
        last = [copy for copy in copies if copy.removed == FOREVER and copy.reason != QUEUE_DELETED]
        if len({copy.queue for copy in last}) < len(last) and not any(copy.is_moved for copy in copies):
            yield f"{body[:24]!r} is left {len(last)} times in {set_name}"


def _final(record: Record) -> Iterator[str]:
    for view in record.final_views:
        model = record.models[view.set_name]
        if view.applied < model.end:
            yield (
                f"replica {view.broker} of {view.set_name} ends at index {view.applied}, "
                f"and {model.end} had been called committed"
            )
