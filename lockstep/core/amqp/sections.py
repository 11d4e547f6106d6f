"""How a message that came in by AMQP is kept: its sections, cut between `properties` and `body`.

Law: what is kept is what was encoded, so delivering is concatenation and nothing is decoded on the way. `properties` begins
with a header section (one is put there if the sender had none), then come message-annotations, properties and
application-properties as they were. If the body is one data section, or one amqp-value of a string or binary, and there is no
footer, `properties` also has the descriptor, constructor and size of it, and `body` is the bare payload, which readers without
AMQP can use. Otherwise `body` has the body's sections and the footer. It is empty if the sender left the body out, as clients
do for null. Delivery-annotations are for one hop (AMQP 1.0, 3.2.2) and dropped.

The kept header has only what is passed on: durable and priority. Whoever delivers makes the rest (AMQP 1.0, 3.2.1). A message
whose `properties` do not begin with a header was not sent by AMQP: it is delivered as one data section.

Lean on purpose: this is done for every message, and costs 1 to 2 us.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.core.amqp.annotations import ANNOTATIONS, annotated
from lockstep.core.amqp.encodings import LISTS, NULL, STRING, UINT, Simple, decode, malformed, members, skip
from lockstep.core.amqp.section_table import SIZED_SECTIONS, Section, describe, is_bare
from lockstep.core.asides import Aside
from lockstep.core.commands import SPAN_MS_MAX
from lockstep.core.deaths import Deaths
from lockstep.core.errors import Rejected
from lockstep.core.priority_levels import PRIORITY_DEFAULT, PRIORITY_MAX

HEADER = b"\x00\x53\x70"
"""The descriptor of a header section, as it is kept."""
EMPTY_HEADER = HEADER + b"\x45"
_DATA = b"\x00\x53\x75"
PROPERTIES_ANNOTATION = b"x-opt-lockstep-properties"
"""Message annotation with the properties of a message that was not sent by AMQP: a binary."""

CACHED_HEADERS_MAX = 4096
"""In each direction. Senders differ in few headers; a cache that is full begins again."""
CACHED_HEADER_BYTES_MAX = 32
"""A header has 20 bytes at most, unless it is written wastefully."""

BODY_SECTIONS_MAX = 1024
"""Of one message: nobody sends as many, and all of them are looked at in a few milliseconds."""

_TO = 2
"""Place of `to` in the properties section."""
_ABSOLUTE_EXPIRY_TIME = 8
"""Place of `absolute-expiry-time` there."""
_TIMESTAMP = 0x83
_UINT_MAX = 2**32 - 1
_BOOLEAN = frozenset({0x41, 0x42, 0x56})
_UBYTE = frozenset({0x50})
_HEADER_FIELDS = (_BOOLEAN, _UBYTE, UINT, _BOOLEAN, UINT)
"""durable, priority, ttl, first-acquirer, delivery-count: the types they may have beside null."""


class Incoming(NamedTuple):
    """What becomes of an encoded message: the parts of an `OutgoingMessage`."""

    properties: bytes
    body: bytes
    is_durable: bool
    ttl_ms: int
    """0: none."""
    absolute_expiry_ms: int = 0
    """When its sender says that it expires, by the clock of whoever receives it (TimeMs); 0: it does not."""
    priority: int = PRIORITY_DEFAULT
    """Its level: what the header says, at most `PRIORITY_MAX`. The kept header has it as it was sent."""


class HeaderFields(NamedTuple):
    """What is passed on of a header section, and its time to live."""

    is_durable: bool
    priority: int | None
    ttl_ms: int
    """0: none."""


_kept_headers: dict[bytes, tuple[bytes, bool, int, int]] = {}
"""By a header section as it was sent: how it is kept, whether it says durable, its time to live, its level."""
_sent_headers: dict[tuple[bytes, bool, int], tuple[bytes, bytes, bytes]] = {}
"""By (kept header, durable, delivery count): the header section without ttl; and what is before and after a ttl in it."""


def split_parts(parts: Sequence[bytes]) -> Incoming:
    """As `split` of what came in parts, at least one; a body that begins in the first is copied once. Raises `Rejected`."""
    first, *rest = parts
    incoming = split_beginning(first, sum(map(len, parts)))
    if incoming is None:
        return split(b"".join(parts))
    return incoming._replace(body=b"".join((incoming.body, *rest)))


def split_beginning(first: bytes, whole_bytes: int) -> Incoming | None:
    """As `split` of a message of so many bytes that begins with `first`, with what of the body is there; None: the message is
    malformed, or more than its body lies behind that.
    """
    try:
        incoming = split(first, whole_bytes)
    except (Rejected, IndexError):
        return None
    return incoming if incoming.body else None


def split(raw: bytes, whole_bytes: int = 0) -> Incoming:
    """Cut an encoded message for keeping. Raises `Rejected` if it is malformed, as far as sections and the header go.

    `whole_bytes`: of the message, if `raw` is only its beginning; the body is cut off there then. Raises `IndexError`, too, where
    it does not begin in `raw`.
    """
    end = whole_bytes or len(raw)
    kept, is_durable, ttl_ms, priority = EMPTY_HEADER, False, 0, PRIORITY_DEFAULT
    at = first = expiry_ms = 0
    section: int
    last = -1
    while at < end:
        sized = SIZED_SECTIONS.get(raw[at : at + 4])
        if sized is None:
            section, constructor_at = describe(raw, at, end)
            after = skip(raw, constructor_at, end)
            is_payload = is_bare(section, raw[constructor_at])
            contents_at = constructor_at + (2 if raw[constructor_at] < 0xB0 else 5)
        else:
            section, width, is_payload = sized
            constructor_at = at + 3
            contents_at = at + 4 + width
            if contents_at > end:
                raise malformed("a section is cut off", at)
            if width == 1:
                after = contents_at + raw[at + 4]
            else:
                after = contents_at + int.from_bytes(raw[at + 4 : contents_at], "big")
            if after > end:
                raise malformed("a section is cut off", at)
        if section >= 5:  # the body
            if not is_payload or after != end:
                _check_body(raw, at, end)
                contents_at = at
            if contents_at > len(raw):
                raise malformed("a section is cut off", at)
            return Incoming(
                kept + raw[first:contents_at], raw[contents_at:], is_durable, ttl_ms, expiry_ms, priority
            )
        if section <= last:
            raise malformed("a section out of order", at)
        if section == 3:
            if raw.find(_TIMESTAMP, contents_at, after) >= 0:
                expiry_ms = _absolute_expiry(raw, constructor_at, after)
        elif section <= 1:
            first = after
            if section == 0:
                header = raw[:after]
                kept, is_durable, ttl_ms, priority = _kept_headers.get(header) or _keep_header(header)
        last = section
        at = after
    if last < 0:
        raise malformed("no section", 0)
    return Incoming(kept + raw[first:], b"", is_durable, ttl_ms, expiry_ms, priority)


def time_to_live(incoming: Incoming, now_ms: int) -> int:
    """How long a message lives that says when it expires, in milliseconds: until then, or as long as its header says if that is
    shorter. What has expired already lives for one. 0: for ever, or so long that nobody could tell.
    """
    left = max(incoming.absolute_expiry_ms - now_ms, 1)
    if left > SPAN_MS_MAX:
        return incoming.ttl_ms
    return min(left, incoming.ttl_ms or left)


def join(
    properties: bytes,
    body: bytes,
    *,
    delivery_count: int,
    expires_ms: int,
    is_durable: bool,
    now_ms: int,
    aside: Aside | None = None,
    has_body: bool = True,
) -> bytes:
    """The encoded message for a receiver. Never raises: what does not begin with a header is wrapped. `has_body` False: all of it
    but the body, which is its end.

    `delivery_count` is of deliveries that failed before; `expires_ms` and `now_ms` are times of one clock,
    `expires_ms` 0: never.
    """
    after = _header_end(properties)
    key = (properties[:after], is_durable, delivery_count)
    if not after and aside is not None and aside.priority != PRIORITY_DEFAULT:
        key = (_kept_header(is_durable, aside.priority), is_durable, delivery_count)
    try:
        header = _sent_headers.get(key) or _send_header(key)
    except Rejected:
        after = 0
        header = _send_header((b"", is_durable, delivery_count))
    if expires_ms:
        ttl_ms = min(max(expires_ms - now_ms, 1), _UINT_MAX)
        header_section = header[1] + ttl_ms.to_bytes(4, "big") + header[2]
    else:
        header_section = header[0]
    sections = properties[after:] if after else _annotations(properties) + _DATA + _binary_size(body)
    if aside is not None and (aside.deaths or aside.annotations):
        sections = annotated(sections, aside.deaths, aside.annotations)
    return b"".join((header_section, sections, body)) if has_body else header_section + sections


def with_deaths(properties: bytes, deaths: Deaths, annotations: bytes) -> bytes:
    """The properties of a copy of a dead letter, which says why it is one, and what those said who had it; what was not sent by
    AMQP has no place for that.
    """
    after = _header_end(properties)
    return properties[:after] + annotated(properties[after:], deaths, annotations) if after else properties


def address_of(properties: bytes) -> str | None:
    """The `to` of a kept message (AMQP 1.0, 3.2.4), if there is one. Raises `Rejected` if it is malformed up to there."""
    found = find_section(properties, Section.PROPERTIES)
    if found is None:
        return None
    count, at, end = members(properties, *found, LISTS)
    if count <= _TO:
        return None
    at = skip(properties, skip(properties, at, end), end)
    if at < end and properties[at] == NULL:
        return None
    if at >= end or properties[at] not in STRING:
        raise malformed("an address that is no string", at)
    address = decode(properties, at, end)[0]
    assert isinstance(address, str)
    return address


def find_section(properties: bytes, wanted: Section) -> tuple[int, int] | None:
    """Where the constructor of a kept message's section is, and where the section ends; None without it.

    For sections before the body. Raises `Rejected` if what comes before is malformed.
    """
    at, end = _header_end(properties), len(properties)
    section: int
    while 0 < at < end:
        sized = SIZED_SECTIONS.get(properties[at : at + 4])
        if sized is None:
            section, constructor_at = describe(properties, at, end)
        else:
            section, constructor_at = sized[0], at + 3
        if section > wanted:
            break
        at = skip(properties, constructor_at, end)
        if section == wanted:
            return constructor_at, at
    return None


def header_fields(header: bytes) -> HeaderFields:
    """What a header section says, without its delivery count. Raises `Rejected` if it is malformed."""
    end = len(header)
    _, constructor_at = describe(header, 0, end)
    count, at, last = members(header, constructor_at, end, LISTS)
    if count > len(_HEADER_FIELDS) or last != end:
        raise malformed("more than a header", at)
    values: list[Simple] = [None] * len(_HEADER_FIELDS)
    for place in range(count):
        if at < last and header[at] != NULL and header[at] not in _HEADER_FIELDS[place]:
            raise malformed("a header field of another type", at)
        values[place], at = decode(header, at, last)
    if at != last:
        raise malformed("more bytes than header fields", at)
    is_durable, priority, ttl_ms = values[:3]
    assert priority is None or isinstance(priority, int)
    assert ttl_ms is None or isinstance(ttl_ms, int)
    return HeaderFields(is_durable is True, priority, ttl_ms or 0)


def header_of(properties: bytes) -> HeaderFields:
    """The header of a kept message: durable and priority. Raises `Rejected` if it is malformed."""
    return header_fields(properties[: _header_end(properties)] or EMPTY_HEADER)


def _absolute_expiry(raw: bytes, constructor_at: int, end: int) -> int:
    """`absolute-expiry-time` of a properties section; 0 if it is null, not there, or no time that clients of today mean."""
    is_last_but_one = raw[constructor_at] == 0xC0 and raw[constructor_at + 2] == _ABSOLUTE_EXPIRY_TIME + 2
    # So JMS clients write it. It would begin here, before a creation time that is null, or here, before one that is not.
    if is_last_but_one and _TIMESTAMP not in (raw[end - 10], raw[max(end - 18, 0)]):
        return 0
    count, at, last = members(raw, constructor_at, end, LISTS)
    if count <= _ABSOLUTE_EXPIRY_TIME:
        return 0
    for _ in range(_ABSOLUTE_EXPIRY_TIME):
        at = at + 1 if at < last and raw[at] == NULL else skip(raw, at, last)
    if at >= last or raw[at] != _TIMESTAMP:
        return 0
    value, _ = decode(raw, at, last)
    assert isinstance(value, int)
    return max(value, 0)


def _header_end(properties: bytes) -> int:
    """Where the header section at the beginning ends; 0 without one."""
    match properties[:4]:
        case b"\x00\x53\x70\x45":
            return 4
        case b"\x00\x53\x70\xc0":
            after = 5 + int.from_bytes(properties[4:5], "big")
        case b"\x00\x53\x70\xd0":
            after = 8 + int.from_bytes(properties[4:8], "big")
        case _:
            return 0
    return after if after <= len(properties) else 0


def _keep_header(header: bytes) -> tuple[bytes, bool, int, int]:
    """How a header section that was sent is kept, whether it says durable, its time to live in milliseconds, and its level."""
    fields = header_fields(header)
    kept = _kept_header(fields.is_durable, fields.priority)
    level = PRIORITY_DEFAULT if fields.priority is None else min(fields.priority, PRIORITY_MAX)
    found = (kept, fields.is_durable, fields.ttl_ms, level)
    if len(header) <= CACHED_HEADER_BYTES_MAX:
        if len(_kept_headers) >= CACHED_HEADERS_MAX:
            _kept_headers.clear()
        _kept_headers[header] = found
    return found


def _kept_header(is_durable: bool, priority: int | None) -> bytes:
    """A header section as it is kept."""
    if priority is not None:
        return HEADER + b"\xc0\x04\x02" + (b"\x41" if is_durable else b"\x40") + bytes((0x50, priority))
    return HEADER + b"\xc0\x02\x01\x41" if is_durable else EMPTY_HEADER


def _send_header(key: tuple[bytes, bool, int]) -> tuple[bytes, bytes, bytes]:
    """The value of `_sent_headers` for a key. Raises `Rejected` if what is kept is no header."""
    kept, is_durable, delivery_count = key
    priority = header_fields(kept).priority if kept else None
    before = (b"\x41" if is_durable else b"\x42") + (b"\x40" if priority is None else bytes((0x50, priority)))
    if delivery_count <= 0:
        behind = b"\x41\x43"
    elif delivery_count <= 255:
        behind = bytes((0x42, 0x52, delivery_count))
    else:
        behind = b"\x42\x70" + min(delivery_count, _UINT_MAX).to_bytes(4, "big")
    header = (
        _list8(before + b"\x40" + behind),
        _list8(before + b"\x70" + bytes(4) + behind)[: -4 - len(behind)],
        behind,
    )
    if len(kept) <= CACHED_HEADER_BYTES_MAX:
        if len(_sent_headers) >= CACHED_HEADERS_MAX:
            _sent_headers.clear()
        _sent_headers[key] = header
    return header


def _list8(fields: bytes) -> bytes:
    """A header section with all its fields."""
    return HEADER + bytes((0xC0, 1 + len(fields), len(_HEADER_FIELDS))) + fields


def _annotations(properties: bytes) -> bytes:
    """The message-annotations section for properties that are no AMQP; none if they are empty."""
    if not properties:
        return b""
    key = bytes((0xA3, len(PROPERTIES_ANNOTATION))) + PROPERTIES_ANNOTATION
    content = b"\x00\x00\x00\x02" + key + _binary_size(properties) + properties
    return ANNOTATIONS + b"\xd1" + len(content).to_bytes(4, "big") + content


def _binary_size(content: bytes) -> bytes:
    """What an encoded binary begins with."""
    size = len(content)
    return bytes((0xA0, size)) if size <= 255 else b"\xb0" + size.to_bytes(4, "big")


def _check_body(raw: bytes, at: int, end: int) -> None:
    """From the body on: one amqp-value, or data sections, or amqp-sequences, or nothing; then a footer, or none."""
    last, sections = -1, 0
    while at < end:
        section, constructor_at = describe(raw, at, end)
        is_more = section == last and section in (Section.DATA, Section.AMQP_SEQUENCE)
        if section < Section.DATA or (
            last >= 0 and not is_more and (section != Section.FOOTER or last == section)
        ):
            raise malformed("a section out of order", at)
        sections += 1
        if sections > BODY_SECTIONS_MAX:
            raise malformed(f"more than {BODY_SECTIONS_MAX} sections", at)
        last, at = section, skip(raw, constructor_at, end)
