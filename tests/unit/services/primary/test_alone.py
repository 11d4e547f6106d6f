"""What one client has much of ends, or is taken up again, in short steps; nothing comes between, and nobody sees half of it."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from lockstep.core.clock import Now
from lockstep.core.commands import (
    CommitCommand,
    Disposition,
    PurgeQueueCommand,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.effects import AnyEffect, CloseBackupStream, CloseClientStream, TellBackup, TellClient
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import (
    BrokerId,
    DiskId,
    Epoch,
    Incarnation,
    LogIndex,
    QueuePosition,
    SessionId,
    TransactionKey,
)
from lockstep.core.inputs import (
    AnyInput,
    BackupSaid,
    ClientSaid,
    ClientStreamClosed,
    LeaseExtended,
    LeaseLost,
    MapSeen,
    Tick,
    Woken,
)
from lockstep.core.records import Dequeue, Rollback, RollbackReason
from lockstep.core.replication import Subscribe, SubscriptionRefused
from lockstep.core.requests import (
    AttachSession,
    Browse,
    CloseConsumer,
    DetachSession,
    Heartbeat,
    HeldDeliveries,
    UnansweredSettle,
)
from lockstep.core.server_messages import AttachRefused, BrowseAnswer, HeartbeatAnswered, SessionAttached
from services.primary.core.removing import EVICTED_AT_ONCE
from services.primary.core.settings import PrimarySettings
from tests.counted_work import CountedCalls
from tests.unit.services.primary.primary_rig import LEASE_MS, SET, Rig, RigClient, publish, take_turns

SMALL = PrimarySettings(piece_cost=1)
DISPOSITIONS = (Disposition.ACCEPT, Disposition.RELEASE, Disposition.FAIL, Disposition.REJECT)
FEW, MANY = 1500, 4500
"""Both are more than one step is for."""
SLACK = 1.4
"""Of calls in the longest step: pages fall as they do."""


class Longest:
    """Calls of functions in the longest step that the core took since."""

    def __init__(self, rig: Rig) -> None:
        self.calls = 0
        self._rig = rig
        self._handle = rig.core.handle
        rig.core.handle = self._measured  # type: ignore[method-assign]

    def _measured(self, given: AnyInput, now: Now) -> list[AnyEffect]:
        with CountedCalls() as calls:
            effects = self._handle(given, now)
        self.calls = max(self.calls, calls.total)
        return effects


def single_operations(client: RigClient, count: int, **options: object) -> TransactionKey:
    """A transaction in which one client has accepted so many messages of a queue and published as many to another, one by one."""
    rig = client.rig
    for name in sorted({"from", "to"} - rig.state.queues.by_name.keys()):
        client.declare(name)
    hold(client, "from", count)
    key, sequence = client.begin(), 0
    said: list[SettleCommand | object] = []
    for _, position in list(client.in_hand):
        for command in (
            SettleCommand(0, "from", rig.core.epoch, (position,), Disposition.ACCEPT, key),
            publish("to", b"new", transaction=key, **options),
        ):
            sequence += 1
            client.number += 1
            said.append(msgspec.structs.replace(command, number=client.number, sequence=sequence))
    for begin in range(0, len(said), 500):
        client.say(*said[begin : begin + 500])  # type: ignore[arg-type]
        take_turns(rig)
    client.in_hand.clear()
    return key


def many_held(client: RigClient, count: int) -> None:
    client.declare("q")
    hold(client, "q", count)


def hold(client: RigClient, queue: str, count: int) -> None:
    """The client is delivered so many messages that it has published."""
    part = client.rig.core.context.settings.command_messages_max
    for begin in range(0, count, part):
        client.publish(queue, *[b""] * min(part, count - begin))
    client.consume(queue, credit=count)
    for _ in range(count):
        if len(client.in_hand) < count:
            client.rig.pass_time(1)
    assert len(client.in_hand) == count


def held(client: RigClient) -> tuple[HeldDeliveries, ...]:
    return (HeldDeliveries("q", client.rig.core.epoch, tuple(position for _, position in client.in_hand)),)


def time_out(client: RigClient) -> None:
    client.lose_stream()
    client.rig.boottime_ms += 60_000
    client.rig.feed(Tick(SET))


def commits(client: RigClient, count: int) -> Callable[[], object]:
    key = single_operations(client, count)
    return lambda: client.command(CommitCommand(0, key, 2 * count))


def rolls_back(client: RigClient, count: int) -> Callable[[], object]:
    key = single_operations(client, count)
    return lambda: client.command(RollbackCommand(0, key))


def vanishes_amid_a_transaction(client: RigClient, count: int) -> Callable[[], object]:
    single_operations(client, count)
    return lambda: time_out(client)


def vanishes_with_messages(client: RigClient, count: int) -> Callable[[], object]:
    many_held(client, count)
    return lambda: time_out(client)


def leaves_with_messages(client: RigClient, count: int) -> Callable[[], object]:
    many_held(client, count)
    return lambda: client.say(DetachSession())


def vanishes_with_transactions(client: RigClient, count: int) -> Callable[[], object]:
    client.declare("q")
    for _ in range(count // 5):
        client.command(publish("q", b"", transaction=client.begin(), sequence=1))
    return lambda: time_out(client)


def vanishes_with_exclusive_queues(client: RigClient, count: int) -> Callable[[], object]:
    for number in range(count // 10):
        client.declare(f"q{number}", is_exclusive=True)
    return lambda: time_out(client)


def vanishes_with_auto_delete_queues(client: RigClient, count: int) -> Callable[[], object]:
    for number in range(count // 10):
        client.declare(f"q{number}", is_auto_delete=True)
        client.consume(f"q{number}")
    client.lose_stream()
    return lambda: client.rig.pass_time(60_000)


def vanishes_with_a_message_of_each_queue(client: RigClient, count: int) -> Callable[[], object]:
    for number in range(count // 10):
        client.declare(f"q{number}")
        client.publish(f"q{number}", b"")
        client.say(CloseConsumer(client.consume(f"q{number}")))
    return lambda: time_out(client)


def commits_beyond_a_limit(client: RigClient, count: int) -> Callable[[], object]:
    client.declare("to", length_max=3, is_evicting=True)
    return commits(client, count)


def commits_what_expires(client: RigClient, count: int) -> Callable[[], object]:
    key = single_operations(client, count, ttl_ms=1_000_000)
    return lambda: client.command(CommitCommand(0, key, 2 * count))


def prepares_to_leave(client: RigClient, count: int) -> Callable[[], object]:
    """It goes on with nothing under another primary."""
    single_operations(client, count)
    rig = client.rig

    def leave() -> None:
        rig.perform(rig.core.prepare_to_leave(rig.now))

    return leave


def settles(disposition: int) -> Callable[[RigClient, int], Callable[[], int]]:
    def ending(client: RigClient, count: int) -> Callable[[], int]:
        client.declare("dead")
        client.declare("q", dead_letter_key="dead")
        hold(client, "q", count)
        command = SettleCommand(0, "q", client.rig.core.epoch, client.positions("q"), disposition)
        return lambda: client.command(command)

    return ending


def comes_back_with_all(client: RigClient, count: int) -> Callable[[], object]:
    many_held(client, count)
    client.lose_stream()
    in_hand = held(client)
    return lambda: client.attach(held=in_hand)


def comes_back_with_nothing(client: RigClient, count: int) -> Callable[[], object]:
    many_held(client, count)
    client.lose_stream()
    return client.attach


@pytest.mark.parametrize(
    "ending",
    [
        commits,
        rolls_back,
        vanishes_amid_a_transaction,
        vanishes_with_messages,
        leaves_with_messages,
        vanishes_with_a_message_of_each_queue,
        vanishes_with_transactions,
        vanishes_with_exclusive_queues,
        vanishes_with_auto_delete_queues,
        comes_back_with_all,
        comes_back_with_nothing,
        commits_beyond_a_limit,
        commits_what_expires,
        prepares_to_leave,
        *map(settles, DISPOSITIONS),
    ],
)
def test_whatever_one_client_has_much_of_the_longest_step_is_as_long(
    ending: Callable[[RigClient, int], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    monkeypatch.setattr(Rig, "_check_order", lambda *_: None)
    monkeypatch.setattr("services.primary.core.gate.RELEASED_IN_ONE", 50)
    monkeypatch.setattr("services.primary.core.settling.SETTLED_IN_ONE", 500)
    monkeypatch.setattr("services.primary.core.dispatch.RETURNED_IN_ONE", 50)
    calls = []
    for count in (FEW, MANY):
        rig = Rig(PrimarySettings(piece_cost=1, session_transactions_open_max=MANY, names_check_ms=1 << 40))
        rig.feed(Tick(SET))
        do = ending(rig.client(), count)
        take_turns(rig)
        longest = Longest(rig)
        do()
        assert take_turns(rig) > 2
        stay(rig)
        rig.check_log()
        calls.append(longest.calls)
    assert calls[1] <= SLACK * calls[0]


def stay(rig: Rig) -> None:
    """It does not leave, if it was about to."""
    if rig.core.is_leaving:
        rig.perform(rig.core.stay(rig.now))
        rig.feed(Tick(SET))
        take_turns(rig)


def amid_a_commit() -> tuple[Rig, RigClient, int]:
    """A commit of single operations, of which a part is done; its number."""
    rig = Rig(SMALL)
    client = rig.client()
    key = single_operations(client, 5)
    number = client.command(CommitCommand(0, key, 10))
    assert rig.core.is_alone
    return rig, client, number


def test_nobody_sees_a_part_of_a_commit_and_what_is_said_meanwhile_is_heard_behind_it() -> None:
    rig, client, number = amid_a_commit()
    other = rig.client()
    other.say(Browse(1, "to", QueuePosition(0), 100), Browse(2, "from", QueuePosition(0), 100))
    behind = client.command(publish("to", b"behind"))
    client.say(Browse(3, "to", QueuePosition(0), 100))
    assert number not in client.answers and not other.heard
    take_turns(rig)
    assert client.answers[number].code is client.answers[behind].code is ErrorCode.NONE
    # It was no session's stream yet when it asked: what it heard is that it has one, and what it was told then.
    told = [len(answer.messages) for answer in other.heard_of(BrowseAnswer)]
    assert isinstance(other.heard[0], SessionAttached) and told == [5, 0]
    assert [len(answer.messages) for answer in client.heard_of(BrowseAnswer)] == [6]
    assert rig.bodies("to") == [b"new"] * 5 + [b"behind"] and rig.bodies("from") == []
    rig.check_log()


def test_what_wakes_a_primary_amid_something_does_not_gather_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits is heard one by one: each turn is to leave less of it."""
    monkeypatch.setattr("services.primary.core.primary.TAKEN_IN_ONE", 1)
    rig, client, _ = amid_a_commit()
    last = [client.command(publish("to", b"behind")) for _ in range(20)][-1]
    while rig.core.is_amid:
        take_turns(rig, 1)
    for _ in range(30):
        for _ in range(3):
            rig.feed(Woken(SET))
    assert not rig.core.is_alone and client.answers[last].code is ErrorCode.NONE


def test_what_came_with_a_commit_is_taken_behind_it_and_in_order() -> None:
    rig = Rig(SMALL)
    client = rig.client()
    key = single_operations(client, 5)
    first = client.number + 1
    client.number += 3
    client.say(
        CommitCommand(first, key, 10),
        msgspec.structs.replace(publish("from", b"1"), number=first + 1),
        msgspec.structs.replace(publish("from", b"2"), number=first + 2),
    )
    take_turns(rig)
    assert [client.answers[number].code for number in range(first, first + 3)] == [ErrorCode.NONE] * 3
    assert rig.bodies("from") == [b"1", b"2"]
    rig.check_log()


def test_what_a_commit_adds_beyond_a_limit_is_evicted_behind_all_of_it() -> None:
    rig = Rig(SMALL)
    client = rig.client()
    client.declare("to", length_max=3, is_evicting=True)
    key = single_operations(client, 5)
    client.command(CommitCommand(0, key, 10))
    take_turns(rig)
    assert rig.bodies("to") == [b"new"] * 3
    rig.check_log()


def test_the_more_one_message_pushes_out_of_an_evicting_queue_the_more_steps_and_no_longer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    calls = []
    for count in (3000, 9000):
        rig = Rig()
        client = rig.client()
        client.declare("q", bytes_max=8 * count, is_evicting=True)
        client.publish("q", *[b"12345678"] * count)
        measured = Longest(rig)
        number = client.command(publish("q", bytes(8 * count)))
        take_turns(rig)
        assert client.answers[number].code is ErrorCode.NONE and rig.state.queues.by_name["q"].length == 1
        calls.append(measured.calls)
        rig.check_log()
    assert calls[1] < SLACK * calls[0]


def test_what_many_messages_push_out_of_an_evicting_queue_goes_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    rig, count = Rig(), 3 * EVICTED_AT_ONCE
    client = rig.client()
    client.declare("q", length_max=count, is_evicting=True)
    for _ in range(2):
        number = client.command(publish("q", *[b"1"] * count))
        take_turns(rig)
    assert client.answers[number].code is ErrorCode.NONE and rig.state.queues.by_name["q"].length == count
    parts = [len(record.positions) for record in rig.records() if isinstance(record, Dequeue)]
    assert sum(parts) == count and max(parts) <= EVICTED_AT_ONCE
    rig.check_log()


def test_what_waits_behind_a_long_purge_goes_on_in_order_when_it_ends_a_transaction() -> None:
    rig = Rig(PrimarySettings(piece_cost=1, command_messages_max=3))
    client = rig.client()
    key = single_operations(client, 5)
    client.declare("long")
    for _ in range(4):
        client.publish("long", b"", b"", b"")
    said = [
        client.command(PurgeQueueCommand(0, "long")),
        client.command(CommitCommand(0, key, 10)),
        client.command(publish("to", b"behind")),
    ]
    rig.feed(Tick(SET))
    take_turns(rig, 4)
    last = client.command(publish("to", b"last"))
    rig.feed(Tick(SET))
    take_turns(rig)
    assert [client.answers[number].code for number in (*said, last)] == [ErrorCode.NONE] * 4
    assert rig.bodies("to") == [b"new"] * 5 + [b"behind", b"last"]
    rig.check_log()


def test_a_primary_that_may_not_speak_any_more_says_nothing_of_what_it_was_amid() -> None:
    rig, client, number = amid_a_commit()
    rig.feed(LeaseLost(SET))
    take_turns(rig)
    assert number not in client.answers
    rig.feed(LeaseExtended(SET, 1, LEASE_MS))
    rig.feed(Tick(SET))
    assert client.answers[number].code is ErrorCode.NONE


def test_who_came_meanwhile_is_turned_away_when_the_reign_ends() -> None:
    rig, client, number = amid_a_commit()
    told: list[object] = []
    attach = AttachSession(SET, SessionId("late"), client.session, client.session_epoch, 0, 0, ())
    subscribe = Subscribe(
        SET,
        rig.core.epoch,
        BrokerId("b2"),
        DiskId("disk2"),
        Incarnation("inc2"),
        LogIndex(0),
        (),
        LogIndex(0),
        is_memory_whole=False,
        applied=LogIndex(0),
    )
    for given in (ClientSaid(SET, 77, (attach,)), BackupSaid(SET, 78, subscribe), Tick(SET)):
        told += rig.core.handle(given, rig.now)
    assert not [each for each in told if isinstance(each, TellClient | TellBackup)]
    told = list(rig.core.stop("enough"))
    refused = [each.message for each in told if isinstance(each, TellClient) and each.stream == 77]
    assert [type(message) for message in refused] == [AttachRefused]
    assert [type(each.message) for each in told if isinstance(each, TellBackup)] == [SubscriptionRefused]
    assert CloseClientStream(SET, 77) in told and CloseBackupStream(SET, 78) in told
    assert number not in client.answers


def test_a_client_that_comes_back_amid_its_end_finds_no_session_and_what_it_held_is_others() -> None:
    rig = Rig(SMALL)
    client, other = rig.client(), rig.client()
    many_held(client, 600)
    other.consume("q")
    time_out(client)
    take_turns(rig, 1)
    assert rig.core.is_alone
    client.attach(held=held(client))
    take_turns(rig)
    assert client.heard_of(AttachRefused)
    assert len(other.positions("q")) == 600
    rig.check_log()


def test_a_client_whose_stream_breaks_amid_its_coming_back_has_what_it_had() -> None:
    rig = Rig(SMALL)
    client = rig.client()
    many_held(client, 600)
    client.lose_stream()
    in_hand = held(client)
    client.attach(held=in_hand)
    assert rig.core.is_alone
    stream, client.stream = client.stream, 0
    rig.feed(ClientStreamClosed(SET, stream))
    take_turns(rig)
    client.attach(held=in_hand)
    take_turns(rig)
    queue = rig.state.queues.by_name["q"]
    assert rig.core.context.dispatch.held_count(queue.id) == 600


def test_what_was_settled_unheard_is_given_again_however_long_it_takes_to_come_back() -> None:
    rig = Rig(SMALL)
    client = rig.client()
    many_held(client, 1200)
    positions = [position for _, position in client.in_hand]
    released: tuple[QueuePosition, ...] = tuple(positions[:700])
    number = client.command(SettleCommand(0, "q", rig.core.epoch, released, Disposition.RELEASE))
    in_hand = held(client)
    client.lose_stream()
    client.in_hand.clear()
    client.attach(held=in_hand, settling=(UnansweredSettle(number, "q", released),))
    take_turns(rig)
    queue = rig.state.queues.by_name["q"]
    assert rig.core.context.dispatch.held_count(queue.id) == 500


def test_clients_hear_that_a_primary_lives_whatever_it_is_amid() -> None:
    rig, client, number = amid_a_commit()
    client.say(Heartbeat())
    assert isinstance(client.heard[-1], HeartbeatAnswered) and number not in client.answers
    assert rig.core.is_alone


def test_a_heartbeat_amid_a_command_does_not_say_that_the_primary_has_survived_it() -> None:
    """Its client would send it again and again where each primary ends over it."""
    rig, client, number = amid_a_commit()
    client.say(Heartbeat())
    assert client.heard_of(HeartbeatAnswered)[-1].next_number == number
    take_turns(rig)
    client.say(Heartbeat())
    assert client.heard_of(HeartbeatAnswered)[-1].next_number == number + 1


def test_a_client_of_which_a_part_of_a_message_has_come_amid_something_is_heard_and_told_nothing() -> None:
    rig, client, _ = amid_a_commit()
    heard = len(client.heard)
    rig.boottime_ms += 1000
    client.say()
    assert len(client.heard) == heard
    assert rig.core.streams.by_number[client.stream].heard_ms == rig.boottime_ms


def test_a_primary_ends_at_once_what_it_is_amid_when_another_leads() -> None:
    rig, client, number = amid_a_commit()
    entry = replace(rig.core.membership.set_map, epoch=Epoch(rig.core.epoch + 1), primary=BrokerId("b2"))
    rig.feed(MapSeen(SET, entry, 2, b"", "g"))
    assert rig.core.stopped and number not in client.answers


def test_a_primary_that_leaves_ends_what_cannot_go_on_and_hears_nothing_more_unless_it_stays() -> None:
    rig = Rig(SMALL)
    client, other = rig.client(), rig.client()
    key = single_operations(client, 5)
    rig.perform(rig.core.prepare_to_leave(rig.now))
    assert rig.core.is_alone
    said = other.command(publish("to", b"later"))
    take_turns(rig)
    assert said not in other.answers
    log = rig.core.context.writer.log
    assert log.framed_end == log.end and rig.records()[-1] == Rollback(None, key, RollbackReason.FAILOVER, 10)
    stay(rig)
    assert other.answers[said].code is ErrorCode.NONE and rig.bodies("to") == [b"later"]
    assert len(rig.bodies("from")) == 5 and not rig.state.queues.by_name["from"].locks
    rig.check_log()


@pytest.mark.parametrize("disposition", DISPOSITIONS)
def test_a_settle_of_very_many_is_one_command_and_seen_as_a_whole(
    disposition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.primary.core.settling.SETTLED_IN_ONE", 10)
    monkeypatch.setattr("services.primary.core.settling.SETTLED_PART", 3)
    rig = Rig(SMALL)
    client, other = rig.client(), rig.client()
    number = settles(disposition)(client, 20)()
    assert rig.core.is_alone
    for name in ("q", "dead"):
        other.say(Browse(1, name, QueuePosition(0), 100))
    behind = client.command(publish("q", b"behind"))
    take_turns(rig)
    assert client.answers[number].code is client.answers[behind].code is ErrorCode.NONE
    there = 20 if disposition in (Disposition.RELEASE, Disposition.FAIL) else 0
    dead = 20 if disposition == Disposition.REJECT else 0
    told = [answer.messages for answer in other.heard_of(BrowseAnswer)]
    assert [len(messages) for messages in told] == [there, dead]
    failed = disposition == Disposition.FAIL
    assert {message.delivery_count for message in told[0]} <= {int(failed)}
    assert rig.bodies("q")[there:] == [b"behind"]
    rig.check_log()
