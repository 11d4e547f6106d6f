"""Messages that differ in nothing but their bodies are as good as messages each by itself, wherever they go."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.alike_messages import AlikeMessages, joined, size_of_outgoing, sizes_of
from lockstep.core.commands import CommitCommand, OutgoingMessage, PublishCommand
from lockstep.core.ids import Epoch, LogIndex, SetName
from lockstep.runtime.session_codec import decode_request, encode_request
from tests.unit.lockstep.runtime.serialized import whole

BODIES = st.lists(st.binary(max_size=20), min_size=1, max_size=5)
KINDS = st.tuples(
    st.binary(max_size=3),
    st.booleans(),
    st.integers(0, 2),
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2).map(tuple),
    st.integers(3, 5),
)
ALIKE = st.builds(lambda bodies, kind: AlikeMessages(tuple(bodies), *kind), BODIES, KINDS)
SET = SetName("s")
KEY = LogIndex(7), Epoch(1)


def each_of(messages: AlikeMessages) -> tuple[OutgoingMessage, ...]:
    """The same, each by itself."""
    properties, is_durable, ttl_ms, headers, priority = messages.kind
    return tuple(
        OutgoingMessage(properties, body, is_durable, ttl_ms, headers, priority) for body in messages.bodies
    )


@given(ALIKE, ALIKE)
def test_they_are_a_sequence_like_any_other(alike: AlikeMessages, other: AlikeMessages) -> None:
    each = each_of(alike)
    assert alike == each == tuple(alike) and each == alike
    assert (len(alike), alike[0], alike[-1]) == (len(each), each[0], each[-1])
    assert alike[1:] == each[1:] and isinstance(alike[1:], AlikeMessages)
    assert (alike == other) == (each == each_of(other))
    assert sizes_of(alike) == sizes_of(each) and size_of_outgoing(alike) == size_of_outgoing(each)
    assert size_of_outgoing(each) == sum(len(one.body) + len(one.properties) for one in each)
    assert alike != 1 and alike != each[0]


@given(st.lists(ALIKE, min_size=1, max_size=4), st.data())
def test_joined_they_are_all_of_them_in_their_order(parts: list[AlikeMessages], data: st.DataObject) -> None:
    given_parts = [part if data.draw(st.booleans()) else each_of(part) for part in parts]
    whole = joined(given_parts)
    assert tuple(whole) == tuple(message for part in parts for message in part)
    assert isinstance(whole, AlikeMessages) == (
        all(isinstance(part, AlikeMessages) for part in given_parts)
        and len({part.kind for part in parts}) == 1
    )


@given(ALIKE)
def test_on_the_wire_they_are_what_each_by_itself_is_and_come_out_alike(alike: AlikeMessages) -> None:
    for command in (
        PublishCommand(1, "x", "q", alike, KEY, 2),
        CommitCommand(1, KEY, 2, 3, PublishCommand(1, "", "q", alike, KEY, 2)),
    ):
        request = encode_request(SET, [command])
        _, (decoded,) = decode_request(whole(request))
        assert decoded == command
        publish = decoded.last_publish if isinstance(decoded, CommitCommand) else decoded
        assert isinstance(publish, PublishCommand) and isinstance(publish.messages, AlikeMessages)
    each = PublishCommand(1, "x", "q", each_of(alike), KEY, 2)
    assert encode_request(SET, [each]) == encode_request(SET, [PublishCommand(1, "x", "q", alike, KEY, 2)])
