"""Encoded AMQP messages for tests: made by Proton, and by hand where no client would make them."""

from hypothesis import strategies as st
from proton import Message, symbol

EMPTY_HEADER = bytes.fromhex("00537045")
DATA = bytes.fromhex("005375a0026869")
"""A data section of b"hi"."""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.text(min_size=300, max_size=301),
)
BODIES = st.one_of(
    SCALARS,
    st.binary(max_size=300),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3),
)
NAMES = st.text(min_size=1, max_size=300)


@st.composite
def proton_messages(draw: st.DrawFn) -> Message:
    """What a client of Proton may send."""
    message = Message(
        body=draw(BODIES),
        inferred=draw(st.booleans()),
        durable=draw(st.booleans()),
        priority=draw(st.integers(0, 9)),
        delivery_count=draw(st.integers(0, 300)),
        id=draw(st.none() | NAMES | st.integers(0, 2**64 - 1)),
        address=draw(st.none() | NAMES),
        subject=draw(st.none() | NAMES),
        correlation_id=draw(st.none() | NAMES),
        properties=draw(st.none() | st.dictionaries(NAMES, SCALARS, max_size=3)),
    )
    message.ttl = draw(st.sampled_from([0, 0.001, 3, 4_000_000]))
    if draw(st.booleans()):
        message.annotations = {symbol("x-opt-a"): draw(st.integers(0, 9))}
    if draw(st.booleans()):
        message.instructions = {symbol("x-opt-hop"): 1}
    return message


def encoded(message: Message) -> bytes:
    return bytes(message.encode())


def decoded(raw: bytes) -> Message:
    message = Message()
    message.decode(raw)
    return message


def plain(value: object) -> object:
    """Proton's views of C memory as bytes."""
    return bytes(value) if isinstance(value, memoryview) else value
