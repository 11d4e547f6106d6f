"""Contents: what messages carry, once however many queues and buffers hold it, and gone with the last that does.

Law: a content is here exactly while a queue entry or an open transaction's buffer refers to it. It is durable exactly while a
durable one does: then its item belongs to the durable snapshot. Bodies may be away (dropped, to be read back from the store).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter

from lockstep.core.content import Content, DroppedMessage, size_of, size_of_all, without_body
from lockstep.core.content_runs import ContentRun
from lockstep.core.ids import LogIndex, MessageId, QueueId, index_of
from lockstep.core.items import Changes
from lockstep.core.packed_messages import RUN_MIN, PackedMessages
from lockstep.core.records import Message

ContentRecord = tuple[Sequence[MessageId], Sequence[Content] | PackedMessages]
"""What is there of the contents that one record brought, all in a run or all alone."""


class Contents:
    """All message contents of one resource set's state, which alone adds and releases them.

    What one record brought is kept as a run, all else one by one.
    """

    __slots__ = ("_changes", "_length", "_references", "_runs", "_single", "resident_bytes")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._single: dict[MessageId, Content] = {}
        self._runs: dict[LogIndex, ContentRun] = {}
        """By the index of the record that brought them."""
        self._length = 0
        self.resident_bytes = 0
        """Of properties and bodies that are not away."""
        self._references: dict[MessageId, tuple[int, int]] = {}
        """(durable, transient) references; absent means (1, 0), which nearly all have."""

    # --- asking ---

    def __len__(self) -> int:
        return self._length

    def __contains__(self, message_id: MessageId) -> bool:
        if message_id in self._single:
            return True
        run = self._runs.get(index_of(message_id))
        return run is not None and run.has(message_id)

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

    def packed(self, ids: Sequence[MessageId]) -> PackedMessages | None:
        """These neighbours, which came with one record, if all of it is here, is together still and has its bodies."""
        run = self._runs.get(index_of(ids[0]))
        if run is None or run.count != len(ids) or run.packed is None or run.packed.encoded is None:
            return None
        return run.packed

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
            for message_id, content in enumerate(run.looked_at(), run.first):
                if content is not None:
                    yield MessageId(message_id), content

    def records(self) -> Iterator[ContentRecord]:
        """All contents as they are now, by the records that brought them, in their order; only references are copied now."""
        runs = [(run.first, run.packed or list(run.looked_at())) for run in self._runs.values()]
        return _records(sorted(self._single.items()), sorted(runs, key=itemgetter(0)))

    def queues_of_expiring(self) -> set[QueueId]:
        """Where messages with an end went, or will go with their transactions."""
        found: set[QueueId] = set()
        alone = [run.looked_at() for run in self._runs.values() if run.packed is None]
        for content in chain(self._single.values(), *alone):
            if content is not None and content.expires_ms:
                found.update(content.queues)
        return found

    def values(self) -> Iterator[Content]:
        """All contents, in no order."""
        return (content for _, content in self.items())

    def get(self, message_id: MessageId) -> Message | None:
        """The message; None if it is gone or its body is away."""
        content = self.find(message_id)
        return content if type(content) is Message else None

    def total_size(self, ids: Sequence[MessageId]) -> int:
        """Bytes of all these contents, which are here."""
        run = self._runs.get(index_of(ids.start)) if type(ids) is range else None
        if run is not None:
            return run.size_of(ids[0] - run.first, ids[-1] + 1 - run.first)
        return size_of_all(self.of(ids))

    # --- coming and going ---

    def add(
        self,
        ids: Sequence[MessageId],
        messages: Sequence[Message] | PackedMessages,
        durable: int,
        transient: int,
        size: int,
    ) -> None:
        """New contents of one record, each with that many references, at least one. `size`: bytes of all of them."""
        if len(ids) >= RUN_MIN and type(ids) is range:
            self._runs[index_of(ids[0])] = ContentRun(ids.start, messages, size)
        else:
            assert not isinstance(messages, PackedMessages), "one alone is not packed"
            self._single.update(zip(ids, messages, strict=True))
        self._length += len(ids)
        self.resident_bytes += size
        if (durable, transient) != (1, 0):
            self._references.update(dict.fromkeys(ids, (durable, transient)))
        if durable and self._changes.listener is not None:
            self._changes.listener.messages_changed(ids)

    def load(self, message_id: MessageId, content: Content) -> None:
        """One of a snapshot; what is counted follows with `recount`."""
        self._single[message_id] = content

    def load_run(self, first: MessageId, contents: Sequence[Content] | PackedMessages) -> None:
        """The same of neighbours: of a record that has no run yet, or behind all of its run."""
        run = self._runs.get(index_of(first))
        if run is None:
            self._runs[index_of(first)] = ContentRun.restored(first, contents)
        else:
            run.extend(first, contents)

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

    def recount(self, durable: Mapping[MessageId, int], transient: Mapping[MessageId, int]) -> None:
        """Replace all counts, which are of contents that are here: a restoration has counted anew. Each must have one."""
        counted = len(durable.keys() | transient.keys()) if transient else len(durable)
        self._length = len(self._single) + sum([run.left for run in self._runs.values()])
        assert counted == self._length, f"{self._length} contents, references to {counted}"
        self._references = {message_id: (count, 0) for message_id, count in durable.items() if count != 1}
        for message_id, count in transient.items():
            self._references[message_id] = durable.get(message_id, 0), count
        self.resident_bytes = sum([run.resident_bytes for run in self._runs.values()])
        for content in self._single.values():
            if type(content) is Message:
                self.resident_bytes += size_of(content)

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
            return
        self._length -= len(ids)
        if run.left == len(ids):
            del self._runs[index_of(ids[0])]
            self.resident_bytes -= run.resident_bytes
        else:
            self.resident_bytes -= run.remove(ids[0] - run.first, ids[-1] + 1 - run.first)

    def _remove(self, message_id: MessageId) -> None:
        self._length -= 1
        content = self._single.pop(message_id, None)
        if content is None:
            run = self._runs[index_of(message_id)]
            place = message_id - run.first
            self.resident_bytes -= run.remove(place, place + 1)
            if not run.left:
                del self._runs[index_of(message_id)]
        elif type(content) is Message:
            self.resident_bytes -= size_of(content)

    # --- bodies ---

    def drop(self, ids: Sequence[MessageId], with_checksums: bool = True) -> None:
        """Let bodies go and keep sizes and checksums; nothing for an unknown message. Without checksums nothing can be restored,
        and the state compares as another.
        """
        run = self._runs.get(index_of(ids[0])) if type(ids) is range else None
        if run is not None and not with_checksums and len(ids) == run.count:
            self.resident_bytes -= run.resident_bytes
            run.forget_bodies()
            return
        for message_id in ids:
            content = self.find(message_id)
            if type(content) is Message:
                self._replace(message_id, without_body(content, with_checksums))

    def restore(self, message_id: MessageId, message: Message) -> None:
        """Bring a dropped body back; nothing for an unknown message. Another content than was dropped is our own bug."""
        content = self.find(message_id)
        if type(content) is DroppedMessage:
            assert without_body(message) == content, f"message {message_id} came back changed"
            self._replace(message_id, message)

    def _replace(self, message_id: MessageId, content: Content) -> None:
        """Another form of a content that is here: with its body, or without."""
        before = self._single.get(message_id)
        if before is None:
            self.resident_bytes += self._runs[index_of(message_id)].replace(message_id, content)
            return
        self._single[message_id] = content
        self.resident_bytes += size_of(content) if type(content) is Message else -size_of(before)


def _records(
    alone: list[tuple[MessageId, Content]], runs: list[tuple[int, PackedMessages | list[Content | None]]]
) -> Iterator[ContentRecord]:
    """Of what is alone, and of runs, both ascending."""
    together = (_of_run(first, run) for first, run in runs)
    apart = (_of_pairs(pairs) for _, pairs in groupby(alone, lambda pair: index_of(pair[0])))
    return merge(together, apart, key=lambda record: record[0][0])


def _of_run(first: int, run: PackedMessages | list[Content | None]) -> ContentRecord:
    if isinstance(run, PackedMessages):
        return range(first, first + len(run)), run  # type: ignore[return-value]
    return _of_pairs((MessageId(number), content) for number, content in enumerate(run, first) if content)


def _of_pairs(pairs: Iterable[tuple[MessageId, Content]]) -> ContentRecord:
    there = list(pairs)
    return [message_id for message_id, _ in there], [content for _, content in there]
