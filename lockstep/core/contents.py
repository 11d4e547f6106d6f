"""Contents: what messages carry, once however many queues and buffers hold it, and gone with the last that does.

Law: a content is here exactly while a queue entry or an open transaction's buffer refers to it. It is durable exactly while a
durable one does: then its item belongs to the durable snapshot. Bodies may be away (dropped, to be read back from the
store); sizes, target queues and a checksum stay, so that every record can still be applied and states still be compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import google_crc32c
import msgspec

from lockstep.core.ids import LogIndex, MessageId, QueueId, index_of
from lockstep.core.items import Changes
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
    def size(self) -> int:
        return self.properties_bytes + self.body_bytes


Content = Message | DroppedMessage
RUN_MIN = 4
"""So many neighbours are kept as one run: fewer take more room together than each by itself."""
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


def without_body(content: Content, with_checksum: bool = True) -> DroppedMessage:
    """The same message with its body away."""
    if type(content) is DroppedMessage:
        return content
    assert type(content) is Message
    properties, body = content.properties, content.body
    crc = google_crc32c.extend(google_crc32c.value(properties), body) if with_checksum else 0
    return DroppedMessage(
        content.queues, len(properties), len(body), crc, content.expires_ms, content.is_durable
    )


class _Run:
    """The contents of one publish record, while any of them is here: neighbours in ids come, and mostly go, together."""

    __slots__ = ("contents", "first", "left", "resident_bytes")

    def __init__(self, first: int, contents: list[Content | None], size: int) -> None:
        self.first = first
        self.contents = contents
        """By id, from `first` on; None where one is gone."""
        self.left = len(contents)
        self.resident_bytes = size

    def get(self, number: int) -> Content | None:
        offset = number - self.first
        return self.contents[offset] if 0 <= offset < len(self.contents) else None


class Contents:
    """All message contents of one resource set's state, which alone adds and releases them.

    What one record brought is kept as a run, if it is more than a few; all else one by one.
    """

    __slots__ = ("_changes", "_references", "_runs", "_single", "resident_bytes")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._single: dict[MessageId, Content] = {}
        self._runs: dict[LogIndex, _Run] = {}
        """By the index of the record that brought them."""
        self.resident_bytes = 0
        """Of properties and bodies that are not away."""
        self._references: dict[MessageId, tuple[int, int]] = {}
        """(durable, transient) references; absent means (1, 0), which nearly all have."""

    # --- asking ---

    def __len__(self) -> int:
        return len(self._single) + sum([run.left for run in self._runs.values()])

    def __contains__(self, message_id: MessageId) -> bool:
        return self.find(message_id) is not None

    def find(self, message_id: MessageId) -> Content | None:
        """A content, whether or not its body is away; None if there is none."""
        content = self._single.get(message_id)
        if content is None:
            run = self._runs.get(index_of(message_id))
            if run is not None:
                return run.get(message_id)
        return content

    def of(self, ids: Sequence[MessageId]) -> list[Content]:
        """These contents, all of which are here."""
        single = self._single
        if not self._runs:
            return [single[message_id] for message_id in ids]
        if type(ids) is range:
            run = self._runs.get(index_of(ids.start))
            if run is not None:
                return run.contents[ids.start - run.first : ids.stop - run.first]  # type: ignore[return-value]
        return [self.find(message_id) for message_id in ids]  # type: ignore[misc]

    def find_all(self, ids: Sequence[MessageId]) -> list[Content | None]:
        """What `find` says of each of these neighbours, which came with one record; nothing at all if all of them are gone."""
        run = self._runs.get(index_of(ids[0]))
        if run is not None:
            return run.contents[ids[0] - run.first : ids[-1] + 1 - run.first]
        found = [self._single.get(message_id) for message_id in ids]
        return found if any(found) else []

    def items(self) -> Iterator[tuple[MessageId, Content]]:
        """All contents with their ids, in no order."""
        yield from self._single.items()
        for run in self._runs.values():
            for message_id, content in enumerate(run.contents, run.first):
                if content is not None:
                    yield MessageId(message_id), content

    def values(self) -> Iterator[Content]:
        """All contents, in no order."""
        return (content for _, content in self.items())

    def get(self, message_id: MessageId) -> Message | None:
        """The message; None if it is gone or its body is away."""
        content = self.find(message_id)
        return content if type(content) is Message else None

    def total_size(self, ids: Sequence[MessageId]) -> int:
        """Bytes of all these contents, which are here."""
        return size_of_all(self.of(ids))

    # --- coming and going ---

    def add(
        self, ids: Sequence[MessageId], messages: Sequence[Message], durable: int, transient: int, size: int
    ) -> None:
        """New contents of one record, each with that many references, at least one. `size`: bytes of all of them."""
        if len(ids) >= RUN_MIN and type(ids) is range:
            self._runs[index_of(ids[0])] = _Run(ids.start, list(messages), size)
        else:
            self._single.update(zip(ids, messages, strict=True))
        self.resident_bytes += size
        if (durable, transient) != (1, 0):
            self._references.update(dict.fromkeys(ids, (durable, transient)))
        if durable and self._changes.listener is not None:
            self._changes.listener.messages_changed(ids)

    def load(self, message_id: MessageId, content: Content) -> None:
        """One of a snapshot; sizes and references follow with `recount`."""
        self._single[message_id] = content

    def references(self, message_id: MessageId) -> tuple[int, int]:
        """(durable, transient) references of a content that is here."""
        return self._references.get(message_id, (1, 0))

    def is_durable(self, message_id: MessageId) -> bool:
        """Whether a content is here and a durable reference holds it."""
        return self.references(message_id)[0] > 0 and message_id in self

    @property
    def has_transients(self) -> bool:
        """Whether anything but durable references holds any content, or holds it alone: False is certain, True is not."""
        return bool(self._references)

    def transient_ids(self) -> set[MessageId]:
        """Contents that no durable reference holds."""
        return {message_id for message_id, (durable, _) in self._references.items() if not durable}

    def recount(self, durable: dict[MessageId, int], transient: dict[MessageId, int]) -> None:
        """Replace all counts: a restoration has counted anew. Every content must have one."""
        self._references = {}
        self.resident_bytes = 0
        for message_id, content in self.items():
            if type(content) is Message:
                self.resident_bytes += size_of(content)
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
            self._remove(message_id)
            self._references.pop(message_id, None)
        if was_durable != (durable > 0) and self._changes.listener is not None:
            self._changes.listener.messages_changed((message_id,))

    def hold(self, message_id: MessageId, is_durable: bool) -> None:
        """One more reference."""
        durable, transient = self.references(message_id)
        self.set_references(message_id, durable + is_durable, transient + (not is_durable))

    def release(self, ids: Sequence[MessageId], is_durable: bool) -> None:
        """One reference less to each; contents without any are gone."""
        if self._references or not is_durable:
            for message_id in ids:
                durable, transient = self.references(message_id)
                self.set_references(message_id, durable - is_durable, transient - (not is_durable))
            return
        if self._changes.listener is not None:
            self._changes.listener.messages_changed(ids)
        run = self._runs.get(index_of(ids[0])) if type(ids) is range else None
        if run is None:
            for message_id in ids:
                self._remove(message_id)
        elif run.left == len(ids):
            del self._runs[index_of(ids[0])]
            self.resident_bytes -= run.resident_bytes
        else:
            begin, end = ids[0] - run.first, ids[-1] + 1 - run.first
            size = _resident_bytes(run.contents[begin:end])
            run.contents[begin:end] = [None] * len(ids)
            run.left -= len(ids)
            run.resident_bytes -= size
            self.resident_bytes -= size

    def _remove(self, message_id: MessageId) -> None:
        content = self._single.pop(message_id, None)
        if content is None:
            self._replace(message_id, None)
        elif type(content) is Message:
            self.resident_bytes -= len(content.body) + len(content.properties)

    # --- bodies ---

    def drop(self, ids: Sequence[MessageId], with_checksums: bool = True) -> None:
        """Let bodies go and keep sizes and checksums; nothing for an unknown message. Without checksums nothing can be restored,
        and the state compares as another.
        """
        run = self._runs.get(index_of(ids[0])) if type(ids) is range else None
        if run is None:
            for message_id in ids:
                content = self.find(message_id)
                if type(content) is Message:
                    self._replace(message_id, without_body(content, with_checksums))
            return
        begin, end = ids[0] - run.first, ids[-1] + 1 - run.first
        whole = run.contents[begin:end]
        size = _resident_bytes(whole)
        run.contents[begin:end] = [content and without_body(content, with_checksums) for content in whole]
        run.resident_bytes -= size
        self.resident_bytes -= size

    def restore(self, message_id: MessageId, message: Message) -> None:
        """Bring a dropped body back; nothing for an unknown message. Another content than was dropped is our own bug."""
        content = self.find(message_id)
        if type(content) is DroppedMessage:
            assert without_body(message) == content, f"message {message_id} came back changed"
            self._replace(message_id, message)

    def _replace(self, message_id: MessageId, content: Content | None) -> None:
        """Another form of a content that is here, or, of one in a run, its end."""
        if content is not None and message_id in self._single:
            more = _resident_bytes((content,)) - _resident_bytes((self._single[message_id],))
            self._single[message_id] = content
        else:
            index = index_of(message_id)
            run = self._runs[index]
            offset = message_id - run.first
            before = run.contents[offset]
            assert before is not None, f"message {message_id} is not here"
            more = _resident_bytes((content,)) - _resident_bytes((before,))
            run.contents[offset] = content
            run.resident_bytes += more
            if content is None:
                run.left -= 1
                if not run.left:
                    del self._runs[index]
        self.resident_bytes += more


def _resident_bytes(contents: Iterable[Content | None]) -> int:
    return sum(
        [len(content.body) + len(content.properties) for content in contents if type(content) is Message]
    )
