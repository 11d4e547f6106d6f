"""AMQP 1.0 on the wire for tests: types (part 1), frames and performatives (2.3, 2.7), written by hand.

Law: what is asked for is what is sent, whether it makes sense or not. Encoders return bytes, so a malformed value goes in
wherever a right one does; decoders read what a peer may send and raise `ValueError` for the rest.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
NULL = b"\x40"


class Symbol(str):
    """Encoded as a symbol."""


class Described(NamedTuple):
    """A described value as it was read."""

    descriptor: Any
    value: Any


# --- encoding ---


def boolean(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def ubyte(value: int) -> bytes:
    return struct.pack(">BB", 0x50, value)


def ushort(value: int) -> bytes:
    return struct.pack(">BH", 0x60, value)


def uint(value: int) -> bytes:
    """In its shortest form."""
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else struct.pack(">BI", 0x70, value)


def ulong(value: int) -> bytes:
    """In its shortest form."""
    if value == 0:
        return b"\x44"
    return bytes((0x53, value)) if value < 256 else struct.pack(">BQ", 0x80, value)


def long(value: int) -> bytes:
    return struct.pack(">Bq", 0x81, value)


def double(value: float) -> bytes:
    return struct.pack(">Bd", 0x82, value)


def binary(value: bytes) -> bytes:
    return _variable(0xA0, value)


def string(value: str) -> bytes:
    return _variable(0xA1, value.encode())


def symbol(value: str) -> bytes:
    return _variable(0xA3, value.encode())


def _variable(code: int, value: bytes) -> bytes:
    if len(value) < 256:
        return bytes((code, len(value))) + value
    return struct.pack(">BI", code + 0x10, len(value)) + value


def sequence(*items: bytes) -> bytes:
    """A list."""
    return _compound(0xC0, len(items), b"".join(items))


def mapping(*items: bytes) -> bytes:
    """A map: keys and values in turn."""
    return _compound(0xC1, len(items), b"".join(items))


def _compound(code: int, count: int, content: bytes) -> bytes:
    if len(content) < 255 and count < 256:
        return bytes((code, len(content) + 1, count)) + content
    return struct.pack(">BII", code + 0x10, len(content) + 4, count) + content


def symbols(*values: str) -> bytes:
    """An array of symbols."""
    content = b"\xb3" + b"".join(struct.pack(">I", len(value)) + value.encode() for value in values)
    return struct.pack(">BII", 0xF0, 4 + len(content), len(values)) + content


def described(descriptor: bytes, value: bytes) -> bytes:
    return b"\x00" + descriptor + value


def encode(value: Any) -> bytes:
    """A Python value in the type that it suggests; bytes are taken to be encoded already."""
    match value:
        case bytes():
            return value
        case None:
            return NULL
        case bool():
            return boolean(value)
        case int():
            return uint(value)
        case Symbol():
            return symbol(value)
        case str():
            return string(value)
        case _:
            raise TypeError(f"{type(value)} has to be encoded by hand")


# --- performatives ---

PERFORMATIVES: dict[str, tuple[int, tuple[str, ...]]] = {
    "open": (
        0x10,
        (
            *(
                "container_id",
                "hostname",
                "max_frame_size",
                "channel_max",
                "idle_time_out",
                "outgoing_locales",
            ),
            *("incoming_locales", "offered_capabilities", "desired_capabilities", "properties"),
        ),
    ),
    "begin": (
        0x11,
        (
            *("remote_channel", "next_outgoing_id", "incoming_window", "outgoing_window", "handle_max"),
            *("offered_capabilities", "desired_capabilities", "properties"),
        ),
    ),
    "attach": (
        0x12,
        (
            *(
                "name",
                "handle",
                "role",
                "snd_settle_mode",
                "rcv_settle_mode",
                "source",
                "target",
                "unsettled",
            ),
            *("incomplete_unsettled", "initial_delivery_count", "max_message_size", "offered_capabilities"),
            *("desired_capabilities", "properties"),
        ),
    ),
    "flow": (
        0x13,
        (
            *("next_incoming_id", "incoming_window", "next_outgoing_id", "outgoing_window", "handle"),
            *("delivery_count", "link_credit", "available", "drain", "echo", "properties"),
        ),
    ),
    "transfer": (
        0x14,
        (
            *(
                "handle",
                "delivery_id",
                "delivery_tag",
                "message_format",
                "settled",
                "more",
                "rcv_settle_mode",
            ),
            *("state", "resume", "aborted", "batchable"),
        ),
    ),
    "disposition": (0x15, ("role", "first", "last", "settled", "state", "batchable")),
    "detach": (0x16, ("handle", "closed", "error")),
    "end": (0x17, ("error",)),
    "close": (0x18, ("error",)),
    "sasl_mechanisms": (0x40, ("mechanisms",)),
    "sasl_init": (0x41, ("mechanism", "initial_response", "hostname")),
    "sasl_outcome": (0x44, ("code", "additional_data")),
    "source": (
        0x28,
        (
            *("address", "durable", "expiry_policy", "timeout", "dynamic", "dynamic_node_properties"),
            *("distribution_mode", "filter", "default_outcome", "outcomes", "capabilities"),
        ),
    ),
    "target": (
        0x29,
        (
            *("address", "durable", "expiry_policy", "timeout", "dynamic", "dynamic_node_properties"),
            "capabilities",
        ),
    ),
    "coordinator": (0x30, ("capabilities",)),
    "declare": (0x31, ("global_id",)),
    "discharge": (0x32, ("txn_id", "fail")),
    "declared": (0x33, ("txn_id",)),
    "transactional_state": (0x34, ("txn_id", "outcome")),
    "received": (0x23, ("section_number", "section_offset")),
    "accepted": (0x24, ()),
    "rejected": (0x25, ("error",)),
    "released": (0x26, ()),
    "modified": (0x27, ("delivery_failed", "undeliverable_here", "message_annotations")),
    "error": (0x1D, ("condition", "description", "info")),
    "header": (0x70, ("durable", "priority", "ttl", "first_acquirer", "delivery_count")),
    "properties": (
        0x73,
        (
            *("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type"),
            *("content_encoding", "absolute_expiry_time", "creation_time", "group_id", "group_sequence"),
            "reply_to_group_id",
        ),
    ),
}
"""Name -> descriptor and fields, of performatives and of the other composite types that they carry."""
_NAMES = {code: name for name, (code, _) in PERFORMATIVES.items()}


def symbolic(name: str) -> bytes:
    """The symbolic descriptor of a composite type."""
    return symbol(f"amqp:{name.replace('_', '-')}:list")


def composite(name: str, /, *, descriptor: bytes | None = None, **fields: Any) -> bytes:
    """A performative or another composite value; `descriptor` is the numeric one unless given. Bytes are taken as encoded."""
    code, known = PERFORMATIVES[name]
    unknown = set(fields) - set(known)
    if unknown:
        raise TypeError(f"{name} has no {unknown}")
    items = [encode(fields.get(field)) for field in known]
    while items and items[-1] == NULL:
        del items[-1]
    return described(ulong(code) if descriptor is None else descriptor, sequence(*items))


def frame(
    body: bytes,
    channel: int = 0,
    *,
    kind: int = 0,
    doff: int = 2,
    size: int | None = None,
    extended: bytes = b"",
) -> bytes:
    """A frame (2.3.1); `size` is what it says of itself, the right one unless given."""
    whole = 8 + len(extended) + len(body)
    return struct.pack(">IBBH", whole if size is None else size, doff, kind, channel) + extended + body


def performative(name: str, channel: int = 0, payload: bytes = b"", /, **fields: Any) -> bytes:
    """A frame with a performative."""
    kind = 1 if name.startswith("sasl_") else 0
    return frame(composite(name, **fields) + payload, channel, kind=kind)


def message(body: bytes, *sections: bytes) -> bytes:
    """A message of one data section, behind other sections."""
    return b"".join(sections) + described(ulong(0x75), binary(body))


def request(body: bytes) -> bytes:
    """A message to the coordinator: an amqp-value section (4.5)."""
    return described(ulong(0x77), body)


# --- decoding ---

_FIXED: dict[int, tuple[str, int]] = {
    0x50: (">B", 1),
    0x51: (">b", 1),
    0x52: (">B", 1),
    0x53: (">B", 1),
    0x54: (">b", 1),
    0x55: (">b", 1),
    0x60: (">H", 2),
    0x61: (">h", 2),
    0x70: (">I", 4),
    0x71: (">i", 4),
    0x72: (">f", 4),
    0x73: (">I", 4),
    0x80: (">Q", 8),
    0x81: (">q", 8),
    0x82: (">d", 8),
    0x83: (">q", 8),
}
_CONSTANT = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}


def decode(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value at a place and where it ends. Raises `ValueError`."""
    try:
        return _decode(data, at)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"cut off or malformed: {error}") from error


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    if code != 0:
        return _decode_body(data, at + 1, code)
    descriptor, at = _decode(data, at + 1)
    value, at = _decode(data, at)
    return Described(descriptor, value), at


def _decode_body(data: bytes, at: int, code: int) -> tuple[Any, int]:
    if code in _CONSTANT:
        return _CONSTANT[code], at
    if code == 0x45:
        return [], at
    if code in _FIXED:
        form, width = _FIXED[code]
        return struct.unpack_from(form, data, at)[0], at + width
    if code == 0x56:
        return data[at] == 1, at + 1
    if code == 0x98:
        return data[at : at + 16], at + 16
    size_width = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}.get(code >> 4)
    if size_width is None:
        raise ValueError(f"type {code:#x}")
    width = size_width
    size = int.from_bytes(data[at : at + width])
    end = at + width + size
    if end > len(data):
        raise ValueError("a value beyond the end")
    if code >> 4 in (0xA, 0xB):
        return _text(code, data[at + width : end]), end
    count = int.from_bytes(data[at + width : at + 2 * width])
    return _compound_value(code, data, at + 2 * width, count), end


def _text(code: int, content: bytes) -> Any:
    match code & 0x0F:
        case 0:
            return content
        case 1:
            return content.decode()
        case _:
            return Symbol(content.decode())


def _compound_value(code: int, data: bytes, at: int, count: int) -> Any:
    if count > len(data):
        raise ValueError(f"{count} elements in {len(data)} bytes")
    items = []
    if code >> 4 == 0xE or code >> 4 == 0xF:
        constructor = data[at]
        at += 1
        for _ in range(count):
            item, at = _decode_body(data, at, constructor)
            items.append(item)
        return items
    for _ in range(count):
        item, at = _decode(data, at)
        items.append(item)
    if code in (0xC1, 0xD1):
        return dict(zip(items[::2], items[1::2], strict=True))
    return items


@dataclass(frozen=True, slots=True)
class Composite:
    """A composite value as it was read; a field that was not sent is None."""

    name: str
    fields: dict[str, Any]

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]


def named(value: Any) -> Composite:
    """A described list as what it is. Raises `ValueError` if it is nothing known."""
    name = _NAMES.get(value.descriptor) if isinstance(value, Described) else None
    if name is None or not isinstance(value.value, list):
        raise ValueError(f"no composite value: {value!r}")
    known = PERFORMATIVES[name][1]
    values: Sequence[Any] = value.value + [None] * (len(known) - len(value.value))
    return Composite(name, dict(zip(known, values, strict=False)))


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that was received."""

    channel: int
    performative: Composite | None
    """None: an empty frame."""
    payload: bytes

    @property
    def name(self) -> str:
        return "empty" if self.performative is None else self.performative.name

    def __getitem__(self, field: str) -> Any:
        assert self.performative is not None
        return self.performative.fields[field]

    @property
    def condition(self) -> str | None:
        """Of the error that a close, end or detach carries; or of a state that is `rejected`."""
        error = self["state"] if self.name == "disposition" else self["error"]
        if error is not None and named(error).name == "rejected":
            error = named(error)["error"]
        return None if error is None else str(named(error)["condition"])


def read_frame(data: bytes) -> Frame:
    """A whole frame. Raises `ValueError`."""
    body = data[4 * data[4] :]
    channel = int.from_bytes(data[6:8])
    if not body:
        return Frame(channel, None, b"")
    value, end = decode(body)
    return Frame(channel, named(value), body[end:])


def frames(data: bytes) -> Iterator[Frame]:
    """All frames of a stream behind its header. Raises `ValueError`."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        if size < 8 or at + size > len(data):
            raise ValueError(f"a frame of {size} bytes, and {len(data) - at} are there")
        yield read_frame(data[at : at + size])
        at += size
