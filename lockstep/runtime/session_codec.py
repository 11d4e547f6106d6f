"""Session streams on the wire: translation between `session.proto` and `lockstep.core.commands`, in both directions.

Law: decoding what was encoded gives the same messages again, and decoding anything else either gives messages or raises
`Rejected` (INVALID_ARGUMENT): no bytes of a client can make a primary stop. Encoding raises for what decoding would refuse, for a
stream ends by that. What names and sizes are allowed is the primary's business.
"""

from collections.abc import Generator, Sequence

from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.core.requests import ClientMessage
from lockstep.core.server_messages import AnyServerMessage
from lockstep.runtime.client_message_codec import (
    check_count,
    decode_client_message,
    encode_client_message,
)
from lockstep.runtime.field_limit import STREAM_LOOKED_BYTES_MIN, look_at_fields
from lockstep.runtime.server_message_codec import decode_server_message, encode_server_message
from lockstep.runtime.wire import parse
from lockstep.wire.v1 import session_pb2 as pb

MESSAGES_MAX = 10_000
"""Commands and requests in one message of a stream: ten times what our own clients say at once."""
_MESSAGES_A_STEP = 16


def encode_request(set_name: SetName, messages: Sequence[ClientMessage]) -> pb.SessionRequest:
    """One stream message with everything that the client has to say now."""
    request = pb.SessionRequest(resource_set=set_name)
    for message in messages:
        encode_client_message(message, request.messages.add())
    return request


def decode_request(request: pb.SessionRequest) -> tuple[SetName, tuple[ClientMessage, ...]]:
    """Resource set and messages; raises `Rejected` for what is no message of a client."""
    set_name = SetName(request.resource_set)
    check_count(len(request.messages), MESSAGES_MAX, "commands and requests")
    return set_name, tuple([decode_client_message(set_name, message) for message in request.messages])


def decode_in_steps(
    data: bytes | memoryview,
) -> Generator[None, None, tuple[SetName, tuple[ClientMessage, ...]]]:
    """As `decode_request`, from bytes. Yields where a step may end: each is of some milliseconds at most, whatever the bytes are,
    but for the parser's and a largest command's, which are of some ten."""
    if len(data) > STREAM_LOOKED_BYTES_MIN:
        yield from look_at_fields(pb.SessionRequest, data)
    request = parse(pb.SessionRequest(), data)
    set_name = SetName(request.resource_set)
    check_count(len(request.messages), MESSAGES_MAX, "commands and requests")
    messages: list[ClientMessage] = []
    for message in request.messages:
        messages.append(decode_client_message(set_name, message))
        if len(messages) % _MESSAGES_A_STEP == 0:
            yield
    return set_name, tuple(messages)


def encode_response(set_name: SetName, messages: Sequence[AnyServerMessage]) -> pb.SessionResponse:
    """One stream message with everything that the primary has to say now; `messages` is not empty."""
    last = messages[-1]
    response = pb.SessionResponse(resource_set=set_name, epoch=last.epoch, commit_index=last.commit_index)
    for message in messages:
        wire = response.messages.add()
        encode_server_message(message, wire)
        if message.epoch != last.epoch:
            wire.epoch = message.epoch
        if message.commit_index != last.commit_index:
            wire.commit_index = message.commit_index
    return response


def decode_response(response: pb.SessionResponse) -> tuple[SetName, tuple[AnyServerMessage, ...]]:
    """Resource set and messages; raises `Rejected` for what is no message of a primary."""
    epoch, commit_index = Epoch(response.epoch), LogIndex(response.commit_index)
    decoded: list[AnyServerMessage] = []
    for message in response.messages:
        own_epoch = Epoch(message.epoch) if message.HasField("epoch") else epoch
        own_index = LogIndex(message.commit_index) if message.HasField("commit_index") else commit_index
        decoded.append(decode_server_message(own_epoch, own_index, message))
    return SetName(response.resource_set), tuple(decoded)
