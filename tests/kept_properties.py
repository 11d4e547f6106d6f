"""Properties as the AMQP proxy keeps them, made by hand: an empty header, and application properties of short strings."""

_HEADER = b"\x00Sp\x45"
_APPLICATION_PROPERTIES = b"\x00St"
_MAP8, _STRING8 = b"\xc1", b"\xa1"


def kept_properties(**application: str) -> bytes:
    """All that a selector sees of a message that has these application properties (AMQP 1.0, 3.2)."""
    texts = [text.encode() for pair in application.items() for text in pair]
    members = b"".join(_STRING8 + bytes((len(text),)) + text for text in texts)
    size = bytes((len(members) + 1, len(texts)))
    return _HEADER + _APPLICATION_PROPERTIES + _MAP8 + size + members
