"""Session streams on the wire: translation between `session.proto` and `lockstep.core.commands`, in both directions.

Law: decoding what was encoded gives the same messages again, and decoding anything else either gives messages or raises
`Rejected` (INVALID_ARGUMENT): no bytes of a client can make a primary stop. Encoding raises for what decoding would refuse, for a
stream ends by that. What names and sizes are allowed is the primary's business.
"""

from collections.abc import Generator, Sequence

from lockstep.core.ids import SetName
from lockstep.core.requests import ClientMessage
from lockstep.core.server_messages import AnyServerMessage
from lockstep.runtime import client_message_codec, server_message_codec
from lockstep.runtime.bodies_apart import LOOKED_BYTES_MIN, BodiesApart, Found
from lockstep.runtime.client_message_codec import check_count, decode_client_message, encode_client_message
from lockstep.runtime.field_limit import FIELDS_MAX, STREAM_LOOKED_BYTES_MIN, check_fields, look_at_fields
from lockstep.runtime.server_message_codec import decode_server_message, encode_server_message
from lockstep.runtime.turns import LeftToThread
from lockstep.runtime.wire import Serialized, parse
from lockstep.wire.v1 import session_pb2 as pb

MESSAGES_MAX = 10_000
"""Commands and requests in one message of a stream: ten times what our own clients say at once."""
_MESSAGES_A_STEP = 16
_NOTHING: Found = {}
_FIELDS_AROUND = 2
"""At most so many are around bodies that are apart, once more."""
_REQUEST = BodiesApart(
    pb.SessionRequest.DESCRIPTOR, "messages", ("publish", "bodies"), ("commit", "last_publish", "bodies")
)
_RESPONSE = BodiesApart(
    pb.SessionResponse.DESCRIPTOR,
    "messages",
    ("deliveries", "batch", "bodies"),
    ("browse_answer", "batch", "bodies"),
)


def encode_request(
    set_name: SetName, messages: Sequence[ClientMessage], fields_max: int = FIELDS_MAX
) -> Serialized:
    """One stream message with everything that the client has to say now. Raises `Rejected` TOO_LARGE for one of more than
    `fields_max` fields; nobody counts those of a small one.
    """
    request = pb.SessionRequest(resource_set=set_name)
    apart: dict[int, Sequence[bytes]] = {}
    wires = request.messages
    for message in messages:
        bodies = encode_client_message(message, wires.add())
        if bodies is not None:
            apart[len(wires) - 1] = bodies
    data = request.SerializeToString()
    if not apart:
        if len(data) > STREAM_LOOKED_BYTES_MIN:
            check_fields(pb.SessionRequest, data, fields_max)
        return data
    if len(data) + sum([sum(map(len, bodies)) for bodies in apart.values()]) > STREAM_LOOKED_BYTES_MIN:
        fields_apart = sum([len(bodies) + _FIELDS_AROUND for bodies in apart.values()])
        check_fields(pb.SessionRequest, data, fields_max - fields_apart)
    return _REQUEST.serialize(request, apart)


def decode_request(data: bytes | memoryview) -> tuple[SetName, tuple[ClientMessage, ...]]:
    """Resource set and messages of a short one; raises `Rejected` for what is no message of a client."""
    request = parse(pb.SessionRequest(), data)
    set_name, messages = SetName(request.resource_set), request.messages
    if len(messages) == 1:
        # Nearly always.
        return set_name, (decode_client_message(set_name, messages[0]),)
    check_count(len(messages), MESSAGES_MAX, "commands and requests")
    return set_name, tuple([decode_client_message(set_name, message) for message in messages])


def decode_in_steps(
    data: bytes | memoryview,
) -> Generator[LeftToThread, None, tuple[SetName, tuple[ClientMessage, ...]]]:
    """As `decode_request`, whatever the bytes are, in steps (`in_turns`): each is of some milliseconds at most, but for the
    parser's and a largest command's, which are of some ten."""
    if len(data) > STREAM_LOOKED_BYTES_MIN:
        yield from look_at_fields(pb.SessionRequest, data)
    found: Found = _NOTHING
    if len(data) >= LOOKED_BYTES_MIN:
        data, found = yield from _REQUEST.take_from(data)
        yield None
    request = parse(pb.SessionRequest(), data)
    yield None
    set_name = SetName(request.resource_set)
    check_count(len(request.messages), MESSAGES_MAX, "commands and requests")
    messages: list[ClientMessage] = []
    for place, message in enumerate(request.messages):
        decoded = decode_client_message(set_name, message)
        bodies = found.get(place)
        messages.append(decoded if bodies is None else client_message_codec.with_bodies(decoded, bodies))
        if len(messages) % _MESSAGES_A_STEP == 0:
            yield None
    return set_name, tuple(messages)


def encode_response(set_name: SetName, messages: Sequence[AnyServerMessage]) -> Serialized:
    """One stream message with everything that the primary has to say now; `messages` is not empty."""
    last = messages[-1]
    response = pb.SessionResponse(resource_set=set_name, epoch=last.epoch, commit_index=last.commit_index)
    apart: dict[int, Sequence[bytes]] = {}
    wires = response.messages
    for message in messages:
        wire = wires.add()
        bodies = encode_server_message(message, wire)
        if bodies is not None:
            apart[len(wires) - 1] = bodies
        if message is last:
            continue  # As most are.
        if message.epoch != last.epoch:
            wire.epoch = message.epoch
        if message.commit_index != last.commit_index:
            wire.commit_index = message.commit_index
    return _RESPONSE.serialize(response, apart) if apart else response.SerializeToString()


def decode_response(
    data: bytes | memoryview, found: Found = _NOTHING
) -> tuple[SetName, tuple[AnyServerMessage, ...]]:
    """Resource set and messages of a short one, which `found` was taken from; raises `Rejected` for what is no message of a
    primary.
    """
    response = parse(pb.SessionResponse(), data)
    # All numbers as they are: to name their types here would be a call more for each.
    epoch, commit_index = response.epoch, response.commit_index
    decoded: list[AnyServerMessage] = []
    for message in response.messages:
        own_epoch = message.epoch if message.HasField("epoch") else epoch
        own_index = message.commit_index if message.HasField("commit_index") else commit_index
        decoded.append(decode_server_message(own_epoch, own_index, message))  # type: ignore[arg-type]
    if found:
        for place, bodies in found.items():
            decoded[place] = server_message_codec.with_bodies(decoded[place], bodies)
    return response.resource_set, tuple(decoded)  # type: ignore[return-value]


def decode_long_response(
    data: bytes | memoryview,
) -> Generator[LeftToThread, None, tuple[SetName, tuple[AnyServerMessage, ...]]]:
    """The same of one of `LOOKED_BYTES_MIN` or more, in steps (`in_turns`)."""
    rest, found = yield from _RESPONSE.take_from(data)
    yield None
    return decode_response(rest, found)
