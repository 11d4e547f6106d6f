"""Messages of one publish that differ in nothing but their bodies, as most do: their bodies, and once what they have in common.

Law: they are a sequence like any other of outgoing messages, and equal to one that has the same.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from lockstep.core.commands import OutgoingMessage
from lockstep.core.priority_levels import PRIORITY_DEFAULT

_Kind = tuple[bytes, bool, int, tuple[tuple[str, str], ...], int]


class AlikeMessages(Sequence[OutgoingMessage]):
    """`bodies` is not changed any more. All else as in `OutgoingMessage`."""

    __slots__ = ("bodies", "content_bytes", "headers", "is_durable", "priority", "properties", "ttl_ms")

    def __init__(
        self,
        bodies: Sequence[bytes],
        properties: bytes = b"",
        is_durable: bool = True,
        ttl_ms: int = 0,
        headers: tuple[tuple[str, str], ...] = (),
        priority: int = PRIORITY_DEFAULT,
    ) -> None:
        self.bodies = bodies
        self.properties = properties
        self.is_durable = is_durable
        self.ttl_ms = ttl_ms
        self.headers = headers
        self.priority = priority
        self.content_bytes: int | None = None
        """Of all of them, properties and bodies; None: nobody has counted them yet."""

    def __repr__(self) -> str:
        return f"AlikeMessages({len(self.bodies)} of {self.kind})"

    @property
    def kind(self) -> _Kind:
        """What they have in common."""
        return self.properties, self.is_durable, self.ttl_ms, self.headers, self.priority

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[OutgoingMessage]:
        return map(self._message, self.bodies)

    @overload
    def __getitem__(self, place: int) -> OutgoingMessage: ...
    @overload
    def __getitem__(self, place: slice) -> "AlikeMessages": ...
    def __getitem__(self, place: int | slice) -> "OutgoingMessage | AlikeMessages":
        if isinstance(place, slice):
            return AlikeMessages(self.bodies[place], *self.kind)
        return self._message(self.bodies[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def _message(self, body: bytes) -> OutgoingMessage:
        return OutgoingMessage(
            self.properties, body, self.is_durable, self.ttl_ms, self.headers, self.priority
        )


def joined(parts: Sequence[Sequence[OutgoingMessage]]) -> Sequence[OutgoingMessage]:
    """The messages of all parts, of which there is at least one, in their order; alike if they are."""
    first = parts[0]
    if len(parts) == 1:
        return first if isinstance(first, AlikeMessages) else tuple(first)
    if isinstance(first, AlikeMessages):
        alike = [part for part in parts if isinstance(part, AlikeMessages) and part.kind == first.kind]
        if len(alike) == len(parts):
            return AlikeMessages(tuple(chain(*[part.bodies for part in alike])), *first.kind)
    return tuple(chain(*parts))


def sizes_of(messages: Sequence[OutgoingMessage]) -> list[int]:
    """Bytes of each message's content: properties and body."""
    if isinstance(messages, AlikeMessages):
        beside = len(messages.properties)
        return [len(body) + beside for body in messages.bodies] if beside else list(map(len, messages.bodies))
    return [len(message.body) + len(message.properties) for message in messages]


def size_of_outgoing(messages: Sequence[OutgoingMessage]) -> int:
    """Bytes of their contents together."""
    if isinstance(messages, AlikeMessages):
        size = messages.content_bytes
        if size is None:
            size = sum(map(len, messages.bodies)) + len(messages.properties) * len(messages.bodies)
            messages.content_bytes = size
        return size
    return sum(sizes_of(messages))
