"""Serialising big bytes behind a message."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.runtime.wire import serialize_with
from lockstep.wire.v1.primary_pb2 import SubscribeResponse

FRAMES = SubscribeResponse.DESCRIPTOR.fields_by_name["frames"]
DURABLE = SubscribeResponse.Frames.DESCRIPTOR.fields_by_name["durable"]


def response(*durable: bytes) -> SubscribeResponse:
    frames = SubscribeResponse.Frames(durable=durable, transient=[b"t"], commit_index=300)
    return SubscribeResponse(resource_set="orders", epoch=5, frames=frames)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_values_are_read_as_if_they_had_been_filled_in(values: list[bytes]) -> None:
    assert SubscribeResponse.FromString(serialize_with(response(), FRAMES, DURABLE, values)) == response(
        *values
    )


def test_values_follow_those_that_the_message_has() -> None:
    encoded = serialize_with(response(b"first"), FRAMES, DURABLE, [b"second"])
    assert SubscribeResponse.FromString(encoded) == response(b"first", b"second")


@pytest.mark.parametrize("size", [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 0x1FFFFF, 0x200000])
def test_sizes_of_one_to_four_bytes(size: int) -> None:
    values = [b"x" * size, b"y"]
    assert SubscribeResponse.FromString(serialize_with(response(), FRAMES, DURABLE, values)) == response(
        *values
    )


def test_another_implementation_of_protobuf_reads_the_same() -> None:
    encoded = serialize_with(response(), FRAMES, DURABLE, [b"one", b"two"])
    program = (
        "import sys; from lockstep.wire.v1.primary_pb2 import SubscribeResponse as R\n"
        "from google.protobuf.internal import api_implementation as a; assert a.Type() == 'python'\n"
        "r = R.FromString(sys.stdin.buffer.read()); sys.stdout.buffer.write(r.SerializeToString())"
    )
    read = subprocess.run(
        [sys.executable, "-c", program],
        input=encoded,
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        check=True,
    )
    assert SubscribeResponse.FromString(read.stdout) == response(b"one", b"two")
