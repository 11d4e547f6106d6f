"""How much a request may be made of: a parser makes an object of each of its fields, however few bytes they take.

Law: what has more fields than a request needs is refused before it is parsed, so nobody's millions of empty messages become
gigabytes. Of what is malformed the parser says so: it makes nothing behind that, as nothing is looked at here.
"""

from collections.abc import Iterator
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from lockstep.core.errors import ErrorCode, LimitReached
from lockstep.runtime.wire import FIXED_BYTES, LENGTH_DELIMITED, VARINT, read_varint

FIELDS_MAX = 200_000
"""Of a request: ten commands of the largest that there are; parsed in some 20 ms, and kept in some 20 MiB."""
LOOKED_BYTES_MIN = 64 << 10
"""Of a call's only request: less has not as many fields as take long."""
STREAM_LOOKED_BYTES_MIN = 512 << 10
"""Of a stream's: these are clients' batches, and nearly all are smaller. Those are parsed in 15 ms at most, whatever they have,
and who decodes them counts what is made of each command."""
_FIELDS_A_STEP = 2_000
_PACKED_BYTES = 32
"""Numbers that follow each other cost as much as a field for so many bytes."""

_Table = dict[int, Any]
"""Of a message: number of a field -> the table of the messages that it has, or None for numbers."""
_tables: dict[str, _Table] = {}


def check_fields(kind: type[Message], data: bytes | memoryview, fields_max: int = FIELDS_MAX) -> None:
    """As `look_at_fields`, in one step."""
    for _ in look_at_fields(kind, data, fields_max):
        pass


def look_at_fields(
    kind: type[Message], data: bytes | memoryview, fields_max: int = FIELDS_MAX
) -> Iterator[None]:
    """Raises `LimitReached` TOO_LARGE for a serialised message of that kind with more fields, its messages' included.

    Yields where a step may end.
    """
    table, at, end, left = _table_of(cast(Descriptor, kind.DESCRIPTOR)), 0, len(data), fields_max
    outer: list[tuple[int, _Table]] = []
    till_yield = _FIELDS_A_STEP
    try:
        while True:
            if left < 0:
                name = kind.__name__
                text = f"a {name} of more than {fields_max} fields"
                raise LimitReached("fields_max", ErrorCode.TOO_LARGE, text, kind=name)
            while at >= end:
                if not outer:
                    return
                end, table = outer.pop()
            left -= 1
            till_yield -= 1
            if not till_yield:
                till_yield = _FIELDS_A_STEP
                yield
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = read_varint(data, at - 1)
            wire_type = tag & 7
            if wire_type == LENGTH_DELIMITED:
                size = data[at]
                at += 1
                if size >= 0x80:
                    if (high := data[at]) < 0x80:  # Nearly always: no call for it.
                        size += (high - 1) << 7
                        at += 1
                    else:
                        size, at = read_varint(data, at - 1)
                if at + size > end:
                    return
                within = table.get(tag >> 3, _OPAQUE)
                if within is _OPAQUE:
                    at += size
                elif within is None:
                    left -= size // _PACKED_BYTES
                    at += size
                else:
                    outer.append((end, table))
                    end, table = at + size, within
            elif wire_type == VARINT:
                while data[at] >= 0x80:
                    at += 1
                at += 1
            else:
                at += FIXED_BYTES.get(wire_type, 0)
    except IndexError:
        return


_OPAQUE = object()
"""Bytes, texts, and what is not known here."""


def _table_of(descriptor: Descriptor) -> _Table:
    table = _tables.get(descriptor.full_name)
    if table is None:
        table = _tables[descriptor.full_name] = {}
        for field in descriptor.fields:
            if field.message_type is not None:
                table[field.number] = _table_of(field.message_type)
            elif field.type not in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING):
                table[field.number] = None
    return table
