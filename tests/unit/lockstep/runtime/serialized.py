"""Serialised messages as whoever hears them has them."""

from lockstep.core.ids import SetName
from lockstep.core.requests import ClientMessage
from lockstep.runtime.session_codec import decode_in_steps
from lockstep.runtime.wire import Serialized


def whole(serialized: Serialized) -> bytes:
    """In one piece."""
    return serialized if isinstance(serialized, bytes) else b"".join(serialized)


def decoded(data: bytes | memoryview) -> tuple[SetName, tuple[ClientMessage, ...]]:
    """What a client says, after all steps."""
    steps = decode_in_steps(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            said: tuple[SetName, tuple[ClientMessage, ...]] = end.value
            return said
