"""Frames: all records of a command are in one, the last of them answers it, and what waits for the store is bounded."""

from lockstep.core.commands import (
    DeclareQueueCommand,
    OutgoingMessage,
    PublishCommand,
    QueueOptions,
)
from lockstep.core.errors import ErrorCode
from lockstep.core.frames import decode_records
from lockstep.core.ids import LogIndex
from lockstep.core.inputs import ClientSaid, StoreLost
from lockstep.core.server_messages import PushedBack
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, publish

MIXED = tuple(OutgoingMessage(b"", bytes(100), number % 2 == 0) for number in range(10))


def test_a_command_of_many_records_is_in_one_frame_and_its_last_record_answers() -> None:
    rig = Rig(PrimarySettings(frame_bytes_max=300))
    client = rig.client()
    client.declare("q")
    rig.holds_store = True
    for _ in range(5):
        client.command(PublishCommand(0, "", "q", MIXED))
    rig.check_log()
    log = rig.core.context.writer.log
    frames = [decode_records(frame) for frame in log.frames_after(LogIndex(0))]
    numbers = [
        [found.record.command.number for found in frame if found.record.command is not None]
        for frame in frames
    ]
    assert numbers[-5:] == [[2], [3], [4], [5], [6]]
    assert all(frame[-1].record.command is not None for frame in frames[-5:])
    assert all(len(frame) == 11 for frame in frames[-5:])


def test_small_commands_that_came_together_share_a_frame() -> None:
    rig = Rig()
    client = rig.client()
    client.declare("q")
    before = len(rig.core.context.writer.log.frames_after(LogIndex(0)))
    rig.feed(ClientSaid(SET, client.stream, tuple(numbered(number) for number in range(2, 52))))
    assert len(rig.core.context.writer.log.frames_after(LogIndex(0))) == before + 1
    assert len(client.answers) == 51


def numbered(number: int) -> PublishCommand:
    return PublishCommand(number, "", "q", (OutgoingMessage(b"", b"x"),))


def test_what_waits_for_a_store_that_is_away_is_bounded() -> None:
    rig = Rig(PrimarySettings(uncommitted_bytes_max=10_000))
    client = rig.client()
    client.declare("q")
    rig.feed(StoreLost(SET))
    for _ in range(30):
        client.command(publish("q", bytes(1000)))
    (pushed,) = client.heard_of(PushedBack)
    assert pushed.code is ErrorCode.UNAVAILABLE
    assert len(rig.bodies("q")) < 12


def test_frames_in_flight_are_limited_and_the_rest_gathers() -> None:
    rig = Rig()
    client = rig.client()
    rig.holds_store = True
    for name in "abcdef":
        client.command(DeclareQueueCommand(0, name, QueueOptions()))
    assert len(rig.unacknowledged) == 2
    rig.acknowledge(1)
    assert len(rig.unacknowledged) == 2
    rig.acknowledge()
    assert len(client.answers) == 6
    rig.check_log()
