"""What a caller may hand to `publish`: one body or message, or many."""

from collections.abc import Iterable, Sequence

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.priority_levels import PRIORITY_MAX

Body = bytes | bytearray | memoryview
Outgoing = Body | OutgoingMessage | Iterable[Body | OutgoingMessage]
Headers = tuple[tuple[str, str], ...]


def outgoing(
    messages: Outgoing, properties: bytes, durable: bool, ttl_ms: int, headers: Headers, priority: int
) -> Sequence[OutgoingMessage]:
    """Messages as they go out: bodies get the shared properties, what is a message already keeps its own.

    An iterator is read to its end. Raises `Rejected` (INVALID_ARGUMENT) for none at all, for text, and for a priority that is
    none.
    """
    _check_priority(priority)
    if not isinstance(properties, bytes):
        raise _no_bytes("properties are", properties)
    if isinstance(messages, bytes):
        return AlikeMessages((messages,), properties, durable, ttl_ms, headers, priority)
    if isinstance(messages, bytearray | memoryview):
        return AlikeMessages((bytes(messages),), properties, durable, ttl_ms, headers, priority)
    if isinstance(messages, OutgoingMessage):
        return (_checked(messages),)
    if not isinstance(messages, list | tuple):
        messages = listed(messages)
    if not messages:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, "nothing to publish")
    if set(map(type, messages)) == {bytes}:
        return AlikeMessages(tuple(messages), properties, durable, ttl_ms, headers, priority)  # type: ignore[arg-type]
    return tuple(
        [
            _checked(message)
            if isinstance(message, OutgoingMessage)
            else OutgoingMessage(properties, _body(message), durable, ttl_ms, headers, priority)
            for message in messages
        ]
    )


def listed(messages: Iterable[Body | OutgoingMessage]) -> Sequence[Body | OutgoingMessage]:
    """All of many, read once. Raises `Rejected` (INVALID_ARGUMENT) for what is not many."""
    if not isinstance(messages, Iterable):
        raise _no_bytes("a body is", messages)
    return tuple(messages)


def _checked(message: OutgoingMessage) -> OutgoingMessage:
    """Whoever makes one is asked for no types: what has no size must not come among what others publish."""
    if not isinstance(message.properties, bytes):
        raise _no_bytes("properties are", message.properties)
    if not isinstance(message.body, bytes):
        raise _no_bytes("a body is", message.body)
    _check_priority(message.priority)
    return message


def _check_priority(priority: int) -> None:
    if not 0 <= priority <= PRIORITY_MAX:
        raise Rejected(
            ErrorCode.INVALID_ARGUMENT, f"a priority of {priority}: not between 0 and {PRIORITY_MAX}"
        )


def _body(given: Body) -> bytes:
    if isinstance(given, bytes):
        return given
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise _no_bytes("a body is", given)


def _no_bytes(what: str, given: object) -> Rejected:
    return Rejected(ErrorCode.INVALID_ARGUMENT, f"{what} bytes, not {type(given).__name__}")
