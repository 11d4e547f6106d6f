"""What leaves together: begins wait for what comes behind them, and little for what left before it."""

from lockstep.core.commands import BeginCommand, OutgoingMessage, PublishCommand
from lockstep.core.ids import LogIndex
from lockstep.core.inputs import ClientSaid, Tick
from lockstep.core.requests import OpenConsumer
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient


def make(gathered_bytes: int = 10_000) -> tuple[Rig, RigClient]:
    rig = Rig(gathered_bytes=gathered_bytes)
    client = rig.client()
    client.declare("q")
    return rig, client


def frames(rig: Rig) -> int:
    return len(rig.core.context.writer.log.frames_after(LogIndex(0)))


def test_a_begin_is_answered_and_leaves_with_what_comes_behind_it() -> None:
    rig, client = make()
    before = frames(rig)
    key = client.begin()
    assert frames(rig) == before
    client.publish("q", b"1", transaction=key, sequence=1)
    assert frames(rig) == before + 1
    assert client.commit(key, 1).code == 0


def test_a_begin_is_answered_at_once_behind_whatever_is_under_way() -> None:
    rig, client = make()
    rig.holds_store = True
    published = client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"x"),)))
    begun = client.command(BeginCommand(0, 0))
    assert client.answers[begun].code == 0
    assert published not in client.answers


def test_a_begin_that_nothing_follows_leaves_with_the_next_tick() -> None:
    rig, client = make()
    before = frames(rig)
    client.begin()
    rig.feed(Tick(SET))
    assert frames(rig) == before + 1


def test_little_waits_until_what_left_before_it_is_committed() -> None:
    rig, client = make()
    before = frames(rig)
    rig.holds_store = True
    for _ in range(5):
        client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"x"),)))
    assert frames(rig) == before + 1
    rig.acknowledge(1)
    assert frames(rig) == before + 2
    rig.acknowledge()
    assert len(client.answers) == 6


def test_much_does_not_wait() -> None:
    rig, client = make()
    before = frames(rig)
    rig.holds_store = True
    client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"x"),)))
    client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", bytes(10_000)),)))
    assert frames(rig) == before + 2


def test_nothing_waits_for_longer_than_a_tick() -> None:
    rig, client = make()
    before = frames(rig)
    rig.holds_store = True
    for _ in range(2):
        client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"x"),)))
    rig.feed(Tick(SET))
    assert frames(rig) == before + 2


def test_what_is_taken_is_written_and_answered_with_the_next_input() -> None:
    rig, client = make(gathered_bytes=0)
    before, answers = frames(rig), len(client.answers)
    for number in (2, 3, 4):
        command = PublishCommand(number, "", "q", (OutgoingMessage(b"", b"x"),))
        rig.core.take(ClientSaid(SET, client.stream, (command,)), rig.now)
    assert (frames(rig), len(client.answers)) == (before, answers)
    rig.feed(Tick(SET))
    assert (frames(rig), len(client.answers)) == (before + 1, answers + 3)


def test_what_is_taken_is_done_with_an_acknowledgement_that_completes_nothing() -> None:
    rig, client = make(gathered_bytes=0)
    client.publish("q", b"there")
    rig.holds_store = True
    client.command(PublishCommand(0, "", "q", (OutgoingMessage(b"", b"on its way"),)))
    rig.core.take(ClientSaid(SET, client.stream, (OpenConsumer(1, "q", 5),)), rig.now)
    rig.acknowledged(rig.core.commit_index)
    assert client.bodies("q") == [b"there"]
