"""Contents: what messages carry, once however many queues and buffers hold it, and gone with the last that does.

Law: a content is here exactly while a queue entry or an open transaction's buffer refers to it. It is durable exactly while a
durable one does: then its item belongs to the durable snapshot. Bodies may be away (dropped, to be read back from the store).
"""

from collections.abc import Iterator, Sequence

from lockstep.core.captures import Captures
from lockstep.core.content import Content, DroppedMessage, priorities_of, size_of, size_of_all, without_body
from lockstep.core.content_runs import ContentRun
from lockstep.core.content_shelf import SHELF_BITS, Shelf
from lockstep.core.ids import ORDINAL_BITS, MessageId, index_of
from lockstep.core.items import Changes
from lockstep.core.packed_messages import RUN_MIN, PackedMessages
from lockstep.core.records import Message


class Contents:
    """All message contents of one resource set's state, which alone adds and releases them.

    What one record brought is kept as a run, all else one by one; neighbouring records are on one shelf.
    """

    __slots__ = ("_captures", "_changes", "_length", "_referenced", "resident_bytes", "shelves")

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._captures: Captures = changes.captures
        self.shelves: dict[int, Shelf] = {}
        """By the number of the shelf (`SHELF_BITS`); none is empty. Only `Contents` changes one."""
        self._length = 0
        self.resident_bytes = 0
        """Of properties and bodies that are not away."""
        self._referenced = 0
        """Contents that have other references than one durable one."""

    # --- asking ---

    def __len__(self) -> int:
        return self._length

    def __contains__(self, message_id: MessageId) -> bool:
        shelf = self.shelves.get(message_id >> SHELF_BITS)
        if shelf is None:
            return False
        if message_id in shelf.single:
            return True
        run = shelf.runs.get(index_of(message_id))
        return run is not None and run.has(message_id)

    def find(self, message_id: MessageId) -> Content | None:
        """A content, whether or not its body is away; None if there is none."""
        shelf = self.shelves.get(message_id >> SHELF_BITS)
        return shelf.find(message_id) if shelf is not None else None

    def of(self, ids: Sequence[MessageId]) -> list[Content]:
        """These contents, all of which are here."""
        shelves = self.shelves
        if type(ids) is range and ids:
            shelf = shelves[ids.start >> SHELF_BITS]
            run = shelf.runs.get(index_of(ids.start))
            if run is not None:
                return run.contents[ids.start - run.first : ids.stop - run.first]  # type: ignore[return-value]
        try:
            return [shelves[message_id >> SHELF_BITS].single[message_id] for message_id in ids]
        except KeyError:
            return [self.find(message_id) for message_id in ids]  # type: ignore[misc]

    def packed(self, ids: Sequence[MessageId]) -> PackedMessages | None:
        """These neighbours, which came with one record, if all of it is here, is together still and has its bodies."""
        run = self._run_of(ids[0])
        if run is None or run.count != len(ids) or run.packed is None or run.packed.encoded is None:
            return None
        return run.packed

    def find_all(self, ids: Sequence[MessageId]) -> list[Content | None]:
        """What `find` says of each of these neighbours, which came with one record; nothing at all if all of them are gone."""
        shelf = self.shelves.get(ids[0] >> SHELF_BITS)
        if shelf is None:
            return []
        run = shelf.runs.get(index_of(ids[0]))
        if run is not None:
            return run.contents[ids[0] - run.first : ids[-1] + 1 - run.first]
        found = [shelf.single.get(message_id) for message_id in ids]
        return found if any(found) else []

    def _run_of(self, message_id: int) -> ContentRun | None:
        shelf = self.shelves.get(message_id >> SHELF_BITS)
        return shelf.runs.get(index_of(message_id)) if shelf is not None else None

    def items(self) -> Iterator[tuple[MessageId, Content]]:
        """All contents with their ids, in no order."""
        for shelf in self.shelves.values():
            yield from shelf.items()

    def values(self) -> Iterator[Content]:
        """All contents, in no order."""
        return (content for _, content in self.items())

    def get(self, message_id: MessageId) -> Message | None:
        """The message; None if it is gone or its body is away."""
        content = self.find(message_id)
        return content if type(content) is Message else None

    def total_size(self, ids: Sequence[MessageId]) -> int:
        """Bytes of all these contents, which are here."""
        run = self._run_of(ids[0]) if isinstance(ids, range) and ids else None
        if run is not None:
            return run.size_of(ids[0] - run.first, ids[-1] + 1 - run.first)
        return size_of_all(self.of(ids))

    def size_of(self, message_id: MessageId) -> int:
        """Bytes of one content that is here, whether or not its body is away. Nothing is unpacked for it."""
        shelf = self.shelves[message_id >> SHELF_BITS]
        content = shelf.single.get(message_id)
        if content is not None:
            return size_of(content)
        run = shelf.runs[index_of(message_id)]
        begin = message_id - run.first
        return run.size_of(begin, begin + 1)

    def unpacked_for(self, message_id: MessageId) -> int:
        """How many contents are unpacked when somebody asks for this one: all of its run, if that is together still."""
        run = self._run_of(message_id)
        return run.count if run is not None and run.packed is not None else 0

    def priorities(self, ids: Sequence[MessageId]) -> list[int] | None:
        """Of all these contents, which are here; None: each is the default one."""
        run = self._run_of(ids[0]) if isinstance(ids, range) and ids else None
        return None if run is not None and run.packed is not None else priorities_of(self.of(ids))

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
        first, count = ids[0], len(ids)
        shelf = self.shelves.get(first >> SHELF_BITS)
        if shelf is None or self._captures.of_contents:
            shelf = self._shelf_for(first)
        if count >= RUN_MIN and type(ids) is range:
            shelf.runs[first >> ORDINAL_BITS] = ContentRun(first, messages, size)
        else:
            assert not isinstance(messages, PackedMessages), "one alone is not packed"
            shelf.single.update(zip(ids, messages, strict=True))
        self._length += count
        self.resident_bytes += size
        if transient or durable != 1:
            shelf.references.update(dict.fromkeys(ids, (durable, transient)))
            self._referenced += count
        if durable and self._changes.listener is not None:
            self._changes.listener.messages_changed(ids)

    def _shelf_for(self, message_id: MessageId) -> Shelf:
        """Where a content is put that is not there yet."""
        number = message_id >> SHELF_BITS
        shelf = self.shelves.get(number)
        if shelf is None:
            shelf = self.shelves[number] = Shelf()
        elif self._captures.of_contents:
            self._captures.shelf_changes(number, shelf)
        return shelf

    def load(self, message_id: MessageId, content: Content) -> None:
        """One of a snapshot; who refers to it is counted behind it (`restored_references`)."""
        self._shelf_for(message_id).single[message_id] = content
        self._length += 1
        if type(content) is Message:
            self.resident_bytes += size_of(content)

    def load_run(self, first: MessageId, contents: Sequence[Content] | PackedMessages) -> None:
        """The same of neighbours: of a record that has no run yet, or behind all of its run."""
        runs = self._shelf_for(first).runs
        run = runs.get(index_of(first))
        before = run.resident_bytes if run is not None else 0
        if run is None:
            run = runs[index_of(first)] = ContentRun.restored(first, contents)
        else:
            run.extend(first, contents)
        self._length += len(contents)
        self.resident_bytes += run.resident_bytes - before

    def refer(self, message_id: MessageId, durable: int, transient: int) -> None:
        """How many references a content that is here has, as a restoration has counted so far."""
        references = self.shelves[message_id >> SHELF_BITS].references
        self._referenced -= references.pop(message_id, None) is not None
        if (durable, transient) != (1, 0):
            references[message_id] = durable, transient
            self._referenced += 1

    def references(self, message_id: MessageId) -> tuple[int, int]:
        """(durable, transient) references of a content that is here."""
        return self.shelves[message_id >> SHELF_BITS].references.get(message_id, (1, 0))

    def is_durable(self, message_id: MessageId) -> bool:
        """Whether a content is here and a durable reference holds it."""
        return message_id in self and self.references(message_id)[0] > 0

    @property
    def has_transients(self) -> bool:
        """Whether anything but durable references holds any content, or holds it alone: False is certain, True is not."""
        return self._referenced > 0

    def set_references(self, message_id: MessageId, durable: int, transient: int) -> None:
        """Replace the counts of a content that is here; with none left it goes."""
        number = message_id >> SHELF_BITS
        shelf = self.shelves[number]
        if self._captures.of_contents:
            self._captures.shelf_changes(number, shelf)
        before = shelf.references.get(message_id)
        was_durable = before is None or before[0] > 0
        if (durable or transient) and (durable, transient) != (1, 0):
            shelf.references[message_id] = durable, transient
            self._referenced += before is None
        else:
            if before is not None:
                del shelf.references[message_id]
                self._referenced -= 1
            if not durable:
                self._remove(number, shelf, message_id)
        if was_durable != (durable > 0) and self._changes.listener is not None:
            self._changes.listener.messages_changed((message_id,))

    def hold(self, message_id: MessageId, durable: int, transient: int) -> None:
        """So many more references."""
        before = self.references(message_id)
        self.set_references(message_id, before[0] + durable, before[1] + transient)

    def release(self, ids: Sequence[MessageId], is_durable: bool) -> None:
        """One reference less to each; contents without any are gone."""
        if self._referenced or not is_durable:
            for message_id in ids:
                durable, transient = self.references(message_id)
                self.set_references(message_id, durable - is_durable, transient - (not is_durable))
            return
        if self._changes.listener is not None:
            self._changes.listener.messages_changed(ids)
        shelves, captures = self.shelves, self._captures
        if type(ids) is range and ids:
            first, count = ids.start, len(ids)
            number, index = first >> SHELF_BITS, first >> ORDINAL_BITS
            shelf = shelves[number]
            run = shelf.runs.get(index)
            if run is not None:
                if captures.of_contents:
                    captures.shelf_changes(number, shelf)
                self._length -= count
                if run.left != count:
                    self.resident_bytes -= run.remove(first - run.first, ids.stop - run.first)
                    return
                del shelf.runs[index]
                self.resident_bytes -= run.resident_bytes
                if not shelf.runs and not shelf.single:
                    del shelves[number]
                return
        for message_id in ids:
            number = message_id >> SHELF_BITS
            if captures.of_contents:
                captures.shelf_changes(number, shelves[number])
            self._remove(number, shelves[number], message_id)

    def _remove(self, number: int, shelf: Shelf, message_id: MessageId) -> None:
        """A content goes that nothing refers to; a shelf goes with its last."""
        self._length -= 1
        content = shelf.single.pop(message_id, None)
        if content is None:
            run = shelf.runs[index_of(message_id)]
            place = message_id - run.first
            self.resident_bytes -= run.remove(place, place + 1)
            if not run.left:
                del shelf.runs[index_of(message_id)]
        elif type(content) is Message:
            self.resident_bytes -= size_of(content)
        if not shelf.single and not shelf.runs:
            del self.shelves[number]

    def take_apart(self) -> Iterator[int]:
        """Nobody has this state any more: leave nothing, in steps that say what they cost (`taking_apart`)."""
        while self.shelves:
            _, shelf = self.shelves.popitem()
            yield from shelf.take_apart()

    # --- bodies ---

    def drop(self, ids: Sequence[MessageId], with_checksums: bool = True) -> None:
        """Let bodies go and keep sizes and checksums; nothing for an unknown message. Without checksums nothing can be restored,
        and the state compares as another.
        """
        run = self._run_of(ids[0]) if isinstance(ids, range) else None
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
        if isinstance(content, DroppedMessage):
            assert without_body(message) == content, f"message {message_id} came back changed"
            self._replace(message_id, message)

    def _replace(self, message_id: MessageId, content: Content) -> None:
        """Another form of a content that is here: with its body, or without."""
        shelf = self.shelves[message_id >> SHELF_BITS]
        before = shelf.single.get(message_id)
        if before is None:
            self.resident_bytes += shelf.runs[index_of(message_id)].replace(message_id, content)
            return
        shelf.single[message_id] = content
        self.resident_bytes += size_of(content) if type(content) is Message else -size_of(before)
