"""What is said of a message beside what was sent: message annotations of its receivers (AMQP 1.0, 3.4.5), and those of a dead
letter, as users of RabbitMQ know them.

`x-opt-deaths` is an array of maps, the last death first, each with `queue`, `reason`, `count`, `first-time` and `last-time`; the
first and the last are told by `x-first-death-queue`, `x-first-death-reason`, `x-last-death-queue` and `x-last-death-reason`, too.
What else a message's annotations say stays; what they said of deaths does not: it is of another message, or of another life.
"""

from collections.abc import Iterator

from lockstep.core.amqp.encodings import MAPS, members, skip
from lockstep.core.amqp.section_table import Section, describe
from lockstep.core.deaths import DeathReason, Deaths
from lockstep.core.errors import Rejected

ANNOTATIONS = b"\x00\x53\x72"
"""The descriptor of a message-annotations section."""
_REASONS: dict[int, bytes] = {
    DeathReason.REJECTED: b"rejected",
    DeathReason.EXPIRED: b"expired",
    DeathReason.DELIVERY_LIMIT: b"delivery_limit",
}
_DEATHS = b"x-opt-deaths"
_FIRST_QUEUE, _FIRST_REASON = b"x-first-death-queue", b"x-first-death-reason"
_LAST_QUEUE, _LAST_REASON = b"x-last-death-queue", b"x-last-death-reason"


def pairs_of(encoded: bytes) -> bytes:
    """The keys and values of an encoded map, in turn. Raises `Rejected` for what is none."""
    return b"".join(pair for _, pair in _pairs(encoded, 0, len(encoded)))


def check_pairs(pairs: bytes) -> None:
    """Raises `Rejected` if these are not keys and values in turn."""
    for _ in _pairs_in(pairs, 0, len(pairs)):
        pass


def combined(before: bytes, more: bytes) -> bytes:
    """Well-formed keys and values in turn: those of `more` take the place of others with the same key."""
    found = dict(_pairs_in(before, 0, len(before)))
    found.update(_pairs_in(more, 0, len(more)))
    return b"".join(found.values())


def annotated(sections: bytes, deaths: Deaths, annotations: bytes = b"") -> bytes:
    """The sections of a message behind its header, with what is said of these deaths, if there are any, and these annotations,
    keys and values in turn. Sections that are malformed are left as they are.
    """
    pairs: list[bytes] = []
    own = set(_OWN) if deaths else set()
    said = {key: pair for key, pair in _pairs_in(annotations, 0, len(annotations)) if key not in own}
    own.update(said)
    told = [*said.values(), *(_told(deaths) if deaths else ())]
    at = 0
    try:
        if sections:
            section, constructor_at = describe(sections, 0, len(sections))
            if section == Section.MESSAGE_ANNOTATIONS:
                at = skip(sections, constructor_at, len(sections))
                pairs = [pair for key, pair in _pairs(sections, constructor_at, at) if key not in own]
    except Rejected:
        return sections
    return ANNOTATIONS + _map32([*pairs, *told]) + sections[at:]


def _pairs(raw: bytes, constructor_at: int, end: int) -> Iterator[tuple[bytes, bytes]]:
    """(key, key and value) of each pair of a map, encoded."""
    _, at, last = members(raw, constructor_at, end, MAPS)
    return _pairs_in(raw, at, last)


def _pairs_in(raw: bytes, at: int, last: int) -> Iterator[tuple[bytes, bytes]]:
    while at < last:
        value_at = skip(raw, at, last)
        after = skip(raw, value_at, last)
        yield raw[at:value_at], raw[at:after]
        at = after


def _told(deaths: Deaths) -> list[bytes]:
    """Pairs, encoded."""
    bodies = [
        _map_body(
            [
                _string(b"queue") + _string(death.queue.encode()),
                _string(b"reason") + _string(_reason(death.reason)),
                _string(b"count") + b"\x80" + death.count.to_bytes(8, "big"),
                _string(b"first-time") + b"\x83" + death.first_ms.to_bytes(8, "big"),
                _string(b"last-time") + b"\x83" + death.last_ms.to_bytes(8, "big"),
            ]
        )
        for death in deaths
    ]
    content = len(bodies).to_bytes(4, "big") + b"\xd1" + b"".join(bodies)
    first, last = deaths[-1], deaths[0]
    return [
        _symbol(_DEATHS) + b"\xf0" + len(content).to_bytes(4, "big") + content,
        _symbol(_FIRST_QUEUE) + _string(first.queue.encode()),
        _symbol(_FIRST_REASON) + _string(_reason(first.reason)),
        _symbol(_LAST_QUEUE) + _string(last.queue.encode()),
        _symbol(_LAST_REASON) + _string(_reason(last.reason)),
    ]


def _reason(reason: int) -> bytes:
    return _REASONS.get(reason) or b"%d" % reason


def _map32(pairs: list[bytes]) -> bytes:
    return b"\xd1" + _map_body(pairs)


def _map_body(pairs: list[bytes]) -> bytes:
    """Of a map with sizes of 4 bytes: what follows its constructor."""
    content = (2 * len(pairs)).to_bytes(4, "big") + b"".join(pairs)
    return len(content).to_bytes(4, "big") + content


def _symbol(name: bytes) -> bytes:
    return bytes((0xA3, len(name))) + name


def _string(text: bytes) -> bytes:
    if len(text) <= 255:
        return bytes((0xA1, len(text))) + text
    return b"\xb1" + len(text).to_bytes(4, "big") + text


_OWN = frozenset(map(_symbol, (_DEATHS, _FIRST_QUEUE, _FIRST_REASON, _LAST_QUEUE, _LAST_REASON)))
"""What is said of deaths, and nothing else is said by."""
