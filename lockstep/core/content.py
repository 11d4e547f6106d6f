"""A content: what one message carries, with its body or without.

Law: a body that is away leaves sizes, target queues and a checksum, so that every record can still be applied and states still be
compared.
"""

from collections.abc import Sequence
from operator import attrgetter

import google_crc32c
import msgspec

from lockstep.core.ids import QueueId
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.records import Message


class DroppedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stays of a message in memory when its body is away."""

    queues: tuple[QueueId, ...]
    properties_bytes: int
    body_bytes: int
    crc: int
    """CRC-32C of properties and body; 0 where nobody computed it."""
    expires_ms: int
    is_durable: bool

    @property
    def priority(self) -> int:
        return PRIORITY_DEFAULT

    @property
    def size(self) -> int:
        return self.properties_bytes + self.body_bytes


class DroppedPrioritised(DroppedMessage, frozen=True, array_like=True, gc=False):
    """The same of a message whose priority is not the default one: most have no room for that."""

    priority: int


Content = Message | DroppedMessage
_BODY, _PROPERTIES, _PRIORITY = attrgetter("body"), attrgetter("properties"), attrgetter("priority")


def size_of(content: Content) -> int:
    """Bytes of properties and body, as limits count them."""
    if type(content) is Message:
        return len(content.body) + len(content.properties)
    assert isinstance(content, DroppedMessage)
    return content.size


def size_of_all(contents: Sequence[Content]) -> int:
    """The same of all of them together."""
    if set(map(type, contents)) == {Message}:
        return sum(map(len, map(_BODY, contents))) + sum(map(len, map(_PROPERTIES, contents)))
    return sum(map(size_of, contents))


def priorities_of(contents: Sequence[Content]) -> list[int] | None:
    """Of all of them; None: each is the default one."""
    found = list(map(_PRIORITY, contents))
    return None if found.count(PRIORITY_DEFAULT) == len(found) else found


def without_body(content: Content, with_checksum: bool = True) -> DroppedMessage:
    """The same message with its body away."""
    if isinstance(content, DroppedMessage):
        return content
    assert type(content) is Message
    properties, body = content.properties, content.body
    crc = google_crc32c.extend(google_crc32c.value(properties), body) if with_checksum else 0
    dropped = content.queues, len(properties), len(body), crc, content.expires_ms, content.is_durable
    if content.priority != PRIORITY_DEFAULT:
        return DroppedPrioritised(*dropped, content.priority)
    return DroppedMessage(*dropped)
