"""Frames: batches of records as the journal holds them and as streams carry them (DESIGN 5).

Law: a frame is serialised once, by the primary that wrote it, and passed on unchanged. All records of one command are in one
frame, and a frame is whole or absent in every journal: so no command is ever half there, but for those that do much in parts,
each of which is harmless alone (a purge, a reject). The durable part is what stores write; the transient part goes to the memory
of backups only, and leaves just its indexes in the journal.

Layout of the durable part (little-endian): magic 4s, version u8, flags u8, reign u16, payload bytes u32, epoch u64, first
index u64, last index u64, commit index u64, time u64 (ms), CRC-32C u32 of all before it and of the payload; then the payload, a
MessagePack array of [offset from first index, record]. The transient part is such an array alone.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple, TypeVar

import google_crc32c
import msgspec

from lockstep.core.epoch_table import UNKNOWN_REIGN
from lockstep.core.ids import Epoch, LogIndex, QueueId, TimeMs
from lockstep.core.records import AnyRecord, AppliedRecord, Message, PackedRecord, Publish

MAGIC = b"LKSF"
VERSION = 1
_HEADER = struct.Struct("<4sBBHIQQQQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
FRAME_BYTES_MAX = 128 * 1024 * 1024
"""Content of one frame: beyond it what a record has beside that might not fit into one message of a stream any more, and a frame
that no stream carries holds up its set for ever, whoever leads."""
_ENCODER = msgspec.msgpack.Encoder()
_decode_whole = msgspec.msgpack.Decoder(list[tuple[int, AnyRecord]]).decode
_decode_packed = msgspec.msgpack.Decoder(list[tuple[int, PackedRecord]]).decode
_MUCH_BYTES = 4 << 20
"""A frame of so much has a command of so much, for others end where a command fills them."""
_PIECE_BYTES_MIN = 64 << 10
"""A body from this size on is a piece of its own; its size takes four bytes then."""
_QUEUES_MIN = 64
"""So many queues that neighbours go to are a piece, which is made once."""
_PUBLISH_TAG, _PUBLISH_FIELDS = Publish.__struct_config__.tag, Publish.__struct_fields__
_MESSAGE_FIELDS = Message.__struct_fields__
_CHECKED_BYTES = 128 << 10
"""So much is copied at once to sum it up, which stays in the processor's cache."""
_Record = TypeVar("_Record", bound=AppliedRecord)
LoggedRecord = AnyRecord | msgspec.Raw
"""A record on its way into a frame: as it is, or serialised already (`encode_record`)."""


class BadFrame(ValueError):
    """Bytes that are not a whole, undamaged frame."""


class FrameHeader(NamedTuple):
    """What a store knows of a frame without decoding it."""

    payload_bytes: int
    epoch: Epoch
    first: LogIndex
    last: LogIndex
    commit_index: LogIndex
    """The commit index that the primary knew when it wrote the frame."""
    time_ms: TimeMs
    """When the primary wrote it; monotone within a resource set, through changes of the primary too (DESIGN 7)."""
    reign: int = UNKNOWN_REIGN
    """Whose epoch it is (`reign_of`)."""

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.payload_bytes


class Frame(NamedTuple):
    """One frame in memory: header, serialised durable part, serialised transient part (b"" when there is none)."""

    header: FrameHeader
    durable: bytes
    transient: bytes


@dataclass(slots=True)
class IndexedRecord:
    """A record at its place in the log."""

    index: LogIndex
    record: AnyRecord
    is_durable: bool


def encode_frame(
    epoch: Epoch,
    first: LogIndex,
    commit_index: LogIndex,
    time_ms: TimeMs,
    records: Sequence[tuple[LoggedRecord, bool] | None],
    content_bytes: int = 0,
    reign: int = UNKNOWN_REIGN,
) -> Frame:
    """Serialise `records`, pairs of (record, is durable) at consecutive indexes from `first`, None where an index has none; at
    least one. `content_bytes`: about what they have; what is big among much of it is copied only once. `reign`: the writer's.
    """
    assert records, "a frame holds at least one record"
    durable = [(offset, each[0]) for offset, each in enumerate(records) if each is not None and each[1]]
    transient = [(offset, each[0]) for offset, each in enumerate(records) if each is not None and not each[1]]
    encode = _encode_whole if content_bytes < _MUCH_BYTES else _encode_in_pieces
    pieces = encode(durable)
    payload_bytes = sum(map(len, pieces))
    header = FrameHeader(
        payload_bytes, epoch, first, LogIndex(first + len(records) - 1), commit_index, time_ms, reign
    )
    head = _HEADER.pack(
        MAGIC, VERSION, 0, reign, payload_bytes, epoch, first, header.last, commit_index, time_ms
    )
    crc = google_crc32c.value(head)
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    return Frame(
        header,
        b"".join((head, _CRC.pack(crc), *pieces)),
        b"".join(encode(transient)) if transient else b"",
    )


def encode_record(record: Publish) -> msgspec.Raw:
    """A record as its frame will have it: so many names of queues take their time, and a frame is made in one step."""
    is_wide = len(record.messages[0].queues) >= _QUEUES_MIN
    return msgspec.Raw(b"".join(_pieces_of_publish(record)) if is_wide else _ENCODER.encode(record))


def _encode_whole(records: Sequence[tuple[int, LoggedRecord]]) -> tuple[bytes, ...]:
    return (_ENCODER.encode(records),)


def _encode_in_pieces(records: Sequence[tuple[int, LoggedRecord]]) -> tuple[bytes, ...]:
    """The same bytes, with big bodies as they are."""
    return tuple(_pieces_of(records))


def _pieces_of(records: Sequence[tuple[int, LoggedRecord]]) -> Iterator[bytes]:
    yield _array_head(len(records))
    for offset, record in records:
        if type(record) is not Publish:
            yield _ENCODER.encode((offset, record))
            continue
        yield _array_head(2) + _ENCODER.encode(offset)
        yield from _pieces_of_publish(record)


def _pieces_of_publish(record: Publish) -> Iterator[bytes]:
    yield _array_head(1 + len(_PUBLISH_FIELDS)) + _ENCODER.encode(_PUBLISH_TAG)
    for name in _PUBLISH_FIELDS:
        if name == "messages":
            yield from _pieces_of_messages(record.messages)
        else:
            yield _ENCODER.encode(getattr(record, name))


def _pieces_of_messages(messages: Sequence[Message]) -> Iterator[bytes]:
    yield _array_head(len(messages))
    queues: Sequence[QueueId] | None = None
    encoded_queues = b""
    for message in messages:
        is_big = len(message.body) >= _PIECE_BYTES_MIN
        if not is_big and len(message.queues) < _QUEUES_MIN:
            yield _ENCODER.encode(message)
            continue
        yield _array_head(len(_MESSAGE_FIELDS))
        for name in _MESSAGE_FIELDS:
            if name == "queues":
                if message.queues is not queues:
                    queues, encoded_queues = message.queues, _ENCODER.encode(message.queues)
                yield encoded_queues
            elif name == "body" and is_big:
                yield b"\xc6" + len(message.body).to_bytes(4, "big")
                yield message.body
            else:
                yield _ENCODER.encode(getattr(message, name))


def _array_head(count: int) -> bytes:
    """As MessagePack has it."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def decode_header(data: bytes | memoryview, offset: int = 0) -> FrameHeader:
    """Read a frame's header at `offset`, without checking the sum; raises `BadFrame` if these are not a header's bytes."""
    if len(data) - offset < HEADER_BYTES:
        raise BadFrame(f"{len(data) - offset} bytes are less than a header")
    magic, version, _, reign, payload_bytes, epoch, first, last, commit, time_ms = _HEADER.unpack_from(
        data, offset
    )
    if magic != MAGIC or version != VERSION or last < first or first < 1:
        raise BadFrame(f"no frame header at {offset}")
    return FrameHeader(payload_bytes, epoch, first, last, commit, time_ms, reign)


def check_frame(data: bytes | memoryview, offset: int = 0) -> FrameHeader:
    """Read and verify the whole durable part at `offset`; raises `BadFrame` when it is cut short or its sum is wrong."""
    header = decode_header(data, offset)
    if len(data) - offset < header.frame_bytes:
        raise BadFrame(f"frame {header.first}..{header.last} is cut short")
    sum_at = offset + _HEADER.size
    (expected,) = _CRC.unpack_from(data, sum_at)
    crc, at, end = (
        google_crc32c.value(bytes(data[offset:sum_at])),
        offset + HEADER_BYTES,
        offset + header.frame_bytes,
    )
    while end - at > _CHECKED_BYTES:
        crc = google_crc32c.extend(crc, bytes(data[at : at + _CHECKED_BYTES]))
        at += _CHECKED_BYTES
    crc = google_crc32c.extend(crc, bytes(data[at:end]))
    if crc != expected:
        raise BadFrame(f"frame {header.first}..{header.last} has a wrong checksum")
    return header


def read_frame(durable: bytes, transient: bytes) -> Frame:
    """A frame from its two serialised parts, verified; raises `BadFrame`."""
    header = check_frame(durable)
    if len(durable) != header.frame_bytes:
        raise BadFrame(
            f"{len(durable) - header.frame_bytes} bytes behind frame {header.first}..{header.last}"
        )
    return Frame(header, durable, transient)


def decode_records(frame: Frame) -> list[IndexedRecord]:
    """All records of a frame in log order, durable and transient; raises `BadFrame` for what is no record."""
    return [IndexedRecord(*each) for each in _decode(frame, _decode_whole)]


def decode_packed(frame: Frame) -> list[tuple[LogIndex, PackedRecord, bool]]:
    """The same, as (index, record, is durable); what is wrong inside of packed messages is found when they are wanted."""
    return _decode(frame, _decode_packed)


def _decode(
    frame: Frame, decode: Callable[[bytes | memoryview], list[tuple[int, _Record]]]
) -> list[tuple[LogIndex, _Record, bool]]:
    first, last = frame.header.first, frame.header.last
    try:
        durable = decode(memoryview(frame.durable)[HEADER_BYTES:])
        transient = decode(frame.transient) if frame.transient else []
    except msgspec.MsgspecError as error:
        raise BadFrame(f"frame {first}..{last}: {error}") from error
    # Without a call for each that names its type.
    records: list[tuple[LogIndex, _Record, bool]] = [
        (first + offset, record, True)  # type: ignore[misc]
        for offset, record in durable
    ]
    if transient:
        records += [(LogIndex(first + offset), record, False) for offset, record in transient]
        records.sort(key=itemgetter(0))
    if records and not first <= records[0][0] <= records[-1][0] <= last:
        raise BadFrame(f"frame {first}..{last} holds records outside its range")
    return records
