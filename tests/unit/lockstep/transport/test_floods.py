"""Clients that send without end: the server holds no more than it may, goes on serving others, and is as before afterwards.

Each sends for a moment as fast as it can and reads nothing, unless the server ends the connection.
"""

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.probe_service import COUNT, path
from tests.unit.lockstep.transport.victim import Victim

FLOOD_SECONDS = 0.7
FLOOD_BYTES_MAX = 256 * 2**20
ODD = range(1, 2**31, 2)
CANCEL = struct.pack(">I", 8)

BOMB_ENTRY = b"\x40\x01b\x7f\xa1\x1e" + bytes(b"x" * 4_000)
"""One field of 4,000 bytes that enters the table, where one byte names it again."""


def endless_field_block() -> Iterator[bytes]:
    yield h.request(1, path("Echo"), flags=0)
    yield from itertools.repeat(h.frame(h.CONTINUATION, 0, 1, h.field(b"more", b"x" * 4_000) * 4))


def empty_continuations() -> Iterator[bytes]:
    yield h.request(1, path("Echo"), flags=0)
    yield from itertools.repeat(h.frame(h.CONTINUATION, 0, 1) * 1_000)


def header_bombs() -> Iterator[bytes]:
    for stream in ODD:
        block = h.request_fields(path("Wait")) + BOMB_ENTRY + b"\xbe" * 10_000
        yield h.frame(h.HEADERS, h.END_HEADERS | h.END_STREAM, stream, block)


def headers_that_are_small_on_the_wire() -> Iterator[bytes]:
    """Of calls that wait: each 56,000 bytes, and 14 of them on the wire. What follows gives the server time to take them."""
    yield h.frame(h.HEADERS, h.END_HEADERS, 1, h.request_fields(path("Sum")) + BOMB_ENTRY)
    for stream in range(3, 2 * 5_000, 2):
        block = h.request_fields(path("Sum")) + b"\xbe" * 14
        yield h.frame(h.HEADERS, h.END_HEADERS, stream, block)
    yield from itertools.repeat(h.frame(h.PING, 0, 0, bytes(8)) * 200)


def resets() -> Iterator[bytes]:
    for stream in ODD:
        yield h.call(stream, path("Wait"), b"x") + h.frame(h.RST_STREAM, 0, stream, CANCEL)


def resets_of_begun_streams() -> Iterator[bytes]:
    for stream in ODD:
        yield h.request(stream, path("WaitStreaming")) + h.frame(h.RST_STREAM, 0, stream, CANCEL)


def resets_provoked() -> Iterator[bytes]:
    """The server itself resets each stream, for a window that overflows."""
    for stream in ODD:
        yield h.request(stream, path("WaitStreaming")) + h.window_update(stream, h.WINDOW_MAX)


def calls_without_end() -> Iterator[bytes]:
    for stream in ODD:
        yield h.request(stream, path("SumLater")) + h.frame(h.DATA, 0, stream, h.message(bytes(10_000)))


def answers_that_nobody_reads() -> Iterator[bytes]:
    for stream in ODD:
        yield h.call(stream, path("Count"), COUNT.pack(1_000, 100_000))


def calls_that_nobody_serves() -> Iterator[bytes]:
    for stream in ODD:
        yield h.call(stream, "/nobody/Nothing", b"")


def settings_of_each_size() -> Iterator[bytes]:
    for size in itertools.cycle((0, 2**31 - 1, 65_535)):
        yield h.settings((4, size)) * 200


def data_beyond_every_window() -> Iterator[bytes]:
    yield h.request(1, path("WaitStreaming"))
    yield from itertools.repeat(h.frame(h.DATA, 0, 1, bytes(16_384)))


def padded_data_beyond_every_window() -> Iterator[bytes]:
    yield h.request(1, path("WaitStreaming"))
    yield from itertools.repeat(h.frame(h.DATA, h.PADDED, 1, b"\x07" + bytes(16_384) + bytes(7)))


def padding_alone() -> Iterator[bytes]:
    yield h.request(1, path("Sum"))
    yield from itertools.repeat(h.frame(h.DATA, h.PADDED, 1, b"\xff" + bytes(255)) * 100)


def empty_data() -> Iterator[bytes]:
    yield h.request(1, path("Sum"))
    yield from itertools.repeat(h.frame(h.DATA, 0, 1) * 1_000)


def data_for_a_call_that_is_over() -> Iterator[bytes]:
    yield h.request(1, "/nobody/Nothing")
    yield from itertools.repeat(h.frame(h.DATA, 0, 1, bytes(16_000)))


def small_messages_that_nobody_reads() -> Iterator[bytes]:
    """Empty ones: each counts for more in memory than on the wire."""
    yield h.request(1, path("WaitStreaming"))
    yield from itertools.repeat(h.frame(h.DATA, 0, 1, h.message(b"") * 3_000))


def message_in_single_bytes() -> Iterator[bytes]:
    yield h.request(1, path("Sum")) + h.frame(h.DATA, 0, 1, h.message(b"", length=10**8))
    yield from itertools.repeat(h.frame(h.DATA, 0, 1, b"x") * 1_000)


def message_among_much_else() -> Iterator[bytes]:
    """What is kept of it must not keep that."""
    yield h.request(1, path("Sum")) + h.frame(h.DATA, 0, 1, h.message(b"", length=10**8))
    yield from itertools.repeat(h.frame(h.DATA, 0, 1, b"x") + h.frame(0xEE, 0, 0, bytes(60_000)) * 4)


FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "a field block without end": endless_field_block,
    "continuations of nothing": empty_continuations,
    "field blocks that grow": header_bombs,
    "headers that are small on the wire": headers_that_are_small_on_the_wire,
    "resets": resets,
    "resets of begun streams": resets_of_begun_streams,
    "resets by the server": resets_provoked,
    "calls without end": calls_without_end,
    "answers that nobody reads": answers_that_nobody_reads,
    "calls that nobody serves": calls_that_nobody_serves,
    "settings": lambda: itertools.repeat(h.settings((4, 65_535)) * 200),
    "settings of each size": settings_of_each_size,
    "pings": lambda: itertools.repeat(h.frame(h.PING, 0, 0, b"12345678") * 200),
    "priorities": lambda: itertools.repeat(h.frame(h.PRIORITY, 0, 1, struct.pack(">IB", 3, 1)) * 200),
    "unknown frames": lambda: itertools.repeat(h.frame(0xEE, 0, 0, bytes(16_000))),
    "window updates": lambda: itertools.repeat(h.window_update(0, 1) * 200),
    "data beyond every window": data_beyond_every_window,
    "padded data beyond every window": padded_data_beyond_every_window,
    "padding alone": padding_alone,
    "data of nothing": empty_data,
    "data for a call that is over": data_for_a_call_that_is_over,
    "a message in single bytes": message_in_single_bytes,
    "a message among much else": message_among_much_else,
    "small messages that nobody reads": small_messages_that_nobody_reads,
}


def send(link: socket.socket, flood: Iterator[bytes]) -> None:
    """Until its time is over, or the server has had enough."""
    ends_at, sent = time.monotonic() + FLOOD_SECONDS, 0
    link.settimeout(FLOOD_SECONDS)
    for frames in flood:
        try:
            link.sendall(frames)
        except OSError:
            return
        sent += len(frames)
        if sent > FLOOD_BYTES_MAX or time.monotonic() > ends_at:
            return


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_held_back_or_ended_and_others_are_served(victim: Victim, name: str) -> None:
    with h.connect_blocking(victim.process.port) as link:
        link.sendall(h.GREETING)
        send(link, FLOODS[name]())
        victim.check()
        victim.check_memory()
    victim.check_end()


def test_connections_that_say_nothing_hinder_nobody(victim: Victim) -> None:
    links = [h.connect_blocking(victim.process.port) for _ in range(200)]
    for number, link in enumerate(links):
        link.sendall(h.GREETING[: number % len(h.GREETING)])
    victim.check()
    for link in links:
        link.close()
    victim.check_end()


@pytest.mark.parametrize("read_bytes", [1, 10_000, 1_000_000])
def test_who_goes_away_from_answers_without_end_is_missed_by_nobody(victim: Victim, read_bytes: int) -> None:
    """The handler finds room for each of its small answers until it hears that the connection is lost."""
    with h.connect_blocking(victim.process.port) as link:
        link.sendall(h.GREETING + h.call(1, path("Count"), COUNT.pack(2**30, 0)))
        while read_bytes > 0:
            read_bytes -= len(link.recv(2**16))
    victim.check()
    victim.check_end()
