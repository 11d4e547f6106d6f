"""Bytes from outside to protobuf messages, and big bytes into messages for others.

Law: whatever bytes come, the result is a message or `Rejected`; nothing else is raised.
"""

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from lockstep.core.errors import ErrorCode, Rejected

_LENGTH_DELIMITED = 2
"""Protobuf's wire type of everything that begins with its size."""
_Message = TypeVar("_Message", bound=Message)


def parse(message: _Message, data: bytes) -> _Message:
    """Fills a new message and returns it; raises `Rejected` (INVALID_ARGUMENT) for bytes that are none of its kind."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        kind = type(message).__name__
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"{len(data)} bytes are no {kind}", kind=kind) from error
    return message


def serialize_with(
    message: Message, embedded: FieldDescriptor, field: FieldDescriptor, values: Iterable[bytes]
) -> bytes:
    """The serialised `message`, with `values` in a repeated bytes field of a message that is embedded in it.

    They are copied once, where filling them in and serialising copies them three times. Each is a piece of its own of the
    embedded message, behind what `message` has of it: parsers merge the pieces, of a oneof's member too, and join what is
    repeated (protobuf's encoding, Last One Wins).
    """
    parts = [message.SerializeToString()]
    for value in values:
        size = len(value)
        head = _head_of_bytes(field, size)
        parts += (_head_of_bytes(embedded, len(head) + size), head, value)
    return b"".join(parts)


def _head_of_bytes(field: FieldDescriptor, size: int) -> bytes:
    """What stands before `size` bytes of a field: bytes, or an embedded message."""
    return _varint(field.number << 3 | _LENGTH_DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
    """As protobuf has numbers: seven bits in each byte, the lowest first, and a bit that says whether more follow."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
