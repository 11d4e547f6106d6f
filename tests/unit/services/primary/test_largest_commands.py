"""What a client says its set's stream takes in; what that would refuse is refused on its way out, with a clear error. The client
would say it again and again, and nothing behind it."""

import pytest

from lockstep.client.command_window import CommandWindow
from lockstep.client.session_stream import UnsayableError, check_sayable, encode
from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.commands import OutgoingMessage, PublishCommand
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, SetName
from services.primary.core.settings import PrimarySettings
from tests.unit.lockstep.runtime.serialized import decoded, whole

SET = SetName("one")
COUNT = PrimarySettings().command_messages_max


def publish(count: int, headers: int) -> PublishCommand:
    messages = tuple(
        OutgoingMessage(
            b"p",
            b"x" * 200,
            True,
            0,
            tuple((f"x-header-{place:02}", f"some-value-{number:06}") for place in range(headers)),
        )
        for number in range(count)
    )
    return PublishCommand(1, "e", "k", messages, None, 0)


def test_a_publish_of_as_many_messages_as_a_set_takes_with_five_headers_each_is_taken_in() -> None:
    command = publish(COUNT, 5)
    check_sayable(SET, command)
    _, (taken,) = decoded(whole(encode(SET, (command,))))
    assert isinstance(taken, PublishCommand) and len(taken.messages) == COUNT


def test_one_with_a_dozen_headers_each_is_refused_before_it_is_said() -> None:
    command = publish(COUNT, 12)
    with pytest.raises(UnsayableError) as raised:
        check_sayable(SET, command)
    assert raised.value.code is ErrorCode.TOO_LARGE
    assert "fields" in raised.value.message
    with pytest.raises(UnsayableError):
        encode(SET, (command,))


def test_headers_take_room_in_what_is_said_at_once() -> None:
    window = CommandWindow()
    for number in range(3):
        window.submit(number, publish(100, 100), Epoch(1))
    taken = window.take(Epoch(1), count_max=256, bytes_max=1 << 20)
    assert len(taken) == 1, "a megabyte of headers"


def test_headers_that_messages_share_are_counted_once() -> None:
    window = CommandWindow()
    alike = AlikeMessages((b"x",) * 100, b"", True, 0, (("name", "value"),) * 100)
    window.submit(0, PublishCommand(0, "e", "k", alike, None, 0), Epoch(1))
    assert window.bytes < 100 * 300
