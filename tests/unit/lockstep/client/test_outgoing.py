"""What a caller may hand to `publish`: priorities."""

import pytest

from lockstep.client.outgoing import outgoing
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, Rejected


def test_bodies_get_the_priority_of_the_call_and_messages_keep_their_own() -> None:
    own = OutgoingMessage(b"", b"own", priority=1)
    found = outgoing([b"a", own, bytearray(b"b")], b"", True, 0, (), 8)
    assert [(message.body, message.priority) for message in found] == [(b"a", 8), (b"own", 1), (b"b", 8)]
    assert outgoing(b"a", b"", True, 0, (), 8)[0].priority == 8


@pytest.mark.parametrize("priority", [-1, 10, 255])
def test_what_is_no_priority_is_refused_before_it_is_sent(priority: int) -> None:
    for message, of_all in ((b"a", priority), (OutgoingMessage(b"", b"a", priority=priority), 4)):
        with pytest.raises(Rejected) as raised:
            outgoing(message, b"", True, 0, (), of_all)
        assert raised.value.code is ErrorCode.INVALID_ARGUMENT
