"""A snapshot in blocks: messages and entries of a state for a newcomer, as the store keeps them, without a look at each.

Law: of a record that brought messages either all that is there lies in blocks, or each has an item of its own, because a body is
away or no durable reference holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from lockstep.core.block_cutting import (
    cut_entries,
    cut_messages,
    durable_entries,
    message_runs,
    messages_block,
)
from lockstep.core.content import Content
from lockstep.core.contents import ContentRecord
from lockstep.core.ids import LogIndex, MessageId, index_of
from lockstep.core.item_blocks import entries_block
from lockstep.core.item_values import encode_content
from lockstep.core.items import Item, message_key
from lockstep.core.packed_messages import PackedMessages
from lockstep.core.queues import Queue
from lockstep.core.records import Message

if TYPE_CHECKING:
    from lockstep.core.set_state import SetState


def capture_message_blocks(state: SetState) -> Iterator[Item]:
    """All contents; values are encoded as they are asked for."""
    transient = state.contents.transient_ids()
    mixed = set(map(index_of, transient))
    records = state.contents.records()
    return (item for part in _message_parts(records, transient, mixed) for item in part)


def _message_parts(
    records: Iterator[ContentRecord], transient: set[MessageId], mixed: set[LogIndex]
) -> Iterator[Iterable[Item]]:
    for is_together, alike in groupby(records, partial(_is_together, mixed)):
        if is_together:
            yield _blocks(alike)
        else:
            yield (
                Item(message_key(message_id), encode_content(content), message_id not in transient)
                for ids, contents in alike
                for message_id, content in zip(ids, _each(contents), strict=True)
            )


def _is_together(mixed: set[LogIndex], record: ContentRecord) -> bool:
    """Whether it may lie in blocks."""
    ids, contents = record
    if index_of(ids[0]) in mixed:
        return False
    if isinstance(contents, PackedMessages):
        return contents.encoded is not None
    return set(map(type, contents)) == {Message}


def _blocks(records: Iterable[ContentRecord]) -> Iterator[Item]:
    runs = (run for ids, messages in records for run in message_runs(ids, messages))  # type: ignore[arg-type]
    for block in cut_messages(runs):
        yield messages_block(block[-1].ids[-1], block)


def _each(contents: Iterable[Content] | PackedMessages) -> Iterable[Content]:
    return contents.unpack() if isinstance(contents, PackedMessages) else contents


def capture_entry_blocks(state: SetState) -> Iterator[Item]:
    """The durable entries of all queues."""
    parts = [_entry_blocks(queue) for _, queue in sorted(state.queues.by_id.items()) if queue.is_durable]
    return (item for part in parts for item in part)


def _entry_blocks(queue: Queue) -> Iterator[Item]:
    counts, expiries = dict(queue.delivery_counts), dict(queue.expiries)
    runs = durable_entries(queue.all_pieces(), counts, expiries, set(queue.transient_positions))
    queue_id = queue.id
    return (entries_block(queue_id, block[-1].positions[-1], block) for block in cut_entries(runs))
