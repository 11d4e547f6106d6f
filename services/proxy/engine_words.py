"""Words shared by the engine and what drives it: events, pieces of transfers, delivery states (AMQP 1.0, 3.4 and 4.5)."""

from enum import IntEnum
from typing import Any, NamedTuple, Self

from proton import Data, Described, Event, ProtonException, ulong

UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, ProtonException)
"""What Proton raises when a field that a peer sent has no Python value: wrong types and bytes, dictionaries of lists."""
Handle = Any
"""Of a link or delivery: what `engine_path` takes."""


class EngineEvent(IntEnum):
    """What is told apart."""

    DELIVERY = 1
    FLOW = 2
    OTHER = 3


OTHERS = (
    Event.CONNECTION_REMOTE_OPEN,
    Event.CONNECTION_REMOTE_CLOSE,
    Event.SESSION_REMOTE_OPEN,
    Event.SESSION_REMOTE_CLOSE,
    Event.LINK_REMOTE_OPEN,
    Event.LINK_REMOTE_DETACH,
    Event.LINK_REMOTE_CLOSE,
    # A link is freed when this is taken out: a place to give way, where thousands are.
    Event.LINK_FINAL,
)
"""Of all others those that are told. Each turn has some of the rest, and making an object of one takes microseconds."""
Happening = tuple[EngineEvent, Handle, Any]
"""(DELIVERY, link, delivery), (FLOW, link, None) or (OTHER, None, Proton's event)."""


class StateCode(IntEnum):
    """Descriptors of delivery states."""

    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    DECLARED = 0x33
    TRANSACTIONAL = 0x34


class Received(NamedTuple):
    """A piece of a transfer."""

    delivery: Handle
    data: bytes
    is_partial: bool
    """More of it is to come."""
    is_aborted: bool
    is_settled: bool
    """Its sender expects no outcome."""


class State(NamedTuple):
    """A delivery state to be told, with the list of its fields encoded and as Python values."""

    code: int
    encoded: bytes
    fields: list[Any]


class Transactional(NamedTuple):
    """A transactional state (4.5.7): what the peer does with a delivery, and in which transaction."""

    transaction: bytes
    outcome: int
    """A `StateCode`; 0: none."""
    has_failed: bool
    """Of the outcome `modified`: delivery-failed."""
    is_undeliverable: bool
    """Of the outcome `modified`: undeliverable-here."""
    annotations: bytes = b""
    """Of the outcome `modified`: message-annotations, encoded; empty: none."""

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """From the decoded fields; raises `ValueError` for what is no transactional state."""
        if not isinstance(fields, list) or not fields:
            raise ValueError("a transactional state names its transaction")
        name = fields[0]
        if not isinstance(name, bytes | bytearray | memoryview):
            raise ValueError("a transaction id is binary")
        outcome, has_failed, is_undeliverable, annotations = 0, False, False, b""
        if len(fields) > 1 and fields[1] is not None:
            described = fields[1]
            code = outcome_code(described.descriptor) if isinstance(described, Described) else None
            if code is None:
                raise ValueError("the outcome in a transactional state is none that AMQP knows")
            outcome = code
            if code == StateCode.MODIFIED and isinstance(described.value, list):
                failed, undeliverable, said = [*described.value, None, None, None][:3]
                has_failed, is_undeliverable = failed is True, undeliverable is True
                annotations = encoded_map(said)
        return cls(bytes(name), outcome, has_failed, is_undeliverable, annotations)


def encoded_map(value: Any) -> bytes:
    """A map that the engine has read, as it was; empty for anything else, or what cannot be written."""
    if not isinstance(value, dict) or not value:
        return b""
    data = Data()
    try:
        data.put_dict(value)
        return bytes(data.encode())
    except UNREADABLE:
        return b""


_SYMBOLS = {
    "amqp:received:list": StateCode.RECEIVED,
    "amqp:accepted:list": StateCode.ACCEPTED,
    "amqp:rejected:list": StateCode.REJECTED,
    "amqp:released:list": StateCode.RELEASED,
    "amqp:modified:list": StateCode.MODIFIED,
}


def outcome_code(descriptor: Any) -> StateCode | None:
    """The outcome that a descriptor, a number or a symbol, names; None for others."""
    if isinstance(descriptor, str):
        return _SYMBOLS.get(str(descriptor))
    try:
        code = StateCode(int(descriptor))
    except UNREADABLE:
        return None
    return code if code <= StateCode.MODIFIED else None


def transactional(transaction: bytes, outcome: StateCode | None = None) -> State:
    """The transactional state of a delivery: in `transaction`, with this outcome if it has one already."""
    name = b"\xa0" + bytes([len(transaction)]) + transaction
    fields: list[Any] = [transaction]
    items = name
    if outcome is not None:
        items += b"\x00\x53" + bytes([outcome]) + b"\x45"
        fields.append(Described(ulong(outcome), []))
    return State(StateCode.TRANSACTIONAL, _list(items, len(fields)), fields)


def declared(transaction: bytes) -> State:
    """The outcome of a declare (4.5.5)."""
    items = b"\xa0" + bytes([len(transaction)]) + transaction
    return State(StateCode.DECLARED, _list(items, 1), [transaction])


def _list(items: bytes, count: int) -> bytes:
    assert len(items) < 255, "a transaction id is short"
    return b"\xc0" + bytes([len(items) + 1, count]) + items
