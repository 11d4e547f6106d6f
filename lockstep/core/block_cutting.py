"""What goes into one block of a snapshot each: runs of messages, and of entries of one queue, in ascending order."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from lockstep.core.content import size_of, size_of_all
from lockstep.core.deaths import Deaths
from lockstep.core.ids import MessageId, QueuePosition, neighbours
from lockstep.core.item_blocks import DeadEntryRunValue, EntryRunValue, encode_messages, messages_block_key
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.records import Message
from lockstep.core.store_protocol import StateItem

BLOCK_ITEMS_MAX = 128
"""A place fits a byte."""
BLOCK_BYTES_MAX = 128 << 10
"""Of contents, unless a single one is bigger: so much is read to have one of them."""


class MessageRun(NamedTuple):
    """Contents of neighbouring ids."""

    first: MessageId
    length: int
    size: int
    """Bytes of properties and bodies."""
    messages: Sequence[Message] | msgspec.Raw
    """Raw: MessagePack, an array of them; not of more than fit one block."""

    @property
    def ids(self) -> Sequence[MessageId]:
        return range(self.first, self.first + self.length)  # type: ignore[return-value]

    @classmethod
    def of(cls, first: int, messages: Sequence[Message]) -> "MessageRun":
        return cls(MessageId(first), len(messages), size_of_all(messages), messages)


def message_runs(ids: Sequence[MessageId], messages: Sequence[Message] | PackedMessages) -> list[MessageRun]:
    """Messages of one record, which have their bodies, as runs; ascending."""
    if isinstance(messages, PackedMessages):
        assert messages.encoded is not None, "messages without bodies go into no block"
        size = sum(messages.alike.sizes)
        if fits_block(len(ids), size):
            return [MessageRun(ids[0], len(ids), size, msgspec.Raw(messages.encoded))]
        return [MessageRun.of(ids[0], messages.unpack())]  # type: ignore[arg-type]  # they have bodies
    if len(ids) == 1:
        return [MessageRun(ids[0], 1, size_of(messages[0]), messages)]
    runs: list[MessageRun] = []
    place = 0
    for run in neighbours(ids):
        runs.append(MessageRun.of(run[0], messages[place : place + len(run)]))
        place += len(run)
    return runs


def durable_entries(
    pieces: Iterable[tuple[Sequence[QueuePosition], Sequence[MessageId]]],
    counts: Mapping[QueuePosition, int],
    expiries: Mapping[QueuePosition, int],
    transient: Collection[QueuePosition],
    deaths: Mapping[QueuePosition, Deaths],
    annotations: Mapping[QueuePosition, bytes],
) -> Iterator[EntryRunValue]:
    """Those of a durable queue's entries that are durable, as runs; `pieces`, as `Queue.pieces` gives them, and what the queue
    has beside them.
    """
    is_plain = not (counts or expiries or transient or deaths or annotations)
    for positions, ids in pieces:
        if is_plain and type(positions) is range and type(ids) is range:
            yield EntryRunValue(QueuePosition(positions[0]), MessageId(ids[0]), len(positions))
            continue
        for position, message_id in zip(positions, ids, strict=True):
            if position not in transient:
                count, expires_ms = counts.get(position, 0), expiries.get(position)
                died, said = deaths.get(position, ()), annotations.get(position, b"")
                if died or said:
                    yield DeadEntryRunValue(position, message_id, 1, count, expires_ms, died, said)
                else:
                    yield EntryRunValue(position, message_id, 1, count, expires_ms)


def cut_messages(runs: Iterable[MessageRun]) -> Iterator[list[MessageRun]]:
    """What goes into one block each, of runs in ascending order."""
    block: list[MessageRun] = []
    count = size = 0
    for run in runs:
        if not fits_block(count + run.length, size + run.size):
            if block:
                yield block
                block, count, size = [], 0, 0
            if not fits_block(run.length, run.size):
                yield from ([piece] for piece in _cut(run))
                continue
        block.append(run)
        count += run.length
        size += run.size
    if block:
        yield block


def fits_block(length: int, size: int) -> bool:
    """Whether so many messages, of so many bytes together, may be in one block."""
    return length <= BLOCK_ITEMS_MAX and size <= BLOCK_BYTES_MAX


def _cut(run: MessageRun) -> Iterator[MessageRun]:
    """Pieces of a run that does not fit one block."""
    assert not isinstance(run.messages, msgspec.Raw), "what does not fit a block is not packed"
    begin = size = 0
    for place, message in enumerate(run.messages):
        more = size_of(message)
        if place > begin and (place - begin == BLOCK_ITEMS_MAX or size + more > BLOCK_BYTES_MAX):
            yield MessageRun.of(run.first + begin, run.messages[begin:place])
            begin, size = place, 0
        size += more
    yield MessageRun.of(run.first + begin, run.messages[begin:])


def cut_entries(runs: Iterable[EntryRunValue]) -> Iterator[list[EntryRunValue]]:
    """The same of entries of one queue."""
    cutting = EntryCutting()
    yield from cutting.add(runs)
    yield from cutting.rest()


class EntryCutting:
    """Entries of one queue on their way into blocks, for whoever has them piece by piece."""

    def __init__(self) -> None:
        self._block: list[EntryRunValue] = []
        self._room = BLOCK_ITEMS_MAX

    def add(self, runs: Iterable[EntryRunValue]) -> Iterator[list[EntryRunValue]]:
        """Further ones, in ascending order; gives the blocks that are full."""
        for run in runs:
            rest = run
            while rest.count > self._room:
                if self._room:
                    self._block.append(replace(rest, count=self._room))
                    rest = replace(
                        rest,
                        first=QueuePosition(rest.first + self._room),
                        message=MessageId(rest.message + self._room),
                        count=rest.count - self._room,
                    )
                yield self._block
                self._block, self._room = [], BLOCK_ITEMS_MAX
            self._block.append(rest)
            self._room -= rest.count

    def rest(self) -> Iterator[list[EntryRunValue]]:
        """There are no more."""
        if self._block:
            yield self._block


def messages_block(last: MessageId, runs: Sequence[MessageRun]) -> StateItem:
    """Contents, in ascending order of their ids."""
    value = encode_messages([(run.first, run.messages) for run in runs])
    return StateItem(messages_block_key(last), value, True)
