"""What a session holds, its client has in hand: also where the stream was lost between a settle and its answer (P7)."""

from random import Random

import pytest
from msgspec.structs import replace

from lockstep.client import session_events as e
from lockstep.core.commands import (
    BeginCommand,
    CommitCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.ids import Epoch, QueuePosition, TransactionKey
from lockstep.core.requests import DetachSession, HeldDeliveries, UnansweredSettle
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.client_core import CoreClient
from tests.unit.services.primary.primary_rig import Rig, RigClient


def delivered(client: CoreClient) -> list[QueuePosition]:
    """Of all deliveries, in order."""
    arrived = [event for event in client.heard_events if isinstance(event, e.Delivered)]
    return [message.position for event in arrived for message in event.messages]


def succeeded(rig: Rig, *clients: CoreClient) -> Rig:
    """The next reign, to which the rig's was handed over, with all of its log."""
    rig.holds_store = False
    rig.acknowledge()
    successor = rig.next_reign("hand-over")
    for client in clients:
        client.turn_to(successor)
    return successor


@pytest.fixture
def client(rig: Rig) -> CoreClient:
    """It has the only message of the only queue in hand, and takes another."""
    other = rig.client()
    other.declare("q")
    other.publish("q", b"1")
    client = CoreClient(rig, "real")
    client.feed(e.StartConsuming(1, "q", 1))
    client.hear_all()
    client.core.grant(1, 1)
    client.feed(e.Turn())
    client.hear_all()
    return client


def in_transaction(client: CoreClient) -> TransactionKey:
    client.submit("begin", BeginCommand(0))
    client.hear_all()
    (key,) = client.core.window.operations
    return key


@pytest.mark.parametrize("how", ["release", "fail", "accept, rolled back"])
@pytest.mark.parametrize("is_handed_over", [False, True])
def test_what_came_again_with_a_lost_stream_comes_again(
    rig: Rig, client: CoreClient, how: str, is_handed_over: bool
) -> None:
    (position,) = delivered(client)
    match how:
        case "release":
            client.submit("settle", SettleCommand(0, "q", Epoch(1), (position,), Disposition.RELEASE))
        case "fail":
            client.submit("settle", SettleCommand(0, "q", Epoch(1), (position,), Disposition.FAIL))
        case _:
            key = in_transaction(client)
            client.submit("settle", SettleCommand(0, "q", Epoch(1), (position,), transaction=key))
            client.submit("rollback", RollbackCommand(0, key))
    while client.write():
        pass
    assert client.is_said_to_hold() == {("q", position)} and not client.holds()
    if is_handed_over:
        rig = succeeded(rig, client)
    else:
        client.lose()
    client.come_back()
    assert delivered(client) == [position, position]
    assert client.is_said_to_hold() == client.holds() == {("q", position)}
    rig.check_log()


def test_what_a_settle_names_that_was_not_taken_stays_in_hand(rig: Rig, client: CoreClient) -> None:
    (position,) = delivered(client)
    client.submit("settle", SettleCommand(0, "q", Epoch(1), (position,)))
    client.lose()
    client.come_back()
    assert delivered(client) == [position]
    assert not client.holds() and not rig.state.queues.by_name["q"].length


def test_what_a_rejected_settle_names_stays_in_hand(rig: Rig, client: CoreClient) -> None:
    (position,) = delivered(client)
    key = in_transaction(client)
    client.submit("rollback", RollbackCommand(0, key))
    client.submit("settle", SettleCommand(0, "q", Epoch(1), (position,), transaction=key))
    client.write()
    client.lose()
    client.come_back()
    assert any(isinstance(event, e.CommandRejected) for event in client.heard_events)
    assert delivered(client) == [position]
    assert client.is_said_to_hold() == client.holds() == {("q", position)}


def settle(client: RigClient, position: QueuePosition, disposition: int) -> UnansweredSettle:
    """A settle of one that the primary takes; its client hears no answer."""
    client.in_hand.clear()
    number = client.command(SettleCommand(0, "q", Epoch(1), (position,), disposition))
    return UnansweredSettle(number, "q", (position,))


def attached_again(client: RigClient, position: QueuePosition, *settling: UnansweredSettle) -> bool:
    """The client attaches and consumes; whether it gets the message again."""
    client.lose_stream()
    client.in_hand.clear()
    client.attach(held=(HeldDeliveries("q", Epoch(1), (position,)),), settling=settling)
    client.consume("q", 1)
    return bool(client.in_hand)


def test_the_last_settle_that_names_a_message_says_what_became_of_it(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q", 10)
    (position,) = client.positions("q")
    first = settle(client, position, Disposition.RELEASE)
    rejected = settle(client, position, 17)
    to_come = UnansweredSettle(client.number + 1, "q", (position,))
    assert not attached_again(client, position, first, rejected)
    assert not attached_again(client, position, first, to_come)
    assert attached_again(client, position, first, rejected, settle(client, position, Disposition.RELEASE))


def test_a_client_that_says_nothing_of_its_settles_keeps_what_it_names(rig: Rig) -> None:
    client = rig.client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q", 10)
    (position,) = client.positions("q")
    settle(client, position, Disposition.RELEASE)
    assert not attached_again(client, position)


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_what_a_partial_reject_has_left_stays_in_hand_though_its_answer_is_lost(is_handed_over: bool) -> None:
    rig = Rig(PrimarySettings(command_bytes_max=1))
    other, client = rig.client(), CoreClient(rig, "real")
    other.declare("dead", is_durable=False)
    other.declare("q", dead_letter_exchange="", dead_letter_key="dead")
    for number in range(3):
        other.publish("q", b"%d" % number)
    client.feed(e.StartConsuming(1, "q", 3))
    client.hear_all()
    positions = tuple(delivered(client))
    reject_all = SettleCommand(0, "q", Epoch(1), positions, Disposition.REJECT, may_be_partial=True)
    client.submit("reject", reject_all)
    while client.write():
        pass
    assert rig.bodies("dead") == [b"0"]
    if is_handed_over:
        rig = succeeded(rig, client)
    else:
        client.lose()
    client.come_back()
    (done,) = [event for event in client.heard_events if isinstance(event, e.CommandDone)]
    assert done.value == 1
    assert client.is_said_to_hold() == client.holds() == {("q", position) for position in positions[1:]}
    client.submit("rest", replace(reject_all, positions=positions[1:], may_be_partial=False))
    client.hear_all()
    assert rig.bodies("dead") == [b"0", b"1", b"2"] and not rig.bodies("q")
    assert tuple(delivered(client)) == positions
    rig.check_log()


# --- any history ----------------------------------------------------------------------------------------------------------

QUEUES = ("q", "r")
SETTINGS = PrimarySettings(delivery_batch_max=3, outcome_retention_ms=100_000)


class History:
    """Three clients that take, give back and lose their streams, through failovers and hand-overs."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rig = Rig(SETTINGS)
        setter_up = self.rig.client("setter-up")
        setter_up.declare("q", delivery_count_max=3, dead_letter_exchange="", dead_letter_key="r")
        setter_up.declare("r", is_durable=False)
        setter_up.say(DetachSession())
        self.clients = [CoreClient(self.rig, f"c{number}") for number in range(3)]
        self.consumers = 0

    def step(self) -> None:
        chance, rig, random = self.random.random(), self.rig, self.random
        if chance < 0.9:
            self._step(random.choice(self.clients))
        elif chance < 0.93:
            self._pass_time(random.choice((20, 400)))
        elif chance < 0.95:
            rig.holds_store = True
        elif chance < 0.98:
            rig.holds_store = False
            rig.acknowledge()
        elif chance < 0.993:
            self.rig = succeeded(rig, *self.clients)
        else:
            self.rig = Rig(SETTINGS, predecessor=rig)
            for client in self.clients:
                client.turn_to(self.rig)

    def _step(self, client: CoreClient) -> None:
        chance = self.random.random()
        if chance < 0.25:
            client.write()
        elif chance < 0.45:
            client.read(self.random.choice((1, 2, 1000)))
        elif chance < 0.52:
            client.lose()
        else:
            self._act(client, self.random.random())

    def _act(self, client: CoreClient, chance: float) -> None:
        random, held = self.random, client.core.line.held
        open_now = sorted(client.core.window.operations)
        if chance < 0.2:
            message = OutgoingMessage(b"", b"x", random.random() < 0.7)
            client.submit("publish", PublishCommand(0, "", random.choice(QUEUES), (message,)))
        elif chance < 0.55 and client.holds():
            queue, position = random.choice(sorted(client.holds()))
            key = random.choice(open_now) if open_now and random.random() < 0.4 else None
            epoch = client.epochs[queue, position]
            disposition = 1 if key is not None else random.choice((1, 2, 2, 3, 4))
            client.submit("settle", SettleCommand(0, queue, epoch, (position,), disposition, key))
        elif chance < 0.7 and len(held.consumers) < 3:
            self.consumers += 1
            queue, credit = random.choice(QUEUES), random.randint(1, 5)
            client.feed(e.StartConsuming(self.consumers, queue, credit))
        elif chance < 0.75 and held.consumers:
            client.feed(e.StopConsuming(random.choice(sorted(held.consumers))))
        elif chance < 0.85 and held.consumers:
            client.core.grant(random.choice(sorted(held.consumers)), random.randint(1, 3))
            client.feed(e.Turn())
        elif chance < 0.92:
            client.submit("begin", BeginCommand(0))
        elif open_now:
            key = random.choice(open_now)
            client.submit("end", CommitCommand(0, key, 0) if chance < 0.96 else RollbackCommand(0, key))

    def _pass_time(self, milliseconds: int) -> None:
        self.rig.pass_time(milliseconds)
        for client in self.clients:
            client.pass_time(milliseconds)

    def rest(self) -> None:
        """Everything arrives and is committed."""
        self.rig.holds_store = False
        self.rig.acknowledge()
        for _ in range(20):
            for client in self.clients:
                client.hear_all()
            self._pass_time(100)


@pytest.mark.parametrize("seed", range(100))
def test_after_any_history_client_and_set_agree_on_what_is_in_hand(seed: int) -> None:
    history = History(seed)
    for _ in range(history.random.randint(50, 250)):
        history.step()
    history.rest()
    history.rig.check_log()
    for client in history.clients:
        assert client.is_said_to_hold() == client.holds(), client.core
