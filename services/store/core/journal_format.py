"""Bytes of the journal: segment headers and group headers around the primary's unchanged frames (DESIGN 5).

Law: what one sync made durable is one *group*, and its header says so. A crash may leave any sectors of the group that was under
way, so a whole frame behind a broken one proves nothing while both are of that group; a valid *group header* behind a broken
group proves that the broken one had been synced before. A header names its own segment, offset and disk: bytes that look like one
(a message whose body is a journal) are never taken for it.

Layout (little-endian). Segment: magic 4s, version u8, 3 reserved, salt u32, number u64, file bytes u64, CRC-32C u32 of
all before. Group: magic 4s, version u8, 3 reserved, salt u32, body bytes u32, segment u64, offset u64, commit index u64,
CRC-32C u32 of all before; then the frames. A group without frames only records a commit index. Where a group would begin and
zeros are instead, as many as its header has, is the end; behind them may be anything, such as groups of the segment that a file
was before.
"""

import struct
from typing import NamedTuple

import google_crc32c

from lockstep.core.ids import DiskId, LogIndex

VERSION = 1
SEGMENT_MAGIC = b"LKSS"
GROUP_MAGIC = b"LKSG"
_SEGMENT = struct.Struct("<4sB3xIQQ")
_GROUP = struct.Struct("<4sB3xIIQQQ")
_NUMBER_AT = 16
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size
GROUP_HEADER_BYTES = _GROUP.size + _CRC.size
END = bytes(GROUP_HEADER_BYTES)
"""Written behind a segment's header and behind each group, as far as there is room; the next group overwrites it."""


class GroupHeader(NamedTuple):
    """What a group says of itself."""

    body_bytes: int
    """Of the frames behind the header; 0: none."""
    commit_index: LogIndex
    """Highest that the store knew when it wrote the group."""


def end_behind(offset: int, room: int, page_bytes: int) -> bytes:
    """Written at `offset`, behind a header or a group, where `room` bytes are left: `END`, and zeros up to the next page."""
    behind = offset + len(END)
    return bytes(min(len(END) + -behind % page_bytes, room))


def salt_of(disk: DiskId) -> int:
    """The number in all headers of a disk, so that those of another (before a re-format) mean nothing."""
    return int(google_crc32c.value(disk.encode()))


def encode_segment_header(salt: int, number: int, size_bytes: int) -> bytes:
    head = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, salt, number, size_bytes)
    return head + _CRC.pack(google_crc32c.value(head))


def decode_segment_header(data: bytes, salt: int, number: int) -> int | None:
    """The size in bytes that segment `number` of this disk was made with; None if `data` is not its header."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    _, _, _, _, size_bytes = _SEGMENT.unpack_from(data)
    is_valid = data[:SEGMENT_HEADER_BYTES] == encode_segment_header(salt, number, size_bytes)
    return int(size_bytes) if is_valid else None


def encode_group_header(
    salt: int, number: int, offset: int, body_bytes: int, commit_index: LogIndex
) -> bytes:
    head = _GROUP.pack(GROUP_MAGIC, VERSION, salt, body_bytes, number, offset, commit_index)
    return head + _CRC.pack(google_crc32c.value(head))


def decode_group_header(data: bytes, at: int, salt: int, number: int, offset: int) -> GroupHeader | None:
    """The header at `data[at:]`, which lies at `offset` of segment `number`; None if there is no valid one."""
    if data[at : at + 4] != GROUP_MAGIC or len(data) - at < GROUP_HEADER_BYTES:
        return None
    head = data[at : at + _GROUP.size]
    (crc,) = _CRC.unpack_from(data, at + _GROUP.size)
    if crc != google_crc32c.value(head):
        return None
    _, version, its_salt, body_bytes, its_number, its_offset, commit_index = _GROUP.unpack(head)
    if (version, its_salt, its_number, its_offset) != (VERSION, salt, number, offset):
        return None
    return GroupHeader(body_bytes, LogIndex(commit_index))


def has_group_header(data: bytes, offset: int, salt: int, number: int) -> bool:
    """Whether a valid group header begins anywhere in `data`, which was read at `offset` of segment `number`."""
    at, wanted = data.find(GROUP_MAGIC), number.to_bytes(8, "little")
    while at >= 0:
        # There may be thousands of another segment: these are told apart at once.
        is_its = data[at + _NUMBER_AT : at + _NUMBER_AT + 8] == wanted
        if is_its and decode_group_header(data, at, salt, number, offset + at) is not None:
            return True
        at = data.find(GROUP_MAGIC, at + 1)
    return False
