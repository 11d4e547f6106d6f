"""A snapshot in blocks: messages and entries of a state for a newcomer, as the store keeps them, without a look at each.

Law: of a record that brought messages either all that is there lies in blocks, or each has an item of its own, because a body is
away or no durable reference holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from itertools import groupby

from lockstep.core.block_cutting import (
    EntryCutting,
    cut_messages,
    durable_entries,
    message_runs,
    messages_block,
)
from lockstep.core.content import Content
from lockstep.core.content_shelf import ContentRecord
from lockstep.core.ids import MessageId
from lockstep.core.item_blocks import EntryRunValue, entries_block
from lockstep.core.item_values import encode_content
from lockstep.core.items import Item, message_key
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.records import Message
from lockstep.core.state_captures import LOOKED_AT, CapturedContents, CapturedEntries, EntriesPiece


def message_blocks(captured: CapturedContents) -> Iterator[Item]:
    """All contents; values are encoded as they are asked for."""
    for is_together, alike in groupby(_records(captured), lambda record: record[0]):
        if is_together:
            yield from _blocks(record for _, record, _ in alike)
            continue
        for _, (ids, contents), transient in alike:
            for message_id, content in zip(ids, _each(contents), strict=True):
                yield Item(message_key(message_id), encode_content(content), message_id not in transient)


def _records(captured: CapturedContents) -> Iterator[tuple[bool, ContentRecord, Set[MessageId]]]:
    """Whether each may lie in blocks, and which of its contents no durable reference holds."""
    while not captured.is_over:
        shelf = captured.next()
        if shelf is not None:
            for record in shelf.records():
                transient = shelf.transient_among(record[0])
                yield not transient and _is_together(record), record, transient


def _is_together(record: ContentRecord) -> bool:
    """Whether it may lie in blocks, if all of it is durable."""
    _, contents = record
    if isinstance(contents, PackedMessages):
        return contents.encoded is not None
    return set(map(type, contents)) == {Message}


def _blocks(records: Iterable[ContentRecord]) -> Iterator[Item]:
    runs = (run for ids, messages in records for run in message_runs(ids, messages))  # type: ignore[arg-type]
    for block in cut_messages(runs):
        yield messages_block(block[-1].ids[-1], block)


def _each(contents: Iterable[Content] | PackedMessages) -> Iterable[Content]:
    return contents.unpack() if isinstance(contents, PackedMessages) else contents


def entry_blocks(captured: CapturedEntries) -> Iterator[Item | None]:
    """The durable entries of all queues; None where much was looked at and nothing found."""
    looked_at = 0
    for queue, pieces in groupby(_pieces(captured), lambda piece: piece.queue):
        cutting = EntryCutting()
        for piece in pieces:
            looked_at += piece.cost
            for block in cutting.add(_durable_runs(piece)):
                yield entries_block(queue, block[-1].positions[-1], block)
                looked_at = 0
            if looked_at >= LOOKED_AT:
                yield None
                looked_at = 0
        for block in cutting.rest():
            yield entries_block(queue, block[-1].positions[-1], block)


def _pieces(captured: CapturedEntries) -> Iterator[EntriesPiece]:
    while (piece := captured.next()) is not None:
        yield piece


def _durable_runs(piece: EntriesPiece) -> Iterator[EntryRunValue]:
    return durable_entries(*piece[2:])
