"""Whatever a client sends: nothing comes out of the listener as an exception, nothing hangs, nothing stays behind.

The listener runs in a process of its own (tests/amqp/listener_process.py): what crashes the engine is a failure with its input.
"""

import struct
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.amqp import codec, hostile
from tests.amqp.listener_process import ListenerProcess
from tests.amqp.raw_client import attach_receiver

EXAMPLES = max(settings().max_examples, 1_000)
"""Of each test: five of them are 5,000 in `make test`, and 100,000 in `make fuzz`."""
hostile_bytes = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)


@pytest.fixture(scope="module")
def listener() -> Iterator[ListenerProcess]:
    with ListenerProcess() as process:
        yield process


_seeds = st.integers(0, 2**32 - 1)
_frames = st.lists(
    st.builds(hostile.hostile, st.integers(0, len(hostile.KINDS) - 1), st.one_of(st.just(0), _seeds)),
    max_size=12,
)
_turns = st.sampled_from((0, 0, 1, 4))
BEGINNING = b"".join(hostile.beginning())


def _pieces(data: bytes, size: int, turns: int) -> list[tuple[bytes, int]]:
    size = max(size, len(data) // 300)
    return [(data[at : at + size], turns) for at in range(0, len(data), size)]


@pytest.mark.fuzz
@hostile_bytes
@given(_frames, st.lists(_turns, min_size=20, max_size=20))
@example(
    [codec.performative("begin", 1, remote_channel=codec.ushort(0)), codec.performative("end", 1)], [4] * 20
)
def test_frames_behind_a_usual_beginning(
    listener: ListenerProcess, frames: list[bytes], turns: list[int]
) -> None:
    pieces = [(BEGINNING, turns[-1]), *zip(frames, turns, strict=False)]
    assert listener.play(pieces) > 0


@pytest.mark.fuzz
@hostile_bytes
@given(_frames, st.sampled_from((1, 7, 100, 4096, 2**20)), _turns)
def test_frames_in_any_pieces(listener: ListenerProcess, frames: list[bytes], size: int, turns: int) -> None:
    listener.play(_pieces(BEGINNING + b"".join(frames), size, turns))


@pytest.mark.fuzz
@hostile_bytes
@given(st.data(), _seeds, _turns)
def test_beginnings_that_are_wrong(
    listener: ListenerProcess, data: st.DataObject, seed: int, turns: int
) -> None:
    frames = hostile.beginning()
    for _ in range(data.draw(st.integers(1, 3))):
        place, other = data.draw(st.tuples(st.integers(0, len(frames) - 1), st.integers(0, len(frames) - 1)))
        way = data.draw(st.sampled_from(("change", "drop", "swap", "repeat")))
        if way == "change":
            frames[place] = hostile.mutated(frames[place], Random(seed))
        elif way == "drop" and len(frames) > 1:
            del frames[place]
        elif way == "swap" and other < len(frames):
            frames[place], frames[other] = frames[other], frames[place]
        else:
            frames.insert(place, frames[place])
    listener.play([(frame, turns) for frame in frames])


@pytest.mark.fuzz
@hostile_bytes
@given(
    st.lists(st.tuples(st.integers(0, len(BEGINNING) - 1), st.integers(0, 255)), max_size=6), _frames, _turns
)
def test_bytes_that_are_changed(
    listener: ListenerProcess, changes: list[tuple[int, int]], frames: list[bytes], turns: int
) -> None:
    data = bytearray(BEGINNING + b"".join(frames))
    for place, byte in changes:
        data[place] = byte
    listener.play(_pieces(bytes(data), 512, turns))


@pytest.mark.fuzz
@hostile_bytes
@given(
    st.sampled_from((b"", codec.AMQP_HEADER, codec.SASL_HEADER, codec.AMQP_HEADER + hostile.beginning()[1])),
    st.lists(
        st.one_of(
            st.binary(max_size=64),
            st.builds(codec.frame, st.binary(max_size=64), st.integers(0, 300), kind=st.integers(0, 2)),
            st.builds(
                codec.frame,
                st.binary(max_size=16),
                doff=st.integers(0, 255),
                size=st.one_of(st.integers(0, 64), st.sampled_from((2**17 + 1, 2**31, 2**32 - 1))),
            ),
        ),
        max_size=6,
    ),
)
def test_noise(listener: ListenerProcess, start: bytes, rest: list[bytes]) -> None:
    listener.play([(start, 0), *((data, 1) for data in rest)])


def test_what_the_engine_cannot_encode_again_is_not_said_back(listener: ListenerProcess) -> None:
    """It took its own error for a size, and ended the process: with ten bytes of capabilities."""
    endless = struct.pack(">BIIB", 0xF0, 5, 2**32 - 1, 0x40)
    source = codec.composite(
        "source", address="queue", capabilities=endless, outcomes=endless, filter=endless
    )
    listener.play([(BEGINNING, 9), (attach_receiver("other", "queue", 3, source=source), 9)])
