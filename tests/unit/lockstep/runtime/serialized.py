"""Serialised messages as whoever hears them has them."""

from lockstep.runtime.wire import Serialized


def whole(serialized: Serialized) -> bytes:
    """In one piece."""
    return serialized if isinstance(serialized, bytes) else b"".join(serialized)
