"""Sessions that end together: none of them is looked for among what the others have, and others have their turn between them."""

import pytest

from lockstep.core.inputs import AnyInput, ClientSaid, Tick, Woken
from lockstep.core.requests import AttachSession, DetachSession
from services.primary.core.settings import PrimarySettings
from tests.counted_work import CountedCalls, CountedOpcodes
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient

OTHERS = (5, 50)


def _crowd(rig: Rig, others: int) -> list[RigClient]:
    """Each holds a message of one queue, and consumes of an exclusive and an auto-delete queue; the first and so many more."""
    publisher = rig.client()
    publisher.declare("q")
    publisher.publish("q", *[b""] * (others + 1))
    clients = [rig.client() for _ in range(others + 1)]
    for number, client in enumerate(clients):
        client.declare(f"exclusive {number}", is_exclusive=True)
        client.declare(f"left {number}", is_auto_delete=True)
        client.consume("q", credit=1)
        client.consume(f"left {number}")
    for client in clients[1:]:
        client.lose_stream()
    return clients


_FILES = "attachments.py", "dispatch.py", "queue_view.py", "hands.py", "lane.py", "auto_deletion.py"


def _steps(rig: Rig, given: AnyInput) -> int:
    """Steps of the interpreter that are taken for an input, where sessions, deliveries and queues that end are looked after."""
    with CountedOpcodes(_FILES) as opcodes:
        rig.core.handle(given, rig.now)
    return opcodes.total


def test_a_session_ends_in_as_many_steps_whatever_others_have() -> None:
    steps = []
    for others in OTHERS:
        rig = Rig()
        first = _crowd(rig, others)[0]
        steps.append(_steps(rig, ClientSaid(SET, first.stream, (DetachSession(),))))
        assert not {"exclusive 0", "left 0"} & rig.state.queues.by_name.keys()
        assert {"exclusive 1", "left 1"} <= rig.state.queues.by_name.keys()
    assert steps[0] == steps[1]


def test_a_session_is_resumed_in_as_many_steps_whatever_others_hold() -> None:
    steps = []
    for others in OTHERS:
        rig = Rig()
        first = _crowd(rig, others)[0]
        first.lose_stream()
        first.stream = rig.new_stream(first)
        attach = AttachSession(SET, first.session_id, first.session, first.session_epoch, 10_000, 0, ())
        steps.append(_steps(rig, ClientSaid(SET, first.stream, (attach,))))
    assert steps[0] == steps[1]


class Vanished:
    """Sessions that have timed out together."""

    def __init__(self, sessions: int, settings: PrimarySettings, each_holds: int = 0) -> None:
        self.rig = rig = Rig(settings)
        self.clients = [rig.client(timeout_ms=1000) for _ in range(sessions)]
        self.clients[0].declare("q")
        self.clients[0].publish("q", *[b""] * (sessions * each_holds))
        for client in self.clients:
            if each_holds:
                client.consume("q", credit=each_holds)
        for client in self.clients:
            client.lose_stream()
        rig.boottime_ms += 1000

    @property
    def left(self) -> int:
        return len(self.rig.state.sessions.by_key)

    def handle(self, given: AnyInput) -> list[int]:
        """When it wants to be woken."""
        self.rig.wakes.clear()
        self.rig.feed(given)
        return self.rig.wakes


def test_sessions_that_time_out_together_end_between_what_others_do() -> None:
    the = Vanished(5, PrimarySettings(session_ends_max=2))
    assert the.handle(Tick(SET)) == [the.rig.boottime_ms + 1]
    assert the.left == 3
    the.rig.boottime_ms += 1
    assert the.handle(Woken(SET)) == [the.rig.boottime_ms + 1]
    assert the.left == 1
    the.rig.boottime_ms += 1
    assert the.handle(Woken(SET)) == []
    assert the.left == 0


def test_those_that_hold_much_end_fewer_at_a_time() -> None:
    the = Vanished(5, PrimarySettings(given_back_max=20), each_holds=10)
    the.handle(Tick(SET))
    assert the.left == 3


def test_who_is_woken_for_something_else_too_asks_for_one_more_time_only() -> None:
    the = Vanished(9, PrimarySettings(session_ends_max=2))
    assert len(the.handle(Tick(SET))) == 1
    assert the.handle(Woken(SET)) == []
    assert the.handle(Tick(SET)) == []
    the.rig.boottime_ms += 1
    assert len(the.handle(Woken(SET))) == 1


def test_a_session_that_comes_back_while_others_end_goes_on() -> None:
    the = Vanished(5, PrimarySettings(session_ends_max=2))
    the.handle(Tick(SET))
    late = the.clients[-1]
    late.attach()
    for _ in range(5):
        the.rig.pass_time(50)
    assert list(the.rig.state.sessions.by_key) == [late.session]
    the.rig.check_log()


@pytest.mark.parametrize("is_committed", [True, False])
def test_ends_go_on_between_ticks_only_where_commands_are_taken(is_committed: bool) -> None:
    """A set below its minimum takes no commands after a while: what it does by itself is bounded then, too."""
    rig = Rig(PrimarySettings(session_ends_max=1, uncommitted_bytes_max=1), holds_store=True)
    rig.acknowledge()
    clients = [rig.client(timeout_ms=1000) for _ in range(3)]
    rig.acknowledge()
    for client in clients:
        client.lose_stream()
    rig.boottime_ms += 1000
    rig.feed(Tick(SET))
    if is_committed:
        rig.acknowledge()
    assert (rig.core.commit_index == rig.core.log_end) is is_committed
    rig.boottime_ms += 1
    rig.feed(Woken(SET))
    assert len(rig.state.sessions.by_key) == (1 if is_committed else 2)


def test_what_many_gave_back_goes_out_in_its_old_order_when_all_of_it_is_committed() -> None:
    the = Vanished(3, PrimarySettings(), each_holds=2)
    rig, other = the.rig, the.rig.client()
    other.consume("q")
    in_hand = sorted(position for client in the.clients for position in client.positions("q"))
    rig.holds_store = True
    rig.feed(Tick(SET))
    assert the.left == 1 and other.positions("q") == ()
    with CountedCalls() as calls:
        rig.acknowledge(1)
    assert calls.by_name["Hands.end_return"] == 1, (
        "what is coming back still is looked through once for a queue"
    )
    assert list(other.positions("q")) == in_hand
