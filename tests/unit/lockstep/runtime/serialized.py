"""Serialised messages as whoever hears them has them."""

import subprocess
import sys

from google.protobuf.message import Message

from lockstep.core.ids import SetName
from lockstep.core.pieces import at_once
from lockstep.core.requests import ClientMessage
from lockstep.runtime.session_codec import decode_in_steps
from lockstep.runtime.wire import Serialized


def whole(serialized: Serialized) -> bytes:
    """In one piece."""
    return serialized if isinstance(serialized, bytes) else b"".join(serialized)


def decoded(data: bytes | memoryview) -> tuple[SetName, tuple[ClientMessage, ...]]:
    """What a client says, after all steps."""
    return at_once(decode_in_steps(data))


def reserialized(kind: type[Message], data: bytes) -> bytes:
    """`data`, a serialised message of that kind, read and serialised again by another implementation of protobuf."""
    program = (
        f"import sys; from {kind.__module__} import {kind.__name__} as R\n"
        "from google.protobuf.internal import api_implementation as a; assert a.Type() == 'python'\n"
        "r = R.FromString(sys.stdin.buffer.read()); sys.stdout.buffer.write(r.SerializeToString())"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        input=data,
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        check=True,
    ).stdout
