"""The sections of an AMQP message (AMQP 1.0, 3.2): in which order they come, and how each is described."""

from enum import IntEnum

from lockstep.core.amqp.encodings import (
    EMPTY_LIST,
    LISTS,
    MAPS,
    SIZE_IN_1,
    SIZE_IN_4,
    WIDTHS,
    malformed,
    skip,
)


class Section(IntEnum):
    """By place. The three kinds of bodies exclude each other."""

    HEADER = 0
    DELIVERY_ANNOTATIONS = 1
    MESSAGE_ANNOTATIONS = 2
    PROPERTIES = 3
    APPLICATION_PROPERTIES = 4
    DATA = 5
    AMQP_SEQUENCE = 6
    AMQP_VALUE = 7
    FOOTER = 8


_FIRST_CODE = 0x70
"""Descriptor of the header; the others follow in their order."""
_BINARY = frozenset({0xA0, 0xB0})
_TEXT = frozenset({0xA0, 0xA1, 0xB0, 0xB1})
_NAMES = {
    b"amqp:header:list": Section.HEADER,
    b"amqp:delivery-annotations:map": Section.DELIVERY_ANNOTATIONS,
    b"amqp:message-annotations:map": Section.MESSAGE_ANNOTATIONS,
    b"amqp:properties:list": Section.PROPERTIES,
    b"amqp:application-properties:map": Section.APPLICATION_PROPERTIES,
    b"amqp:data:binary": Section.DATA,
    b"amqp:amqp-sequence:list": Section.AMQP_SEQUENCE,
    b"amqp:amqp-value:*": Section.AMQP_VALUE,
    b"amqp:footer:map": Section.FOOTER,
}
_CONSTRUCTORS: dict[Section, frozenset[int]] = {
    Section.HEADER: LISTS,
    Section.DELIVERY_ANNOTATIONS: MAPS,
    Section.MESSAGE_ANNOTATIONS: MAPS,
    Section.PROPERTIES: LISTS,
    Section.APPLICATION_PROPERTIES: MAPS,
    Section.DATA: _BINARY,
    Section.AMQP_SEQUENCE: LISTS,
    Section.AMQP_VALUE: frozenset(range(256)),
    Section.FOOTER: MAPS,
}


def describe(raw: bytes, at: int, end: int) -> tuple[Section, int]:
    """Which section is at `at`, however it is described, and where its constructor is.

    Raises `Rejected` where there is no section, or one of a type that it cannot have.
    """
    constructor_at = skip(raw, at + 1, end) if at < end and raw[at] == 0 else at
    section = _described(raw[at + 1 : constructor_at])
    if section is None:
        raise malformed("no section", at)
    if constructor_at >= end or raw[constructor_at] not in _CONSTRUCTORS[section]:
        raise malformed(f"the {section.name} section is of another type", constructor_at)
    return section, constructor_at


def is_bare(section: Section, constructor: int) -> bool:
    """Whether the contents of such a section are a payload as it is: bytes or text."""
    return section in (Section.DATA, Section.AMQP_VALUE) and constructor in _TEXT


def _described(descriptor: bytes) -> Section | None:
    """What a descriptor says: a ulong in any of its encodings, or a symbol."""
    match descriptor[:1]:
        case b"\x53" | b"\x80":
            place = int.from_bytes(descriptor[1:], "big") - _FIRST_CODE
            return Section(place) if 0 <= place <= Section.FOOTER else None
        case b"\xa3":
            return _NAMES.get(descriptor[2:])
        case b"\xb3":
            return _NAMES.get(descriptor[5:])
        case _:
            return None


SizedSection = tuple[int, int, bool]
"""(place, bytes of its size: 1, 4, or 0 of an empty list, whether it is bare)."""


def _sized_sections() -> dict[bytes, SizedSection]:
    found = {}
    for section, constructors in _CONSTRUCTORS.items():
        for constructor in constructors:
            if WIDTHS[constructor] in (SIZE_IN_1, SIZE_IN_4) or constructor == EMPTY_LIST:
                opening = bytes((0, 0x53, _FIRST_CODE + section, constructor))
                found[opening] = (int(section), -WIDTHS[constructor], is_bare(section, constructor))
    return found


SIZED_SECTIONS = _sized_sections()
"""By the first four bytes: the sections as nearly everybody writes them, so that a look at one costs one lookup."""
