"""Exchanges and their bindings to queues.

Law: a binding is one (exchange, queue, key, arguments) and is there once; made again it changes nothing, except that a
durable one makes it durable. It is durable only if its record and both its ends are. Deleting either end deletes it.
The default exchange "" is no object: it routes by queue name and cannot be bound (`SetState.route`).
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lockstep.core.ids import ExchangeId, QueueId
from lockstep.core.items import Changes, binding_key, exchange_key
from lockstep.core.routing import Arguments, ExchangeMatcher
from lockstep.core.taking_apart import emptied, length_of

DEFAULT_EXCHANGE = ""
EXCHANGE_KINDS = ("direct", "fanout", "topic", "headers")


class Binding(NamedTuple):
    """What joins an exchange to a queue; its own identity."""

    exchange: ExchangeId
    queue: QueueId
    key: str
    arguments: Arguments


class Exchange:
    """One exchange, from its declaration to its deletion; changed only through `Exchanges`."""

    __slots__ = ("bindings", "id", "is_durable", "kind", "matcher", "name")

    def __init__(self, exchange_id: ExchangeId, name: str, kind: str, is_durable: bool) -> None:
        self.id = exchange_id
        self.name = name
        self.kind = kind
        self.is_durable = is_durable
        self.bindings: dict[Binding, bool] = {}
        """Each binding, and whether it is durable."""
        self.matcher = ExchangeMatcher(kind)

    def __repr__(self) -> str:
        return f"Exchange({self.id}, {self.name!r}, {self.kind!r}, is_durable={self.is_durable})"


class Exchanges:
    """All exchanges of one resource set's state, which alone changes them."""

    __slots__ = ("_by_queue", "_changes", "by_id", "by_name")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.by_id: dict[ExchangeId, Exchange] = {}
        self.by_name: dict[str, Exchange] = {}
        self._by_queue: dict[QueueId, dict[Binding, None]] = {}

    def get(self, name: str) -> Exchange | None:
        return self.by_name.get(name)

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave none, in steps that say what they cost (`taking_apart`)."""
        yield from emptied(self._by_queue, length_of)
        self.by_name.clear()
        while self.by_id:
            _, exchange = self.by_id.popitem()
            yield from emptied(exchange.bindings)

    def declare(self, exchange: Exchange) -> None:
        self.by_id[exchange.id] = exchange
        self.by_name[exchange.name] = exchange
        if exchange.is_durable:
            self._changed(exchange_key(exchange.id))

    def delete(self, exchange: Exchange) -> None:
        """Delete it with its bindings."""
        for binding in list(exchange.bindings):
            self.unbind(binding)
        del self.by_id[exchange.id]
        if self.by_name.get(exchange.name) is exchange:
            del self.by_name[exchange.name]
        if exchange.is_durable:
            self._changed(exchange_key(exchange.id))

    def bind(self, binding: Binding, is_durable: bool) -> None:
        """Make a binding of an existing exchange; again: nothing, but a durable one makes it durable."""
        exchange = self.by_id[binding.exchange]
        was_durable = exchange.bindings.get(binding)
        if was_durable is None:
            exchange.matcher.add(binding.queue, binding.key, binding.arguments)
            self._by_queue.setdefault(binding.queue, {})[binding] = None
        if was_durable or (was_durable is False and not is_durable):
            return
        exchange.bindings[binding] = is_durable
        if is_durable:
            self._changed(binding_key(*binding))

    def unbind(self, binding: Binding) -> None:
        """Remove a binding that is there."""
        exchange = self.by_id[binding.exchange]
        was_durable = exchange.bindings.pop(binding)
        exchange.matcher.remove(binding.queue, binding.key, binding.arguments)
        bindings = self._by_queue[binding.queue]
        del bindings[binding]
        if not bindings:
            del self._by_queue[binding.queue]
        if was_durable:
            self._changed(binding_key(*binding))

    def is_durable(self, binding: Binding) -> bool | None:
        """Whether this binding is durable; None if there is none."""
        exchange = self.by_id.get(binding.exchange)
        return exchange.bindings.get(binding) if exchange is not None else None

    def bindings_of(self, queue: QueueId) -> list[Binding]:
        """All bindings to a queue, in the order of their identity."""
        return sorted(self._by_queue.get(queue, ()))

    def route(self, exchange: str | ExchangeId, key: str, headers: Mapping[str, str]) -> tuple[QueueId, ...]:
        """Queues that an exchange, by name or id, chooses whatever any selector says; none if there is no such exchange."""
        found = self.by_name.get(exchange) if isinstance(exchange, str) else self.by_id.get(exchange)
        return found.matcher.targets(key, headers).certain if found is not None else ()

    def _changed(self, key: bytes) -> None:
        if self._changes.listener is not None:
            self._changes.listener.items_changed((key,))
