"""Who is waited for before a frame leaves: clients that were just answered, and came back at once when they were before."""

from lockstep.core.commands import CommitCommand, OutgoingMessage, PublishCommand
from lockstep.core.effects import WakeAt
from lockstep.core.ids import LogIndex
from lockstep.core.inputs import ClientSaid, StoreSaid, Tick, Woken
from lockstep.core.store_protocol import Appended
from services.primary.core.gathering import PROMPT_TIMES, Gathering
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import OWN, SET, Rig, RigClient

SMALL = PublishCommand(0, "", "q", (OutgoingMessage(b"", b"x"),))


class Clients:
    """So many, whose frames are committed `frame_ms` after they left; they have published many times, and come back at once."""

    def __init__(self, count: int, frame_ms: int = 4, settings: PrimarySettings | None = None) -> None:
        self.rig = Rig(settings, gathered_bytes=1 << 20, gathering_ms_max=10)
        self.clients = [self.rig.client() for _ in range(count)]
        self.clients[0].declare("q")
        self.rig.holds_store = True
        for _ in range(20):
            self.publish(*self.clients)
            self.rig.feed(Tick(SET))
            self.commit(frame_ms)
        self.sent = self.frames()

    def publish(self, *clients: RigClient) -> None:
        for client in clients:
            client.command(SMALL)

    def commit(self, ms: int = 4) -> None:
        """What has left is durable so much later."""
        self.rig.boottime_ms += ms
        self.rig.acknowledge()

    def wait(self, ms: int) -> None:
        self.rig.boottime_ms += ms
        self.rig.feed(Woken(SET))

    def frames(self) -> int:
        return len(self.rig.core.context.writer.log.frames_after(LogIndex(0)))

    @property
    def more(self) -> int:
        """Frames that left since the beginning."""
        return self.frames() - self.sent


class SharedStream(Clients):
    """Users of one stream, as a proxy's clients are: each commits one transaction after the other, at once when answered."""

    def __init__(self, users: int, rounds: int = 20) -> None:
        super().__init__(1)
        self.users = users
        self.turns(rounds)

    def turns(self, rounds: int, late_ms: int = 0) -> None:
        """All commit, and the last of them comes so much later."""
        for _ in range(rounds):
            self.commits(self.users - 1)
            if late_ms:
                self.wait(late_ms)
            self.commits(1)
            self.rig.feed(Tick(SET))
            self.commit()
        self.sent = self.frames()

    def commits(self, count: int) -> None:
        client = self.clients[0]
        for _ in range(count):
            key = client.begin()
            last = PublishCommand(client.number + 1, "", "q", SMALL.messages, key, 1)
            client.command(CommitCommand(0, key, 1, last_publish=last))


def test_a_frame_waits_for_all_who_were_just_answered() -> None:
    the = Clients(3)
    the.publish(*the.clients[:2])
    assert the.more == 0
    the.publish(the.clients[2])
    assert the.more == 1


def test_commands_that_wait_for_others_hold_up_nothing_that_came_before_them() -> None:
    the = Clients(3, settings=PrimarySettings(frame_bytes_max=1000))
    full = PublishCommand(0, "", "q", (OutgoingMessage(b"", bytes(2000)),))
    number = the.clients[0].command(full)
    assert the.more == 1, "what fills a frame waits for nobody"
    core, rig = the.rig.core, the.rig
    end = rig.unacknowledged.popleft()
    core.take(StoreSaid(SET, Appended(SET, core.epoch, OWN.incarnation, end, 1 << 40)), rig.now)
    the.publish(the.clients[1])
    assert the.more == 1, "the third is waited for"
    assert number in the.clients[0].answers


def test_commands_that_wait_for_others_leave_with_them() -> None:
    the = Clients(3)
    the.publish(*the.clients[:2])
    the.rig.core.take(ClientSaid(SET, the.clients[0].stream, ()), the.rig.now)
    assert the.more == 0
    the.publish(the.clients[2])
    assert the.more == 1
    the.commit()
    assert all(client.number in client.answers for client in the.clients)


def test_who_does_not_come_in_time_is_not_waited_for_any_longer() -> None:
    the = Clients(3)
    the.publish(*the.clients[:2])
    the.wait(4)
    assert the.more == 0
    the.wait(2)
    assert the.more == 1


def test_who_came_late_is_not_waited_for_until_he_was_in_time_some_times_again() -> None:
    the = Clients(2)
    first, second = the.clients
    the.publish(first)
    the.wait(6)
    the.commit()
    the.publish(first)
    assert the.more == 2
    the.commit()
    the.publish(second, first)
    assert the.more == 3
    for _ in range(PROMPT_TIMES):
        the.commit()
        before = the.more
        the.publish(second, first)
        assert the.more == before + 1
    the.commit()
    before = the.more
    the.publish(first)
    assert the.more == before
    the.publish(second)
    assert the.more == before + 1


def test_who_came_in_time_by_chance_is_not_waited_for() -> None:
    the = Clients(2)
    first, second = the.clients
    the.publish(first)
    the.wait(6)
    the.commit()
    for _ in range(PROMPT_TIMES - 1):
        the.publish(second, first)
        the.commit()
    the.publish(first)
    before = the.more
    the.commit()
    the.publish(first)
    assert the.more == before + 1


def test_who_was_answered_for_the_first_time_is_not_waited_for() -> None:
    the = Clients(1)
    newcomer = the.rig.client()
    the.commit()
    the.publish(newcomer, *the.clients)
    the.commit()
    before = the.frames()
    the.publish(*the.clients)
    assert the.frames() == before + 1


def test_who_is_gone_is_not_waited_for() -> None:
    the = Clients(2)
    the.publish(the.clients[0])
    assert the.more == 0
    the.clients[1].lose_stream()
    assert the.more == 1


def test_a_wait_is_as_long_as_frames_needed_and_bounded() -> None:
    for frame_ms, waited_ms in ((1, 2), (4, 5), (50, 10)):
        the = Clients(2, frame_ms)
        the.publish(the.clients[0])
        the.wait(waited_ms - 1)
        assert the.more == 0, frame_ms
        the.wait(1)
        assert the.more == 1, frame_ms


def test_the_driver_is_asked_once_to_wake_the_core_when_the_wait_is_over() -> None:
    the = Clients(3)
    asked = []
    for client in the.clients[:2]:
        command = PublishCommand(client.number + 1, "", "q", SMALL.messages)
        effects = the.rig.core.handle(ClientSaid(SET, client.stream, (command,)), the.rig.now)
        asked += [effect for effect in effects if isinstance(effect, WakeAt)]
    assert asked == [WakeAt(SET, the.rig.boottime_ms + 5)]


def test_nobody_is_woken_for_nothing() -> None:
    the = Clients(2)
    effects = the.rig.core.handle(Woken(SET), the.rig.now)
    assert not [effect for effect in effects if isinstance(effect, WakeAt)]


def test_what_fills_a_frame_waits_for_nobody() -> None:
    the = Clients(2, settings=PrimarySettings(frame_bytes_max=1000))
    the.publish(the.clients[0])
    assert the.more == 0
    the.clients[0].command(PublishCommand(0, "", "q", (OutgoingMessage(b"", bytes(1000)),)))
    assert the.more == 1


def test_a_client_with_something_under_way_is_not_waited_for() -> None:
    the = Clients(2)
    the.publish(*the.clients)
    assert the.more == 1
    the.publish(the.clients[0])
    the.commit()
    assert the.more == 1
    the.publish(the.clients[1])
    assert the.more == 2


def test_a_frame_waits_for_all_users_of_a_shared_stream() -> None:
    the = SharedStream(4)
    the.commits(3)
    assert the.more == 0
    the.commits(1)
    assert the.more == 1


def test_a_user_of_a_shared_stream_who_does_not_come_back_is_waited_for_once() -> None:
    the = SharedStream(4)
    the.commits(3)
    the.wait(5)
    assert the.more == 1
    the.commit()
    the.commits(3)
    assert the.more == 2, "the first of them leaves at once, the others when that is committed"


def test_users_of_a_shared_stream_are_waited_for_when_each_has_been_in_time_several_times() -> None:
    the = SharedStream(4, rounds=3)
    the.turns(1, late_ms=6)
    the.turns(PROMPT_TIMES - 1)
    the.commits(3)
    assert the.more, "three rounds are not enough for one of four who may be late each time"
    the.commits(1)
    the.commit()
    the.turns(2 * PROMPT_TIMES)
    the.commits(3)
    assert the.more == 0


def test_the_stream_of_many_users_is_forgotten_with_those_who_are_waited_for() -> None:
    the = SharedStream(2)
    other = the.rig.client()
    the.commits(1)
    assert the.more == 0
    the.clients[0].lose_stream()
    assert the.more == 1
    the.commit()
    the.publish(other)
    assert the.more == 2


def test_waiting_can_be_switched_off() -> None:
    gathering = Gathering(0)
    for now_ms in range(1, 10):
        gathering.came(1, now_ms, is_commit=True)
        gathering.commit_answered(1, now_ms)
        gathering.answered(1, now_ms)
        assert gathering.until(now_ms) == 0
