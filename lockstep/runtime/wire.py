"""Bytes from outside to protobuf messages, and big bytes into messages for others and out of theirs.

Law: whatever bytes come, the result is a message or `Rejected`; nothing else is raised. What is big is not copied on its way
into a message, and on its way out of one once, or in parts where it is very big (`big_bytes`).
"""

from collections.abc import Callable, Generator, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.runtime.big_bytes import copied
from lockstep.runtime.turns import LeftToThread

VARINT, FIXED_64, LENGTH_DELIMITED, FIXED_32 = 0, 1, 2, 5
"""Protobuf's wire types; of everything that begins with its size it is the third."""
FIXED_BYTES = {FIXED_64: 8, FIXED_32: 4}
PIECES_BYTES_MIN = 16 << 10
"""From this size on pieces cost less than a copy."""
_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
"""Numbers that take no more."""
_EMPTY = b"\0"
"""An embedded message without anything in it, behind its tag."""
_FIELDS_A_STEP, _BYTES_A_STEP = 1_000, 1 << 20
"""Of a message that is parsed in steps: a millisecond or two."""
_LOOKS_MAX = 10_000
"""Fields of a message that are looked at; what has more is a parser's work."""
Serialized = bytes | tuple[bytes, ...]
"""A serialised message, whole or in pieces that follow each other."""
_Message = TypeVar("_Message", bound=Message)


def parse(message: _Message, data: bytes | memoryview) -> _Message:
    """Fills a new message and returns it; raises `Rejected` (INVALID_ARGUMENT) for bytes that are none of its kind."""
    try:
        message.ParseFromString(data)  # type: ignore[arg-type]
    except DecodeError as error:
        raise _none_of(message, data) from error
    return message


def parse_answer(message: _Message, data: bytes, whose: str, *, is_read: bool) -> _Message:
    """As `parse`, of an answer: `whose` says who gave it. Nothing is wrong with the question, so bytes that are no answer are
    UNAVAILABLE, and in doubt unless the question was a read (`is_read`): what was asked may have been done.
    """
    try:
        return parse(message, data)
    except Rejected as error:
        kind = Rejected if is_read else InDoubt
        text = f"{whose} has answered what is no answer: {error.message}"
        raise kind(ErrorCode.UNAVAILABLE, text, **error.details) from error


def parse_in_steps(message: _Message, data: bytes | memoryview) -> Generator[LeftToThread, None, _Message]:
    """As `parse`, some of the fields at a time (`in_turns`): of one message many are merged as if they had come together."""
    view, begin, at, fields = memoryview(data), 0, 0, 0
    try:
        while at < len(data):
            at = field_at(data, at)[2]
            fields += 1
            if fields == _FIELDS_A_STEP or at - begin >= _BYTES_A_STEP:
                _merge(message, view[begin:at])
                begin, fields = at, 0
                yield None
    except (IndexError, KeyError):
        pass  # What the parser is given then is none, and it says so.
    return _merge(message, view[begin:])


def _merge(message: _Message, data: memoryview) -> _Message:
    try:
        message.MergeFromString(data)  # type: ignore[arg-type]
    except DecodeError as error:
        raise _none_of(message, data) from error
    return message


def _none_of(message: Message, data: bytes | memoryview) -> Rejected:
    kind = type(message).__name__
    return Rejected(ErrorCode.INVALID_ARGUMENT, f"{len(data)} bytes are no {kind}", kind=kind)


class BytesWithin:
    """Repeated bytes fields of a message that is embedded in another one: what is big in these."""

    def __init__(self, descriptor: Descriptor, embedded: str, *fields: str) -> None:
        """`descriptor`: of the message, whose field `embedded` is a message with the repeated `fields`."""
        outer = descriptor.fields_by_name[embedded]
        assert outer.message_type is not None, f"{embedded} is no message"
        inner = [outer.message_type.fields_by_name[field] for field in fields]
        self._tag = length_tag(outer.number)
        self._head = varint(self._tag)
        members = outer.containing_oneof.fields if outer.containing_oneof is not None else ()
        self._others = {one.number for one in members} - {outer.number}
        """Of these fields a message has one, or has `embedded`: what comes last."""
        self._places = {length_tag(one.number): place for place, one in enumerate(inner)}
        """Of the fields, by the tags of their values."""
        self._value_heads = [varint(tag) for tag in self._places]
        self._values_of = [attrgetter(f"{embedded}.{field}") for field in fields]
        self._none: tuple[Sequence[bytes], ...] = ((),) * len(fields)

    def serialize_with(self, message: Message, *values: Sequence[bytes]) -> Serialized:
        """The serialised `message`, with the `values` of each field behind those that it has of them.

        Those of a field that are small together are put into `message`. Where they are big they stay as they are, pieces of the
        whole. Each is a piece of its own of the embedded message: parsers merge the pieces, of a oneof's member too, and join
        what is repeated (protobuf's encoding, Last One Wins).
        """
        big = list[tuple[bytes, Sequence[bytes]]]()
        for place, each in enumerate(values):
            if not each:
                continue
            if sum(map(len, each)) < PIECES_BYTES_MIN:
                self._values_of[place](message).extend(each)
            else:
                big.append((self._value_heads[place], each))
        head = message.SerializeToString()
        if not big:
            return head
        pieces, own_head = list[bytes](), self._head
        for value_head, each in big:
            for value in each:
                size = len(value)
                inner = value_head + varint(size)
                pieces += (head + own_head + varint(len(inner) + size) + inner, value)
                head = b""
        return tuple(pieces)

    def split_from(self, data: bytes | memoryview) -> tuple[bytes | memoryview, tuple[Sequence[bytes], ...]]:
        """Inverse of `serialize_with`: what is left for a parser, and the values of each field behind those that it finds.

        All is left for it where there is no need to look, or where the bytes are another's or none of a message's.
        """
        if len(data) < PIECES_BYTES_MIN:
            return data, self._none
        rest, values = self._split(data, bytes)
        return rest, values or self._none

    def split_in_steps(
        self, data: bytes | memoryview
    ) -> Generator[LeftToThread, None, tuple[bytes | memoryview, tuple[Sequence[bytes], ...]]]:
        """The same of what is long, in steps (`in_turns`)."""
        rest, in_place = self._split(data, memoryview)
        if not in_place:
            return data, self._none
        values = tuple(list[bytes]() for _ in in_place)
        for copies, views in zip(values, in_place, strict=True):
            for view in views:
                copies.append((yield from copied(view)))
                yield None
        return rest, values

    def _split(
        self, data: bytes | memoryview, made: Callable[[memoryview], Any]
    ) -> tuple[bytes | memoryview, tuple[list[Any], ...]]:
        """`made` of each value; no lists where all is left for a parser."""
        view, rest, values = memoryview(data), bytearray(), tuple([list[Any]() for _ in self._none])
        own_tag, places = self._tag, self._places
        at, end, have_begun, is_there = 0, len(data), False, False
        try:
            for _ in range(_LOOKS_MAX):
                if at >= end:
                    if have_begun and not is_there:
                        rest += self._head + _EMPTY  # It is there, and all that is in it was taken.
                    return bytes(rest), values
                begin = at
                tag, at = read_varint(data, at)
                kind = tag & 7
                if kind == LENGTH_DELIMITED:
                    size, at = read_varint(data, at)
                    inner, at = at, at + size
                    if tag == own_tag:
                        value_tag, place = read_varint(data, inner)
                        if value_tag in places:
                            size, place = read_varint(data, place)
                            if place + size == at <= end:
                                values[places[value_tag]].append(made(view[place:at]))
                                have_begun = True
                                continue
                        if have_begun:
                            return data, ()  # Nobody knows what of it belongs before them.
                        is_there = True
                    elif tag >> 3 in self._others:
                        return data, ()  # It drops what came before it, or goes with what comes.
                elif kind == VARINT:
                    _, at = read_varint(data, at)
                else:
                    at += FIXED_BYTES[kind]
                if at > end:
                    return data, ()
                rest += view[begin:at]
        except (IndexError, KeyError):
            pass
        return data, ()


def varint(number: int) -> bytes:
    """As protobuf has numbers: seven bits in each byte, the lowest first, and a bit that says whether more follow."""
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x200000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def length_tag(number: int) -> int:
    """Of a field that begins with its size."""
    return number << 3 | LENGTH_DELIMITED


def field_at(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """Of the field there: its number if it begins with its size, or else 0; where its content begins, and where it ends, perhaps
    behind all that is here. Raises `IndexError` and `KeyError` for what is no field.
    """
    tag, at = read_varint(data, at)
    kind = tag & 7
    if kind == LENGTH_DELIMITED:
        size, at = read_varint(data, at)
        return tag >> 3, at, at + size
    if kind == VARINT:
        return 0, at, read_varint(data, at)[1]
    return 0, at, at + FIXED_BYTES[kind]


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number there, of up to ten bytes, and where it ends; raises `IndexError` at the end of all."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1  # As most are.
    number, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 62:
            return number, at + 1
        shift += 7
