"""Contents: what messages carry, once however many queues and buffers hold it, and gone with the last that does.

Law: a content is here exactly while a queue entry or an open transaction's buffer refers to it. It is durable exactly while a
durable one does: then its item belongs to the durable snapshot. Bodies may be away (dropped, to be read back from the
store); sizes, target queues and a checksum stay, so that every record can still be applied and states still be compared.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import google_crc32c
import msgspec

from lockstep.core.ids import MessageId, QueueId
from lockstep.core.items import Changes
from lockstep.core.records import Message


class DroppedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stays of a message in memory when its body is away."""

    queues: tuple[QueueId, ...]
    properties_bytes: int
    body_bytes: int
    crc: int
    """CRC-32C of properties and body."""
    expires_ms: int
    is_durable: bool

    @property
    def size(self) -> int:
        return self.properties_bytes + self.body_bytes


Content = Message | DroppedMessage
_BODY, _PROPERTIES = attrgetter("body"), attrgetter("properties")


def size_of(content: Content) -> int:
    """Bytes of properties and body, as limits count them."""
    if type(content) is Message:
        return len(content.body) + len(content.properties)
    assert type(content) is DroppedMessage
    return content.size


def size_of_all(contents: Sequence[Content]) -> int:
    """The same of all of them together."""
    if set(map(type, contents)) == {Message}:
        return sum(map(len, map(_BODY, contents))) + sum(map(len, map(_PROPERTIES, contents)))
    return sum(map(size_of, contents))


def without_body(content: Content) -> DroppedMessage:
    """The same message with its body away."""
    if isinstance(content, DroppedMessage):
        return content
    crc = google_crc32c.extend(google_crc32c.value(content.properties), content.body)
    sizes = len(content.properties), len(content.body)
    return DroppedMessage(content.queues, *sizes, crc, content.expires_ms, content.is_durable)


class Contents:
    """All message contents of one resource set's state, which alone adds and releases them."""

    __slots__ = ("_changes", "_references", "messages", "resident_bytes")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.messages: dict[MessageId, Content] = {}
        self.resident_bytes = 0
        """Of properties and bodies that are not away."""
        self._references: dict[MessageId, tuple[int, int]] = {}
        """(durable, transient) references; absent means (1, 0), which nearly all have."""

    def add(
        self, ids: Sequence[MessageId], messages: Iterable[Message], durable: int, transient: int, size: int
    ) -> None:
        """New contents, each with that many references, at least one. `size`: bytes of all of them."""
        self.messages.update(zip(ids, messages, strict=True))
        self.resident_bytes += size
        if (durable, transient) != (1, 0):
            self._references.update(dict.fromkeys(ids, (durable, transient)))
        if durable and self._changes.listener is not None:
            self._changes.listener.messages_changed(ids)

    def references(self, message_id: MessageId) -> tuple[int, int]:
        """(durable, transient) references of a content that is here."""
        return self._references.get(message_id, (1, 0))

    def transient_ids(self) -> set[MessageId]:
        """Contents that no durable reference holds."""
        return {message_id for message_id, (durable, _) in self._references.items() if not durable}

    def recount(self, durable: dict[MessageId, int], transient: dict[MessageId, int]) -> None:
        """Replace all counts: a restoration has counted anew. Every content must have one."""
        self._references = {}
        self.resident_bytes = sum(
            size_of(content) for content in self.messages.values() if type(content) is Message
        )
        for message_id in self.messages:
            counts = durable.get(message_id, 0), transient.get(message_id, 0)
            assert counts != (0, 0), f"nothing refers to message {message_id}"
            if counts != (1, 0):
                self._references[message_id] = counts

    def set_references(self, message_id: MessageId, durable: int, transient: int) -> None:
        """Replace the counts of a content that is here; with none left it goes."""
        was_durable = self.references(message_id)[0] > 0
        if durable or transient:
            if (durable, transient) == (1, 0):
                self._references.pop(message_id, None)
            else:
                self._references[message_id] = (durable, transient)
        else:
            content = self.messages.pop(message_id)
            if type(content) is Message:
                self.resident_bytes -= size_of(content)
            self._references.pop(message_id, None)
        if was_durable != (durable > 0) and self._changes.listener is not None:
            self._changes.listener.messages_changed((message_id,))

    def hold(self, message_id: MessageId, is_durable: bool) -> None:
        """One more reference."""
        durable, transient = self.references(message_id)
        self.set_references(message_id, durable + is_durable, transient + (not is_durable))

    def release(self, ids: Iterable[MessageId], is_durable: bool) -> None:
        """One reference less to each; contents without any are gone."""
        if is_durable and not self._references:
            messages, size, listener = self.messages, 0, self._changes.listener
            if listener is not None:
                ids = list(ids)
                listener.messages_changed(ids)
            for message_id in ids:
                content = messages.pop(message_id)
                if type(content) is Message:
                    size += len(content.body) + len(content.properties)
            self.resident_bytes -= size
            return
        for message_id in ids:
            durable, transient = self.references(message_id)
            self.set_references(message_id, durable - is_durable, transient - (not is_durable))

    def total_size(self, ids: Iterable[MessageId]) -> int:
        """Bytes of all these contents."""
        messages = self.messages
        total = 0
        for message_id in ids:
            content = messages[message_id]
            total += (
                len(content.body) + len(content.properties) if type(content) is Message else size_of(content)
            )
        return total

    def get(self, message_id: MessageId) -> Message | None:
        """The message; None if it is gone or its body is away."""
        content = self.messages.get(message_id)
        return content if isinstance(content, Message) else None

    def drop(self, message_id: MessageId) -> None:
        """Let the body go and keep sizes and checksum; nothing for an unknown message."""
        content = self.messages.get(message_id)
        if type(content) is Message:
            self.messages[message_id] = without_body(content)
            self.resident_bytes -= size_of(content)

    def restore(self, message_id: MessageId, message: Message) -> None:
        """Bring a dropped body back; nothing for an unknown message. Another content than was dropped is our own bug."""
        content = self.messages.get(message_id)
        if type(content) is DroppedMessage:
            assert without_body(message) == content, f"message {message_id} came back changed"
            self.messages[message_id] = message
            self.resident_bytes += size_of(message)
