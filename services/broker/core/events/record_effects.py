"""From one record to its effects on durable queues and exchanges, at the index at which it takes effect.

Law: what a record does here is what it does in the state machine (`lockstep/core/apply_*.py`), as far as it is durable.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.core.apply_messages import shares_of
from lockstep.core.ids import LogIndex, QueueId, place
from lockstep.core.records import (
    AnyRecord,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Dequeue,
    DequeueReason,
    Move,
    Publish,
)
from services.broker.core.events.transactions import Effects, EventKind

_KINDS = {
    DequeueReason.EXPIRED: EventKind.EXPIRE,
    DequeueReason.EVICTED: EventKind.EXPIRE,
}


class Names(Protocol):
    """What durable queues and exchanges are called; a state has it (`StateNames`)."""

    def queue(self, queue: QueueId, at: LogIndex) -> str | None:
        """The name of a durable queue that exists at `at`; None for one that was deleted before."""

    def exchange(self, exchange: int) -> str:
        """ "" if it is gone."""


def effects_of(record: AnyRecord, at: LogIndex, names: Names) -> list[Effects]:
    """In order; empty if it has none that is durable. Raises `KeyError` for a record of a kind that never has any itself."""
    return _EFFECTS[type(record)](record, at, names)


def _publish(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    found: list[Effects] = []
    messages = record.messages
    if not messages:
        return found
    first = place(at, record.ordinal)
    for share in shares_of(messages):
        name = names.queue(share.queue, at)
        if name is None:
            continue
        if share.places is None:
            positions: Sequence[int] = range(first, first + len(messages))
            chosen = messages
        else:
            positions = [first + number for number in share.places]
            chosen = [messages[number] for number in share.places]
        found.append(Effects(EventKind.ENQUEUE, share.queue, name, positions, chosen))
    return found


def _dequeue(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    name = names.queue(record.queue, at)
    if name is None or not record.positions:
        return []
    kind = _KINDS.get(record.reason, EventKind.DEQUEUE)
    return [Effects(kind, record.queue, name, record.positions, reason=record.reason)]


def _move(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    name = names.queue(record.queue, at)
    if name is None or not record.positions:
        return []
    found = [Effects(EventKind.DEAD_LETTER, record.queue, name, record.positions, reason=record.reason)]
    first = place(at, record.ordinal)
    positions = range(first, first + len(record.positions))
    for number, target in enumerate(record.targets):
        target_name = names.queue(target, at)
        if target_name is not None:
            expires_ms = record.expires_ms[number] if record.expires_ms else 0
            found.append(
                Effects(
                    EventKind.ENQUEUE,
                    target,
                    target_name,
                    positions,
                    sources=record.positions,
                    expires_ms=expires_ms,
                )
            )
    return found


def _declare_queue(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    return [Effects(EventKind.DECLARE, at, record.name)]


def _delete_queue(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    name = names.queue(record.queue, LogIndex(at - 1))
    return [Effects(EventKind.DELETE, record.queue, name)] if name is not None else []


def _declare_exchange(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    return [Effects(EventKind.DECLARE, at, record.name, is_exchange=True)]


def _delete_exchange(record: Any, at: LogIndex, names: Names) -> list[Effects]:
    name = names.exchange(record.exchange)
    return [Effects(EventKind.DELETE, record.exchange, name, is_exchange=True)]


_EFFECTS: dict[type, Callable[[Any, LogIndex, Names], list[Effects]]] = {
    Publish: _publish,
    Dequeue: _dequeue,
    Move: _move,
    DeclareQueue: _declare_queue,
    DeleteQueue: _delete_queue,
    DeclareExchange: _declare_exchange,
    DeleteExchange: _delete_exchange,
}
