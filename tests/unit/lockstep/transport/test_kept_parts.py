"""What a call keeps of a message that is not whole yet: hardly more than its bytes, however they came."""

import sys
import tracemalloc

import pytest

from lockstep.transport.connection import Connection
from lockstep.transport.stream import COPIED_BYTES_MAX, Stream
from tests.unit.lockstep.transport import raw_http2 as h

MESSAGE_BYTES = 2**20
READ_BYTES = 2**18


@pytest.fixture
def stream() -> Stream:
    """It has heard the prefix of a message."""
    made = Stream(Connection(None, lambda _: None, lambda _, __: None), 1, MESSAGE_BYTES)
    made.receive(h.message(b"", length=MESSAGE_BYTES))
    return made


@pytest.mark.parametrize("size", [1, 1_000, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, READ_BYTES // 2 - 1])
def test_a_part_does_not_keep_what_was_read_with_it(stream: Stream, size: int) -> None:
    read = bytes(READ_BYTES)
    before = sys.getrefcount(read)
    stream.receive(memoryview(read)[:size])
    assert sys.getrefcount(read) == before


def test_single_bytes_are_put_together(stream: Stream) -> None:
    read = bytes(range(250))
    tracemalloc.start()
    try:
        for number in range(100_000):
            stream.receive(memoryview(read)[number % 250 : number % 250 + 1])
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 200_000


async def test_a_message_is_whole_whatever_its_parts_are(stream: Stream) -> None:
    said = bytes(number % 251 for number in range(MESSAGE_BYTES))
    at, sizes = 0, (1, 7, COPIED_BYTES_MAX - 1, 1, 1, COPIED_BYTES_MAX, 2, 3 * COPIED_BYTES_MAX, 100_000, 5)
    while at < MESSAGE_BYTES:
        for size in sizes:
            stream.receive(memoryview(said)[at : at + size])
            at += size
    stream.receive(h.message(b"next"))
    assert await stream.next_message() == said
    assert await stream.next_message() == b"next"


async def test_a_big_message_is_together_when_its_end_comes(stream: Stream) -> None:
    part = bytes(COPIED_BYTES_MAX)
    for _ in range(MESSAGE_BYTES // len(part) - 1):
        stream.receive(memoryview(part))
    tracemalloc.start()
    try:
        stream.receive(memoryview(part))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MESSAGE_BYTES // 8, "a copy of all of it"
    assert await stream.next_message() == bytes(MESSAGE_BYTES)
