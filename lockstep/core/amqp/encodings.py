"""The primitive encodings of AMQP 1.0 (1.6): how far a value reaches, and what a simple one is.

Law: whatever the bytes are, the answer is a value or `Rejected`, after bounded work. What is inside of lists, maps, arrays and
described values is stepped over by its size and never looked at.
"""

import struct
from collections.abc import Callable

from lockstep.core.errors import ErrorCode, Rejected

SIZE_IN_1 = -1
SIZE_IN_4 = -4
_UNKNOWN = -100
DESCRIBED_MAX = 16
"""Descriptors within descriptors: a value has one, and nobody needs more than a few."""


class Symbol(str):
    """A symbolic value (AMQP 1.0, 1.6.21); equal to the string of the same characters."""

    __slots__ = ()


class Uuid(bytes):
    """The 16 bytes of a UUID."""

    __slots__ = ()


class Opaque:
    """A value that is there and is compared with nothing: a decimal, a compound or a described one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "OPAQUE"


OPAQUE = Opaque()

Simple = None | bool | int | float | str | bytes | Opaque


def _text(encoding: str) -> Callable[[bytes], str]:
    return lambda data: data.decode(encoding)


def _integer(is_signed: bool) -> Callable[[bytes], int]:
    return lambda data: int.from_bytes(data, "big", signed=is_signed)


def _number(layout: str) -> Callable[[bytes], float]:
    unpack = struct.Struct(layout).unpack
    return lambda data: float(unpack(data)[0])


def _boolean(data: bytes) -> bool:
    if data[0] > 1:
        raise ValueError("a boolean is 0 or 1")
    return data[0] == 1


def _symbol(data: bytes) -> Symbol:
    return Symbol(data.decode("ascii"))


def _opaque(_: bytes) -> Opaque:
    return OPAQUE


_UNSIGNED, _SIGNED = _integer(False), _integer(True)
_ENCODINGS: dict[int, tuple[int, Callable[[bytes], Simple]]] = {
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: 0),  # uint
    0x44: (0, lambda _: 0),  # ulong
    0x45: (0, _opaque),  # list
    0x50: (1, _UNSIGNED),  # ubyte
    0x51: (1, _SIGNED),  # byte
    0x52: (1, _UNSIGNED),  # smalluint
    0x53: (1, _UNSIGNED),  # smallulong
    0x54: (1, _SIGNED),  # smallint
    0x55: (1, _SIGNED),  # smalllong
    0x56: (1, _boolean),
    0x60: (2, _UNSIGNED),  # ushort
    0x61: (2, _SIGNED),  # short
    0x70: (4, _UNSIGNED),  # uint
    0x71: (4, _SIGNED),  # int
    0x72: (4, _number(">f")),
    0x73: (4, _text("utf-32-be")),  # char
    0x74: (4, _opaque),  # decimal32
    0x80: (8, _UNSIGNED),  # ulong
    0x81: (8, _SIGNED),  # long
    0x82: (8, _number(">d")),
    0x83: (8, _SIGNED),  # timestamp: milliseconds
    0x84: (8, _opaque),  # decimal64
    0x94: (16, _opaque),  # decimal128
    0x98: (16, Uuid),
    0xA0: (SIZE_IN_1, bytes),
    0xA1: (SIZE_IN_1, _text("utf-8")),
    0xA3: (SIZE_IN_1, _symbol),
    0xB0: (SIZE_IN_4, bytes),
    0xB1: (SIZE_IN_4, _text("utf-8")),
    0xB3: (SIZE_IN_4, _symbol),
    0xC0: (SIZE_IN_1, _opaque),  # list
    0xC1: (SIZE_IN_1, _opaque),  # map
    0xD0: (SIZE_IN_4, _opaque),
    0xD1: (SIZE_IN_4, _opaque),
    0xE0: (SIZE_IN_1, _opaque),  # array
    0xF0: (SIZE_IN_4, _opaque),
}
WIDTHS = [_ENCODINGS[code][0] if code in _ENCODINGS else _UNKNOWN for code in range(256)]
"""By constructor: the bytes that follow it, or `SIZE_IN_1` or `SIZE_IN_4` where as many bytes say how many."""

UINT = frozenset({0x43, 0x52, 0x70})
STRING = frozenset({0xA1, 0xB1})
EMPTY_LIST = 0x45
LISTS = frozenset({EMPTY_LIST, 0xC0, 0xD0})
MAPS = frozenset({0xC1, 0xD1})
NULL = 0x40


def malformed(why: str, at: int) -> Rejected:
    """What is raised for bytes that are no AMQP; `at` counts bytes."""
    return Rejected(ErrorCode.INVALID_ARGUMENT, f"malformed AMQP message: {why} at byte {at}", at=at)


def contents(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the contents of the primitive value whose constructor is at `at` begin and end.

    Raises `Rejected` if that is behind `end`, if `raw` ends amid its size, or there is no primitive value.
    """
    width = WIDTHS[raw[at]] if at < end else _UNKNOWN
    first = at + 1
    if width == SIZE_IN_1:
        first += 1
        last = first + raw[at + 1] if first <= end else first
    elif width == SIZE_IN_4:
        first += 4
        if first > len(raw):
            raise malformed("a value is cut off", at)
        last = first + int.from_bytes(raw[at + 1 : first], "big")
    elif width >= 0:
        last = first + width
    else:
        raise malformed("no value of a known type", at)
    if last > end:
        raise malformed("a value is cut off", at)
    return first, last


def skip(raw: bytes, at: int, end: int) -> int:
    """Where the value at `at` ends, a described one included; raises `Rejected` as `contents` does."""
    values, described = 1, 0
    while values:
        if at < end and raw[at] == 0:
            described += 1
            if described > DESCRIBED_MAX:
                raise malformed("too many descriptors of one value", at)
            values += 1
            at += 1
        else:
            at = contents(raw, at, end)[1]
            values -= 1
    return at


def decode(raw: bytes, at: int, end: int) -> tuple[Simple, int]:
    """The value at `at`, and where it ends. `OPAQUE` for one that is not simple. Raises `Rejected`."""
    if at < end and raw[at] == 0:
        return OPAQUE, skip(raw, at, end)
    first, last = contents(raw, at, end)
    try:
        return _ENCODINGS[raw[at]][1](raw[first:last]), last
    except ValueError as error:  # UnicodeDecodeError is one
        raise malformed(f"a value that does not fit its type ({error})", at) from None


def members(raw: bytes, at: int, end: int, constructors: frozenset[int]) -> tuple[int, int, int]:
    """A list or map at `at`, as `constructors` say: how many values it has, where the first begins and the last ends.

    Raises `Rejected` for another type, and for more values than it has bytes.
    """
    if at >= end or raw[at] not in constructors:
        raise malformed("not the type that belongs here", at)
    first, last = contents(raw, at, end)
    width = -WIDTHS[raw[at]]
    if width == 0:
        return 0, first, last
    count = int.from_bytes(raw[first : first + width], "big")
    first += width
    if first > last or count > last - first:
        raise malformed("more values than bytes", at)
    return count, first, last
