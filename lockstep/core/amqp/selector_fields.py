"""What the identifiers of a selector are in a message (JMS 2.0, 3.8.1.1), by the mapping of JMS to AMQP that clients have.

Law: only what the selector names is decoded; everything else is stepped over. A message that was not sent by AMQP has no fields.
"""

from collections.abc import Callable, Mapping

from lockstep.core.amqp.encodings import (
    LISTS,
    MAPS,
    OPAQUE,
    STRING,
    Simple,
    Uuid,
    contents,
    decode,
    malformed,
    members,
    skip,
)
from lockstep.core.amqp.section_table import Section
from lockstep.core.amqp.sections import HEADER, find_section, header_of
from lockstep.core.amqp.selector_row import Row
from lockstep.core.priority_levels import PRIORITY_DEFAULT

APPLICATION_PROPERTIES_MAX = 4096
"""Of a message that a selector looks at: a few milliseconds. Senders have a dozen."""


def _same(value: Simple) -> Simple:
    return value


def _id(value: Simple) -> Simple:
    """A message id as JMS clients show it: those that are no string with a prefix that says what they are."""
    if isinstance(value, Uuid):
        text = value.hex()
        return f"ID:AMQP_UUID:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    if isinstance(value, int):
        return f"ID:AMQP_ULONG:{value}"
    return value


ID_NAMES = "JMSMessageID", "JMSCorrelationID"
"""Identifiers of what `_id` shows."""
_STRING_PREFIXES = "ID:AMQP_NO_PREFIX:", "ID:AMQP_STRING:"
"""Under which JMS clients show an id that is a string, where it has no prefix `ID:` or goes on like another kind."""


def string_of_id(text: str) -> str:
    """The string that an id is in the message, if a JMS client shows it as `text`; else `text` as it is."""
    for prefix in _STRING_PREFIXES:
        if text.startswith(prefix):
            return text.removeprefix(prefix)
    return text


def _user(value: Simple) -> Simple:
    """A user id is binary in AMQP, and a string in JMS."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return OPAQUE


_FIELDS: dict[str, tuple[int, Callable[[Simple], Simple]]] = {
    "JMSMessageID": (0, _id),
    "JMSXUserID": (1, _user),
    "JMSDestination": (2, _same),
    "JMSType": (3, _same),
    "JMSReplyTo": (4, _same),
    "JMSCorrelationID": (5, _id),
    "JMSTimestamp": (9, _same),
    "JMSXGroupID": (10, _same),
    "JMSXGroupSeq": (11, _same),
}
"""By identifier: its place in the properties section (AMQP 1.0, 3.2.4), and how JMS shows it."""


class SelectorFields:
    """Finds the values of one selector's identifiers; made once, then asked for each message."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        """`slots` has a place for each identifier, from 0 on."""
        self._count = len(slots)
        self._delivery_mode = slots.get("JMSDeliveryMode")
        self._priority = slots.get("JMSPriority")
        self._delivery_count = slots.get("JMSXDeliveryCount")
        properties = [(*_FIELDS[name], slot) for name, slot in slots.items() if name in _FIELDS]
        self._properties = sorted(properties, key=lambda field: field[0])
        of_jms = {*_FIELDS, "JMSDeliveryMode", "JMSPriority", "JMSXDeliveryCount"}
        self._application = {name.encode(): slot for name, slot in slots.items() if name not in of_jms}

    def values(self, properties: bytes, delivery_count: int, is_durable: bool | None, steps_max: int) -> Row:
        """By slot: the values in a kept message, None where it has none. Raises `Rejected` if it is malformed, and `TooCostly`.

        `delivery_count` is of deliveries that failed; `is_durable` None: as the kept header says.
        """
        values = Row(self._count, steps_max)
        if properties[:3] != HEADER:
            return values
        if self._delivery_count is not None:
            values[self._delivery_count] = delivery_count + 1
        if self._delivery_mode is not None or self._priority is not None:
            self._read_header(properties, is_durable, values)
        if self._properties:
            self._read_properties(properties, values)
        if self._application:
            self._read_application(properties, values)
        return values

    def _read_header(self, properties: bytes, is_durable: bool | None, values: Row) -> None:
        header = header_of(properties)
        if self._priority is not None:
            values[self._priority] = PRIORITY_DEFAULT if header.priority is None else header.priority
        if self._delivery_mode is not None:
            is_persistent = header.is_durable if is_durable is None else is_durable
            values[self._delivery_mode] = "PERSISTENT" if is_persistent else "NON_PERSISTENT"

    def _read_properties(self, properties: bytes, values: Row) -> None:
        found = find_section(properties, Section.PROPERTIES)
        if found is None:
            return
        count, at, end = members(properties, *found, LISTS)
        next_place = 0
        for place, shown, slot in self._properties:
            if place >= count:
                return
            for _ in range(place - next_place):
                at = skip(properties, at, end)
            value, at = decode(properties, at, end)
            values[slot] = shown(value)
            next_place = place + 1

    def _read_application(self, properties: bytes, values: Row) -> None:
        found = find_section(properties, Section.APPLICATION_PROPERTIES)
        if found is None:
            return
        count, at, end = members(properties, *found, MAPS)
        if count > 2 * APPLICATION_PROPERTIES_MAX:
            raise malformed(f"more than {APPLICATION_PROPERTIES_MAX} application properties", at)
        if count % 2:
            raise malformed("a map with a key without value", at)
        values.spend(count)
        missing = len(self._application)
        for _ in range(count // 2):
            is_name = at < end and properties[at] in STRING
            first, last = contents(properties, at, end)
            slot = self._application.get(properties[first:last]) if is_name else None
            if slot is None:
                at = skip(properties, last, end)
                continue
            values[slot], at = decode(properties, last, end)
            missing -= 1
            if missing == 0:
                return
