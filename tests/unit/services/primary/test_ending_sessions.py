"""Sessions that end together: none of them is looked for among what the others have, and others have their turn between them."""

import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from lockstep.core.errors import ErrorCode
from lockstep.core.inputs import AnyInput, ClientSaid, Tick, Woken
from lockstep.core.requests import AttachSession, DetachSession
from lockstep.core.server_messages import SessionEnded
from services.primary.core.hands import Hands
from services.primary.core.settings import PrimarySettings
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
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        where = frame.f_code.co_filename
        if not where.endswith(_FILES):
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        rig.core.handle(given, rig.now)
    finally:
        sys.settrace(before)
    return steps


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
    looks = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal looks
        looks += event == "call" and frame.f_code is Hands.end_return.__code__

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        rig.acknowledge(1)
    finally:
        sys.setprofile(before)
    assert looks == 1, "what is coming back still is looked through once for a queue"
    assert list(other.positions("q")) == in_hand


def test_a_session_that_holds_much_gives_it_back_in_parts_in_its_order() -> None:
    held, part = 10, 3
    the = Vanished(1, PrimarySettings(given_back_max=part), each_holds=held)
    rig, other = the.rig, the.rig.client()
    other.consume("q")
    given_back = [0]
    the.handle(Tick(SET))
    for _ in range(2 * held):
        given_back.append(len(other.in_hand))
        rig.boottime_ms += 1
        the.handle(Woken(SET))
    steps = [behind - before for before, behind in pairwise(given_back)]
    assert max(steps) == part and sum(steps) == held
    assert list(other.in_hand) == sorted(other.in_hand)
    assert {one.delivery_count for one in other.in_hand.values()} == {1}
    assert list(rig.state.sessions.by_key) == [other.session]
    rig.check_log()


def test_transactions_of_a_session_are_rolled_back_in_parts() -> None:
    rig = Rig(PrimarySettings(given_back_max=20))
    client = rig.client(timeout_ms=1000)
    client.declare("q")
    for _ in range(6):
        transaction = client.begin()
        client.publish("q", b"x", transaction=transaction, sequence=1)
    client.lose_stream()
    rig.boottime_ms += 1000
    left = []
    rig.feed(Tick(SET))
    while rig.state.sessions.by_key:
        left.append(len(rig.state.transactions.open()))
        rig.boottime_ms += 1
        rig.feed(Woken(SET))
    assert left == [4, 2, 0]
    rig.check_log()


def test_a_session_that_comes_back_amid_its_end_has_what_is_left() -> None:
    the = Vanished(1, PrimarySettings(given_back_max=3), each_holds=10)
    rig, (client,) = the.rig, the.clients
    the.handle(Tick(SET))
    client.resume()
    for _ in range(5):
        rig.pass_time(50)
    assert the.left == 1
    assert sum(map(len, rig.core.context.dispatch.held_by(client.session).values())) == 7
    rig.check_log()


def test_who_detaches_with_much_in_hand_is_answered_behind_the_last_of_it() -> None:
    rig = Rig(PrimarySettings(given_back_max=3))
    client, other = rig.client(), rig.client()
    client.declare("q")
    client.publish("q", *[b""] * 10)
    client.consume("q")
    other.consume("q")
    client.say(DetachSession())
    assert not client.heard_of(SessionEnded) and len(other.in_hand) == 3
    while not client.is_closed:
        rig.feed(Tick(SET))
    assert client.heard_of(SessionEnded)[0].code is ErrorCode.NONE
    assert len(other.in_hand) == 10 and {one.delivery_count for one in other.in_hand.values()} == {0}
    assert list(rig.state.sessions.by_key) == [other.session]
    rig.check_log()
