"""Whatever bytes a client sends: the server says goodbye or goes on, serves the others, and nothing stays behind.

It runs in a process of its own: what ends it is a failure with its input.
"""

import struct
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.probe_service import COUNT, path
from tests.unit.lockstep.transport.victim import Victim

HEARD_SECONDS = 8
"""A server that has anything to say says it within milliseconds; waiting is what this finds."""
hostile_bytes = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def beginning() -> list[bytes]:
    """Frames of a client that behaves: calls of each kind, side by side."""
    return [
        h.settings((4, 2**30)),
        h.window_update(0, 2**20),
        h.call(1, path("Echo"), b"echoed"),
        h.request(3, path("Converse")),
        h.frame(h.DATA, 0, 3, h.message(b"said") + h.message(b"and")),
        h.frame(h.PING, 0, 0, b"12345678"),
        h.call(5, path("Count"), COUNT.pack(3, 100)),
        h.frame(h.SETTINGS, h.ACK, 0),
        h.request(7, path("Wait"), (b"grpc-timeout", b"5S")),
        h.frame(h.DATA, h.END_STREAM, 7, h.message(b"")),
        h.window_update(3, 1_000),
        h.frame(h.RST_STREAM, 0, 7, struct.pack(">I", 8)),
        h.frame(h.DATA, h.END_STREAM, 3, h.message(b"said")),
    ]


_streams = st.one_of(st.integers(0, 9), st.sampled_from((2**31 - 1, 2**31, 2**32 - 1)))
_lengths = st.one_of(st.none(), st.integers(0, 64), st.sampled_from((16_384, 16_385, 2**24 - 1)))
_values = st.one_of(
    st.integers(0, 9), st.sampled_from((2**14, 2**24 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1))
)
_payloads = st.one_of(
    st.binary(max_size=64),
    st.builds(lambda value: struct.pack(">I", value), _values),
    st.lists(st.tuples(st.integers(0, 9), _values), max_size=4).map(
        lambda pairs: b"".join(struct.pack(">HI", *pair) for pair in pairs)
    ),
    st.sampled_from((h.request_fields(path("Echo")), h.request_fields(path("Converse")), h.message(b"x"))),
    st.builds(h.message, st.binary(max_size=20), st.booleans(), st.one_of(st.none(), _values)),
    st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=4).map(
        lambda fields: b"".join(h.field(*one) for one in fields)
    ),
)
_frames = st.builds(h.frame, st.integers(0, 12), st.integers(0, 255), _streams, _payloads, _lengths)
_sound_frames = st.builds(
    h.frame,
    st.sampled_from((h.DATA, h.HEADERS, h.RST_STREAM, h.SETTINGS, h.WINDOW_UPDATE, h.CONTINUATION)),
    st.sampled_from((0, h.END_STREAM, h.END_HEADERS, h.END_HEADERS | h.END_STREAM)),
    st.sampled_from((0, 1, 3, 5, 7, 9, 11)),
    _payloads,
)


@pytest.mark.fuzz
@hostile_bytes
@given(st.sampled_from((b"", h.PREFACE, h.GREETING, h.PREFACE[:10])), st.binary(max_size=300), st.booleans())
def test_noise(victim: Victim, start: bytes, noise: bytes, is_half_closed: bool) -> None:
    victim.play(start + noise, is_half_closed)


@pytest.mark.fuzz
@hostile_bytes
@given(st.lists(st.one_of(_frames, _sound_frames), max_size=12), st.booleans())
def test_frames_that_mean_nothing(victim: Victim, frames: list[bytes], is_half_closed: bool) -> None:
    victim.play(h.GREETING + b"".join(frames), is_half_closed)


@pytest.mark.fuzz
@hostile_bytes
@given(st.data(), st.integers(0, 2**32 - 1))
def test_calls_that_are_changed(victim: Victim, data: st.DataObject, seed: int) -> None:
    frames, random = beginning(), Random(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        place, other = data.draw(st.tuples(st.integers(0, len(frames) - 1), st.integers(0, len(frames) - 1)))
        way = data.draw(st.sampled_from(("change", "drop", "swap", "repeat", "cut", "insert")))
        match way:
            case "change":
                changed = bytearray(frames[place])
                changed[random.randrange(len(changed))] = random.randrange(256)
                frames[place] = bytes(changed)
            case "drop" if len(frames) > 1:
                del frames[place]
            case "swap" if other < len(frames):
                frames[place], frames[other] = frames[other], frames[place]
            case "cut":
                frames[place] = frames[place][: random.randrange(1, len(frames[place]) + 1)]
            case "insert":
                frames.insert(place, data.draw(_frames))
            case _:
                frames.insert(place, frames[place])
    victim.play(h.PREFACE + b"".join(frames))


@pytest.mark.fuzz
@hostile_bytes
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_field_blocks_of_noise(victim: Victim, blocks: list[bytes]) -> None:
    frames = [
        h.frame(h.HEADERS, h.END_HEADERS | h.END_STREAM, 1 + 2 * place, block)
        for place, block in enumerate(blocks)
    ]
    victim.play(h.GREETING + b"".join(frames))


@pytest.mark.fuzz
@hostile_bytes
@given(
    st.sampled_from(("Echo", "Sum", "SumIterating", "Converse", "ConverseYielding", "Count")),
    st.lists(
        st.builds(h.message, st.binary(max_size=30), st.booleans(), st.one_of(st.none(), _values)), max_size=4
    ),
    st.binary(max_size=8),
    st.sampled_from((0, h.END_STREAM)),
)
def test_messages_that_lie(
    victim: Victim, method: str, messages: list[bytes], rest: bytes, flags: int
) -> None:
    body = b"".join(messages) + rest
    victim.play(h.GREETING + h.request(1, path(method)) + h.frame(h.DATA, flags, 1, body))


BAD_FIELDS: dict[str, bytes] = {
    "no path": b"".join(h.field(*one) for one in ((b":method", b"POST"), (b":scheme", b"http"))),
    "another method": h.request_fields(path("Echo")).replace(b"POST", b"PUT!"),
    "upper case": h.request_fields(path("Echo"), (b"UPPER", b"x")),
    "two paths": h.request_fields(path("Echo"), (b":path", b"/again")),
    "pseudo field at the end": h.request_fields(path("Echo"), (b":late", b"x")),
    "another content type": h.request_fields(path("Echo")).replace(b"application/grpc", b"application/json"),
    "no name": h.request_fields(path("Echo"), (b"", b"x")),
    "a line end": h.request_fields(path("Echo"), (b"evil", b"a\r\nb: c")),
    "connection": h.request_fields(path("Echo"), (b"connection", b"close")),
    "half a table size": b"\x3f",
    "a table of 2 GiB": b"\x3f\xe1\xff\xff\xff\x07" + h.request_fields(path("Echo")),
    "index 0": b"\x80",
    "an index of no entry": b"\xff\x80\x01",
    "an integer without end": b"\xff" + b"\xff" * 200,
    "a text that is longer": b"\x00\x7f\xff\xff\xff\x07abc",
    "a text that is no Huffman code": b"\x00\x84\xff\xff\xff\xff\x01x",
    "a time-out that is none": h.request_fields(path("Echo"), (b"grpc-timeout", b"soon")),
    "a time-out that is too long": h.request_fields(path("Echo"), (b"grpc-timeout", b"9" * 40 + b"H")),
    "bytes that are no base64": h.request_fields(path("Echo"), (b"evil-bin", b"\xff!!")),
    "a path that is no text": h.request_fields(path("Echo")).replace(b"Echo", b"\xff\xfe\x00\x80"),
    "an encoding of nobody": h.request_fields(path("Echo"), (b"grpc-encoding", b"lzma")),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_field_blocks_that_are_wrong(victim: Victim, name: str) -> None:
    head = h.frame(h.HEADERS, h.END_HEADERS, 1, BAD_FIELDS[name])
    victim.play(h.GREETING + head + h.frame(h.DATA, h.END_STREAM, 1, h.message(b"x")))


def test_nothing_of_all_that_is_left(victim: Victim) -> None:
    victim.check_end()


ENDINGS: dict[str, bytes] = {
    "a frame that is too large": h.frame(h.DATA, 0, 1, bytes(2**24 - 1)),
    "a length without end": h.frame(h.HEADERS, h.END_HEADERS, 3, b"x", length=2**24 - 1),
    "settings of a wrong length": h.frame(h.SETTINGS, 0, 0, bytes(5)),
    "settings of a stream": h.frame(h.SETTINGS, 0, 1, bytes(6)),
    "a window that overflows": h.window_update(0, h.WINDOW_MAX) * 2,
    "a window update of nothing": h.window_update(0, 0),
    "a ping of a wrong length": h.frame(h.PING, 0, 0, b"short"),
    "data of no stream": h.frame(h.DATA, 0, 0, b"x"),
    "data of a stream that was never open": h.frame(h.DATA, 0, 99, b"x"),
    "a stream of the server's": h.request(2, path("Echo")),
    "a stream that goes back": h.request(9, path("Sum")) + h.request(7, path("Sum")),
    "a continuation of nothing": h.frame(h.CONTINUATION, h.END_HEADERS, 1, b""),
    "another frame within a field block": h.request(9, path("Sum"), flags=0)
    + h.frame(h.PING, 0, 0, bytes(8)),
    "a push": h.frame(h.PUSH_PROMISE, h.END_HEADERS, 1, struct.pack(">I", 2)),
    "padding that is longer than its frame": h.frame(h.DATA, h.PADDED, 1, b"\xffx"),
    "padded data of a stream that was never open": h.frame(h.DATA, h.PADDED, 99, b"\x01xx"),
    "padded data behind the end": h.frame(h.DATA, h.END_STREAM, 1, h.message(b"x"))
    + h.frame(h.DATA, h.PADDED, 1, b"\x01xx"),
    "a window of 2 GiB": h.settings((4, 2**31)),
    "a frame size that is too small": h.settings((5, 1)),
    "no preface": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_what_breaks_the_connection_ends_it_and_no_other(victim: Victim, name: str) -> None:
    """By GOAWAY or by its end; RFC 9113, 5.4.1."""
    start = b"" if name == "no preface" else h.GREETING + h.request(1, path("Converse"))
    with h.connect_blocking(victim.process.port) as link:
        link.settimeout(HEARD_SECONDS)
        received = b""
        try:
            link.sendall(start + ENDINGS[name])
            while not any(one.kind == h.GOAWAY for one in h.parse(received)[0]):
                data = link.recv(2**16)
                if not data:
                    break
                received += data
        except ConnectionError:
            pass
    victim.check()


ENDED_CALLS: dict[str, bytes] = {
    "a flag of compression without one": h.message(b"x", is_compressed=True),
    "a message that is longer than what follows": h.message(b"x", length=100),
    "a message beyond the limit": h.message(b"x", length=2**32 - 1),
    "half a prefix": b"\x00\x00",
    "no message": b"",
}


@pytest.mark.parametrize("name", ENDED_CALLS)
def test_a_call_that_is_wrong_ends_without_an_answer(victim: Victim, name: str) -> None:
    """And the connection goes on."""
    with h.connect_blocking(victim.process.port) as link:
        link.settimeout(HEARD_SECONDS)
        link.sendall(h.GREETING + h.request(1, path("Echo")))
        link.sendall(h.frame(h.DATA, h.END_STREAM, 1, ENDED_CALLS[name]) + h.call(3, path("Echo"), b"next"))
        received, frames = b"", list[h.Frame]()
        while {1, 3} - {one.stream for one in frames if h.ends(one)}:
            data = link.recv(2**16)
            assert data, "the connection is over"
            received += data
            frames = h.parse(received)[0]
    answers = {
        stream: b"".join(one.payload for one in frames if (one.kind, one.stream) == (h.DATA, stream))
        for stream in (1, 3)
    }
    assert answers == {1: b"", 3: h.message(b"next")}


MALFORMED = (
    "no path",
    "upper case",
    "two paths",
    "pseudo field at the end",
    "no name",
    "a line end",
    "connection",
)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_ends_alone(victim: Victim, name: str) -> None:
    """RFC 9113, 8.1.1: an error of its stream."""
    with h.connect_blocking(victim.process.port) as link:
        link.settimeout(HEARD_SECONDS)
        link.sendall(h.GREETING + h.frame(h.HEADERS, h.END_HEADERS, 1, BAD_FIELDS[name]))
        link.sendall(h.frame(h.DATA, h.END_STREAM, 1, h.message(b"x")) + h.call(3, path("Echo"), b"next"))
        received, frames = b"", list[h.Frame]()
        while not any(one.stream == 3 and h.ends(one) for one in frames):
            data = link.recv(2**16)
            assert data, "the connection is over"
            received += data
            frames = h.parse(received)[0]
    assert [one.payload for one in frames if one.kind == h.RST_STREAM] == [struct.pack(">I", 1)]
    assert [one.payload for one in frames if (one.kind, one.stream) == (h.DATA, 3)] == [h.message(b"next")]
