"""Bytes from outside to protobuf messages.

Law: whatever bytes come, the result is a message or `Rejected`; nothing else is raised.
"""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from lockstep.core.errors import ErrorCode, Rejected

_Message = TypeVar("_Message", bound=Message)


def parse(message: _Message, data: bytes) -> _Message:
    """Fills a new message and returns it; raises `Rejected` (INVALID_ARGUMENT) for bytes that are none of its kind."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        kind = type(message).__name__
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"{len(data)} bytes are no {kind}", kind=kind) from error
    return message
