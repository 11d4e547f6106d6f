"""SASL frames: what crosses the connection until it is known who is there (AMQP 1.0, 5.3; types: part 1).

Law: whatever the bytes, reading them takes time and memory in proportion to their number, and raises `MalformedFrame` or nothing.
Only the types that these performatives are made of are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
HEADER_BYTES = len(SASL_HEADER)

FRAME_BYTES_MIN = 8
SENT_FRAME_BYTES_MAX = 512
"""What every peer takes (MIN-MAX-FRAME-SIZE, 5.3.1)."""

_SASL_TYPE = 1
_MECHANISMS, _INIT, _CHALLENGE, _RESPONSE, _OUTCOME = range(0x40, 0x45)
_DESCRIPTORS = {b"amqp:sasl-init:list": _INIT, b"amqp:sasl-response:list": _RESPONSE}
"""The symbolic ones of what a client sends."""

_NULL, _LIST0, _ULONG0 = 0x40, 0x45, 0x44
_SMALL_ULONG, _ULONG = 0x53, 0x80
_UBYTE = 0x50
_BINARY8, _STRING8, _SYMBOL8 = 0xA0, 0xA1, 0xA3
_BINARY32, _STRING32, _SYMBOL32 = 0xB0, 0xB1, 0xB3
_LIST8, _LIST32, _ARRAY32 = 0xC0, 0xD0, 0xF0
_BINARY, _STRING, _SYMBOL = "binary", "string", "symbol"
_VARIABLE = {
    _BINARY8: (_BINARY, 1),
    _BINARY32: (_BINARY, 4),
    _STRING8: (_STRING, 1),
    _STRING32: (_STRING, 4),
    _SYMBOL8: (_SYMBOL, 1),
    _SYMBOL32: (_SYMBOL, 4),
}
"""Type, and bytes of the length before it."""


class MalformedFrame(ValueError):
    """Bytes that are no SASL frame."""


class OutcomeCode(IntEnum):
    """AMQP 1.0, 5.3.3.6: those that the proxy gives."""

    OK = 0
    AUTH = 1


@dataclass(frozen=True, slots=True)
class SaslInit:
    """The client has chosen a mechanism."""

    mechanism: str
    initial_response: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SaslResponse:
    """The client answers a challenge."""

    response: bytes = field(repr=False)


def read_frame(frame: bytes) -> SaslInit | SaslResponse:
    """The performative in one whole frame of at least `FRAME_BYTES_MIN` bytes, its size included; raises `MalformedFrame`."""
    body_starts = 4 * frame[4]
    if frame[5] != _SASL_TYPE or not FRAME_BYTES_MIN <= body_starts <= len(frame):
        raise MalformedFrame("not a SASL frame")
    reader = _Reader(frame, body_starts)
    descriptor = reader.descriptor()
    count = reader.list_count()
    if descriptor == _INIT and 1 <= count <= 3:
        mechanism = reader.field(_SYMBOL)
        response = reader.field(_BINARY) if count > 1 else None
        hostname = reader.field(_STRING) if count > 2 else None
        reader.check_end()
        if mechanism is not None:
            _decoded(hostname or b"", "utf-8")
            return SaslInit(_decoded(mechanism, "ascii"), response)
    elif descriptor == _RESPONSE and count == 1:
        response = reader.field(_BINARY)
        reader.check_end()
        if response is not None:
            return SaslResponse(response)
    raise MalformedFrame("not a performative that a client sends")


def mechanisms_frame(names: Sequence[str]) -> bytes:
    """sasl-mechanisms: what the client may choose from, the preferred ones first; at least one."""
    symbols = b"".join(len(name).to_bytes(4) + name.encode("ascii") for name in names)
    array = len(names).to_bytes(4) + bytes([_SYMBOL32]) + symbols
    return _frame(_MECHANISMS, bytes([_ARRAY32]) + len(array).to_bytes(4) + array)


def challenge_frame(data: bytes) -> bytes:
    """sasl-challenge."""
    return _frame(_CHALLENGE, _binary(data))


def outcome_frame(code: OutcomeCode, additional_data: bytes = b"") -> bytes:
    """sasl-outcome; without data the field is left out."""
    fields = [bytes([_UBYTE, code])]
    if additional_data:
        fields.append(_binary(additional_data))
    return _frame(_OUTCOME, *fields)


def _binary(data: bytes) -> bytes:
    return bytes([_BINARY32]) + len(data).to_bytes(4) + data


def _frame(descriptor: int, *fields: bytes) -> bytes:
    values = b"".join(fields)
    listed = bytes([_LIST32]) + (len(values) + 4).to_bytes(4) + len(fields).to_bytes(4) + values
    body = bytes([0, _SMALL_ULONG, descriptor]) + listed
    frame = (FRAME_BYTES_MIN + len(body)).to_bytes(4) + bytes([2, _SASL_TYPE, 0, 0]) + body
    assert len(frame) <= SENT_FRAME_BYTES_MAX, "names, nonces and salts are limited so that it fits"
    return frame


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"not {encoding}") from error


class _Reader:
    """Reads the values of one body in their order; every method raises `MalformedFrame`."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def descriptor(self) -> int | None:
        """Of a described type, as a number; None for a symbol that is not known."""
        if self._number(1) != 0:
            raise MalformedFrame("not a described type")
        code = self._number(1)
        if code == _ULONG0:
            return 0
        if code in (_SMALL_ULONG, _ULONG):
            return self._number(1 if code == _SMALL_ULONG else 8)
        kind, width = _VARIABLE.get(code, ("", 0))
        if kind == _SYMBOL:
            return _DESCRIPTORS.get(self._bytes(self._number(width)))
        raise MalformedFrame("not a descriptor")

    def list_count(self) -> int:
        """How many values the list has that begins here and fills the rest."""
        code = self._number(1)
        if code == _LIST0:
            return 0
        if code not in (_LIST8, _LIST32):
            raise MalformedFrame("not a list")
        width = 1 if code == _LIST8 else 4
        if self._number(width) != len(self._data) - self._offset:
            raise MalformedFrame("the list does not fill the frame")
        return self._number(width)

    def field(self, kind: str) -> bytes | None:
        """The next value, of that type or null."""
        code = self._number(1)
        if code == _NULL:
            return None
        found, width = _VARIABLE.get(code, ("", 0))
        if found != kind:
            raise MalformedFrame(f"not a {kind}")
        return self._bytes(self._number(width))

    def check_end(self) -> None:
        if self._offset != len(self._data):
            raise MalformedFrame("something follows the last value")

    def _number(self, width: int) -> int:
        return int.from_bytes(self._bytes(width))

    def _bytes(self, count: int) -> bytes:
        end = self._offset + count
        if end > len(self._data):
            raise MalformedFrame("the frame ends within a value")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken
