"""Answering those who are not the writer: fences, inspection, contents of messages (DESIGN 5, R2, R11).

Law: a reader gets nothing whose checksum is wrong, and nothing beyond the commit index but contents that it names itself, as a
primary does whose bodies are away. None of it changes anything, except that a fence makes an epoch durable. Items are of one
state, whatever is consolidated meanwhile: who cannot have the rest of it is refused, and reads again. Their readers take turns,
as those of frames (`frame_reading`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import assert_never

from lockstep.core.errors import ErrorCode
from lockstep.core.frames import decode_header
from lockstep.core.ids import LogIndex, MessageId, index_of
from lockstep.core.ids import place as packed_place
from lockstep.core.item_values import decode_content
from lockstep.core.records import Message, Publish
from services.store.core.blocks import kept_messages, scan_of
from services.store.core.disk import Lane
from services.store.core.frame_reading import read_frames
from services.store.core.journal import Journal
from services.store.core.loading import read_run, records_in
from services.store.core.opening import raise_epoch, read_set
from services.store.core.procedure import Procedure, compute
from services.store.core.requests import (
    ContentsRead,
    FenceSet,
    ItemsRead,
    ReadContents,
    ReadFrames,
    ReadItems,
    SetFenced,
    SurveySet,
)
from services.store.core.stored_set import Phase, ReaderWaiting, StoredSet


def fence(the: StoredSet, reader: ReaderWaiting) -> Procedure[None]:
    """Make the epoch durable and tell where the log stands. Runs in the journal lane, like all that writes the meta file."""
    if the.phase is Phase.UNREAD:
        yield from read_set(the)
    if refusal := the.refusal_of_epoch(reader.request.epoch):
        reader.refuse(the, *refusal)
        return
    yield from raise_epoch(the, reader.request.epoch)
    end = the.journal.end if the.journal else LogIndex(0)
    reader.reply(
        the, SetFenced(the.meta.highest_epoch, end, the.commit_told if the.damage else the.commit_index)
    )


def answer_reader(the: StoredSet, reader: ReaderWaiting) -> Procedure[None]:
    """Answer anything but a fence. Runs in the read lane."""
    request = reader.request
    if isinstance(request, ReadFrames):
        journal = _readable(the, reader)
        if journal is not None:
            yield from read_frames(the, reader, request, journal)
        return
    the.loads += 1
    try:
        yield from the.wait_for(Lane.SNAPSHOT)
        journal = _readable(the, reader)
        if journal is None:
            return
        match request:
            case ReadItems():
                yield from _read_items(the, reader, request)
            case ReadContents():
                yield from _read_contents(the, reader, request, journal)
            case FenceSet() | SurveySet():
                raise AssertionError("fences and surveys are of the journal lane")
            case _:
                assert_never(request)
    finally:
        the.loads -= 1


def _readable(the: StoredSet, reader: ReaderWaiting) -> Journal | None:
    """The set's journal; None if the reader was refused.

    From here on the set may be closed, or an installation may wait to begin: what this lane reads stays until it is done.
    """
    if the.phase is not Phase.OPEN or the.journal is None:
        reader.refuse(the, ErrorCode.UNAVAILABLE, "the set is not open")
        return None
    if reader.request.epoch < the.meta.highest_epoch:
        text = f"epoch {reader.request.epoch} is below {the.meta.highest_epoch}"
        reader.refuse(the, ErrorCode.WRONG_EPOCH, text)
        return None
    return the.journal


def _read_items(the: StoredSet, reader: ReaderWaiting, request: ReadItems) -> Procedure[None]:
    """Answer with one chunk; what is left waits for its next turn."""
    scan = reader.scan or (yield from scan_of(the, request.from_key))
    if scan.is_over:
        text = "the snapshot is another one than that of the first items: read it again"
        reader.refuse(the, ErrorCode.UNAVAILABLE, text)
        return
    if scan.index > the.commit_index:
        text = f"the snapshot is at {scan.index}, and {the.commit_index} is known to be committed"
        reader.refuse(the, ErrorCode.UNAVAILABLE, text)
        return
    items, is_last = yield from scan.some(the.limits.chunk_bytes)
    if reader.stream in the.closed_streams:
        return
    reader.reply(the, ItemsRead(items, scan.index, is_last))
    if not is_last:
        the.unsent[reader.stream] += 1
        the.readers.append(ReaderWaiting(reader.stream, request, scan))


def _read_contents(
    the: StoredSet, reader: ReaderWaiting, request: ReadContents, journal: Journal
) -> Procedure[None]:
    """Answer for the first ones, as many as one answer has room for: whoever lacks the others asks for them."""
    asked = request.messages[: the.limits.contents_max]
    found, unread = yield from _find_contents(the, journal, asked)
    if asked and asked[0] in unread:  # Others, which lie before it, would be all of the answer.
        asked = asked[:1]
        found, unread = yield from _find_contents(the, journal, asked)
    count = next((place for place, message in enumerate(asked) if message in unread), len(asked))
    reader.reply(the, ContentsRead(tuple(found.get(message) for message in asked[:count])))


def _find_contents(
    the: StoredSet, journal: Journal, messages: Sequence[MessageId]
) -> Procedure[tuple[dict[MessageId, tuple[bytes, bytes]], set[MessageId]]]:
    """Of these messages, the lowest first, from the snapshot, and what is not there from the journal's frames; and those that
    were not looked for, because there was no room left. In memory: what there is room for, and one run of frames.
    """
    found: dict[MessageId, tuple[bytes, bytes]] = {}
    kept, unread = yield from kept_messages(the, messages, the.limits.contents_bytes)
    for message_id, value in kept.items():
        content = decode_content(value)
        if isinstance(content, Message):
            found[message_id] = content.properties, content.body
    room = the.limits.contents_bytes - sum(map(len, kept.values()))
    missing = sorted({message for message in messages if message not in found and message not in unread})
    index = LogIndex(-1)
    for place, message_id in enumerate(missing):
        if index_of(message_id) <= index:
            continue
        if room <= 0:
            unread.update(missing[place:])
            break
        run = journal.frames_behind(
            LogIndex(index_of(message_id) - 1), journal.end, the.limits.consolidated_bytes
        )
        if run is None:
            break
        frames = yield from read_run(run)
        contents = yield from compute(partial(_contents_in, frames, missing))
        room -= sum(len(properties) + len(body) for properties, body in contents.values())
        found.update(contents)
        index = run.last
    return found, unread


def _contents_in(
    frames: Sequence[bytes], ascending: Sequence[MessageId]
) -> dict[MessageId, tuple[bytes, bytes]]:
    """Those of these messages that the frames carry."""
    return dict(found for durable in frames for found in _contents_of(durable, ascending))


def _contents_of(
    durable: bytes, ascending: Sequence[MessageId]
) -> Iterator[tuple[MessageId, tuple[bytes, bytes]]]:
    header = decode_header(durable)
    first = bisect_left(ascending, packed_place(header.first, 0))
    wanted = set(ascending[first : bisect_left(ascending, packed_place(header.last + 1, 0))])
    if not wanted:
        return
    for indexed in records_in(durable):
        record = indexed.record
        if isinstance(record, Publish):
            for place, message in enumerate(record.messages):
                message_id = MessageId(packed_place(indexed.index, record.ordinal + place))
                if message_id in wanted:
                    yield message_id, (message.properties, message.body)
