"""Publishes that go to many queues, and messages with headers that are compared with many bindings: others have their turn."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.apply_messages import SHARES_AT_ONCE
from lockstep.core.commands import (
    AnyCommand,
    BindCommand,
    CommitCommand,
    DeclareQueueCommand,
    DeleteExchangeCommand,
    Disposition,
    OutgoingMessage,
    PublishCommand,
    QueueOptions,
    RollbackCommand,
    SettleCommand,
)
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, QueueId
from lockstep.core.priority_levels import PRIORITY_DEFAULT
from lockstep.core.queues import Queue
from lockstep.core.records import Bind, DeclareExchange, DeclareQueue
from lockstep.core.requests import CloseConsumer, DetachSession
from lockstep.core.routing import SELECTOR_ARGUMENT
from services.primary.core import publishing
from services.primary.core.publish_records import PLACES_IN_ONE
from services.primary.core.selecting import (
    COMPARED_MANY,
    PUBLISH_STEPS_MAX,
    QUEUES_MANY,
    SHARE_STEPS,
    STEPS_PER_MS,
)
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish, take_turns, wake
from tests.unit.services.primary.test_alone import SLACK, Longest

MANY = 100
"""Publishes."""


@pytest.fixture
def client(rig: Rig) -> RigClient:
    """Has an exchange that leads to many queues."""
    client = rig.client()
    names = [f"q{number}" for number in range(QUEUES_MANY)]
    for name in names:
        client.declare(name)
    client.exchange("x", *names)
    return client


def say(client: RigClient, *commands: AnyCommand) -> list[int]:
    """All in one; their numbers."""
    numbers = range(client.number + 1, client.number + 1 + len(commands))
    client.number += len(commands)
    client.say(*(replace(command, number=number) for number, command in zip(numbers, commands, strict=True)))
    return list(numbers)


def test_behind_some_publishes_to_many_queues_others_have_their_turn(rig: Rig, client: RigClient) -> None:
    other = rig.client()
    other.declare("other")
    numbers = say(client, *(publish("k", b"%d" % number, exchange="x") for number in range(MANY)))
    answered = [sum(number in client.answers for number in numbers)]
    while wake(rig):
        other.publish("other", b"in between")
        answered.append(sum(number in client.answers for number in numbers))
    assert 0 < answered[0] < MANY / 2 and len(answered) > 10
    assert all(client.answers[number].code is ErrorCode.NONE for number in numbers)
    for queue in ("q0", f"q{QUEUES_MANY - 1}"):
        assert rig.bodies(queue) == [b"%d" % number for number in range(MANY)]
    assert rig.bodies("other") == [b"in between"] * (len(answered) - 1)
    rig.check_log()


@pytest.mark.parametrize(
    ("queues", "messages", "priority"),
    [
        (SHARES_AT_ONCE + 1, 1, PRIORITY_DEFAULT),
        (QUEUES_MANY, PLACES_IN_ONE // QUEUES_MANY + 1, 9),
        (QUEUES_MANY // 2, 2 * PLACES_IN_ONE // QUEUES_MANY + 1, 9),
    ],
)
def test_behind_each_long_publish_others_have_their_turn(
    rig: Rig, queues: int, messages: int, priority: int
) -> None:
    client, other = rig.client(), rig.client()
    spread(rig, queues)
    other.declare("other")
    rig.pass_time(50)
    bodies = AlikeMessages(tuple(b"%d" % number for number in range(messages)), priority=priority)
    several = 12
    numbers = say(client, *[PublishCommand(0, "all", "k", bodies)] * several)
    behind = other.command(publish("other", b"in between"))
    while behind not in other.answers:
        wake(rig)
    assert sum(number in client.answers for number in numbers) <= several // 2
    while wake(rig):
        pass
    assert all(client.answers[number].value == messages * queues for number in numbers)
    rig.check_log()


def test_publishes_to_few_queues_wait_for_nobody(rig: Rig, client: RigClient) -> None:
    client.exchange("few", *(f"q{number}" for number in range(QUEUES_MANY - 1)))
    numbers = say(client, *(publish("k", b"%d" % number, exchange="few") for number in range(MANY)))
    assert all(client.answers[number].code is ErrorCode.NONE for number in numbers)


class Compared(int):
    """An id that counts with how many others it is compared."""

    times = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return int(self) == other


@pytest.mark.parametrize(("length_max", "is_full"), [(2, False), (1, True)])
def test_room_is_looked_for_in_as_many_queues_as_there_are(length_max: int, is_full: bool) -> None:
    ids = [Compared(number) for number in range(500)]
    definition = SimpleNamespace(length_max=length_max, bytes_max=0, is_evicting=False)
    empty = {"length": 0, "reserved_length": 0, "bytes": 0, "reserved_bytes": 0, "name": "q"}
    queues = [cast(Queue, SimpleNamespace(id=each, definition=definition, **empty)) for each in ids]
    routed: Any = [(tuple(ids), (OutgoingMessage(b"", b"1"), OutgoingMessage(b"", b"2")))]
    Compared.times = 0
    if is_full:
        with pytest.raises(Rejected):
            publishing._check_room(queues, routed)
    else:
        publishing._check_room(queues, routed)
    assert Compared.times <= 2 * len(ids)


# --- headers ---


def headed(rig: Rig, client: RigClient, bindings: int) -> None:
    """An exchange of headers with so many bindings of a queue."""
    client.declare("headed")
    client.exchange("h", kind="headers")
    pairs = tuple((f"n{number}", "1") for number in range(COMPARED_MANY // 4))
    for number in range(bindings):
        client.ok(BindCommand(0, "h", "headed", f"k{number}", (("x-match", "any"), *pairs)))


def messages(count: int) -> tuple[OutgoingMessage, ...]:
    """Each with headers of its own; every other one is for the queue."""
    return tuple(
        OutgoingMessage(b"", b"%d" % number, headers=((("n0" if number % 2 else "other"), "1"),))
        for number in range(count)
    )


def test_messages_whose_headers_are_compared_with_much_leave_others_their_turn(rig: Rig) -> None:
    client = rig.client()
    headed(rig, client, 40)
    number = client.command(PublishCommand(0, "h", "k", messages(MANY)))
    turns, most, before = 0, 0, rig.core.context.selectors.spent
    while wake(rig):
        assert number not in client.answers
        spent = rig.core.context.selectors.spent
        most, before, turns = max(most, spent - before), spent, turns + 1
    assert turns > 10 and most <= 2 * SHARE_STEPS
    assert client.answers[number].value == MANY / 2
    assert rig.bodies("headed") == [b"%d" % each for each in range(MANY) if each % 2]
    rig.check_log()


def test_a_publish_whose_headers_would_be_compared_with_too_much_is_refused(rig: Rig) -> None:
    client = rig.client()
    headed(rig, client, 40)
    unlike = tuple(OutgoingMessage(b"", b"", headers=(("other", str(number)),)) for number in range(2_000))
    number = client.command(PublishCommand(0, "h", "k", unlike))
    while wake(rig):
        rig.boottime_ms += 9
    answered = client.answers[number]
    assert answered.code is ErrorCode.TOO_LARGE and str(PUBLISH_STEPS_MAX) in answered.message
    assert rig.bodies("headed") == []
    rig.pass_time(50)
    assert client.ok(PublishCommand(0, "h", "k", messages(2))) == 1


def test_what_is_unbound_is_compared_with_no_more(rig: Rig) -> None:
    client = rig.client()
    headed(rig, client, 10)
    pairs = tuple((f"n{number}", "1") for number in range(COMPARED_MANY // 4))
    for number in range(10):
        arguments = (("x-match", "any"), *pairs)
        client.ok(BindCommand(0, "h", "headed", f"k{number}", arguments, is_unbind=True))
    before = rig.core.context.selectors.spent
    client.ok(PublishCommand(0, "h", "k", messages(4)))
    assert rig.core.context.selectors.spent == before


def test_many_queues_that_get_all_count_where_a_selector_chooses_another(rig: Rig, client: RigClient) -> None:
    client.declare("chosen")
    client.ok(BindCommand(0, "x", "chosen", "k", ((SELECTOR_ARGUMENT, "a = 1"),)))
    rig.pass_time(50)
    before = rig.core.context.selectors.spent
    count = SHARE_STEPS * 6 // (5 * QUEUES_MANY)
    several = tuple(OutgoingMessage(b"%d" % each, b"") for each in range(count))
    number = client.command(PublishCommand(0, "x", "k", several))
    assert number not in client.answers
    while wake(rig):
        pass
    assert client.answers[number].value == count * QUEUES_MANY
    assert rig.core.context.selectors.spent - before >= count * QUEUES_MANY


def rebound(client: RigClient) -> None:
    """Another queue is bound, for all messages."""
    client.ok(BindCommand(0, "h", "late", ""))


def declared_again(client: RigClient) -> None:
    """The exchange goes, and another one comes with as many bindings."""
    client.ok(DeleteExchangeCommand(0, "h"))
    client.exchange("h", kind="headers")
    uncompared = tuple((f"x-{number}", "") for number in range(COMPARED_MANY // 40))
    for number in range(40):
        client.ok(BindCommand(0, "h", "late", f"k{number}", uncompared))


@pytest.mark.parametrize("change", [rebound, declared_again])
def test_what_was_found_of_some_messages_is_looked_for_anew_when_bindings_change(
    rig: Rig, change: Callable[[RigClient], None]
) -> None:
    client, other = rig.client(), rig.client()
    headed(rig, client, 40)
    other.declare("late")
    number = client.command(PublishCommand(0, "h", "k", messages(MANY)))
    for _ in range(4):
        wake(rig)
    assert number not in client.answers
    change(other)
    while wake(rig):
        pass
    odd = [b"%d" % each for each in range(MANY) if each % 2]
    assert rig.bodies("late") == [b"%d" % each for each in range(MANY)]
    assert rig.bodies("headed") == (odd if change is rebound else [])
    rig.check_log()


def test_a_publish_under_which_bindings_change_again_and_again_is_done_all_the_same(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    headed(rig, client, 40)
    other.declare("late")
    number = client.command(PublishCommand(0, "h", "k", messages(MANY)))
    rounds = 0
    while number not in client.answers:
        rounds += 1
        assert rounds < 50, "it comes to no end"
        for is_unbind in (False, True):
            other.command(BindCommand(0, "h", "late", "", (("never", "1"),), is_unbind=is_unbind))
        wake(rig)
        wake(rig)
    assert client.answers[number].value == MANY / 2
    while wake(rig):
        pass
    assert rig.bodies("headed") == [b"%d" % each for each in range(MANY) if each % 2]
    assert not rig.bodies("late")
    assert {answered.code for answered in other.answers.values()} == {ErrorCode.NONE}
    assert client.ok(PublishCommand(0, "h", "k", messages(2))) == 1
    rig.check_log()


def test_a_publish_under_which_bindings_change_and_that_costs_too_much_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.primary.core.selecting.PUBLISH_STEPS_MAX", 200_000)
    client, other = rig.client(), rig.client()
    headed(rig, client, 40)
    other.declare("late")
    number = client.command(PublishCommand(0, "h", "k", messages(MANY)))
    behind = client.command(publish("late", b"behind"))
    for is_unbind in (False, True, False, True):
        other.command(BindCommand(0, "h", "late", "", (("never", "1"),), is_unbind=is_unbind))
        wake(rig)
        wake(rig)
    while wake(rig):
        pass
    assert client.answers[number].code is ErrorCode.TOO_LARGE
    assert client.answers[behind].code is ErrorCode.NONE and rig.bodies("late") == [b"behind"]
    assert noted(rig) == ["publish_steps_max"]
    rig.check_log()


@pytest.mark.parametrize("evicts", [False, True])
def test_room_is_looked_for_where_any_of_several_messages_goes(rig: Rig, evicts: bool) -> None:
    client = rig.client()
    client.declare("one")
    client.declare("other", length_max=1, is_evicting=evicts)
    client.exchange("h", kind="headers")
    for queue in ("one", "other"):
        client.ok(BindCommand(0, "h", queue, "", ((queue, "1"),)))
    client.publish("other", b"before")
    both = tuple(OutgoingMessage(b"", name.encode(), headers=((name, "1"),)) for name in ("one", "other"))
    answered = client.do(PublishCommand(0, "h", "k", both))
    assert answered.code is (ErrorCode.NONE if evicts else ErrorCode.QUEUE_FULL)
    assert rig.bodies("one") == ([b"one"] if evicts else [])
    assert rig.bodies("other") == [b"other" if evicts else b"before"]
    rig.check_log()


# --- keys ---


def topical(rig: Rig, client: RigClient, patterns: int) -> str:
    """An exchange with so many patterns for a queue; answers a key that comes to most places of them."""
    client.declare("topical")
    client.exchange("t", kind="topic")
    exchange, queue = rig.state.exchanges.by_name["t"], rig.state.queues.by_name["topical"]
    for number in range(patterns):
        pattern = f"#.a{number % 32}.#.b{number // 32}.#.z"
        rig.core.context.writer.append(Bind(None, exchange.id, queue.id, pattern), True)
    return ".".join([*(f"a{number}" for number in range(32)), *(f"b{number}" for number in range(32)), "z"])


def noted(rig: Rig) -> list[str]:
    return [note.limit for note in rig.notes if note.event == "limit_reached"]


def test_a_key_that_is_compared_with_many_patterns_leaves_others_their_turn(rig: Rig) -> None:
    client, other, some = rig.client(), rig.client(), 30
    key = topical(rig, client, 200)
    other.declare("other")
    numbers = say(
        client, *(publish(f"{key}.{number}.z", b"%d" % number, exchange="t") for number in range(some))
    )
    turns, most, before = 0, 0, rig.core.context.selectors.spent
    while wake(rig):
        other.publish("other", b"in between")
        spent = rig.core.context.selectors.spent
        most, before, turns = max(most, spent - before), spent, turns + 1
    assert turns > 10 and most <= 2 * SHARE_STEPS
    assert [client.answers[number].value for number in numbers] == [1] * some
    assert rig.bodies("topical") == [b"%d" % number for number in range(some)]
    assert rig.bodies("other") == [b"in between"] * turns
    rig.check_log()


def test_a_key_that_was_compared_with_all_patterns_costs_nothing_more(rig: Rig) -> None:
    client = rig.client()
    key = topical(rig, client, 200)
    rig.pass_time(50)
    assert client.ok(publish(key, b"1", exchange="t")) == 1
    spent = rig.core.context.selectors.spent
    assert spent > 200
    numbers = say(client, *(publish(key, b"2", exchange="t") for _ in range(MANY)))
    assert all(client.answers[number].value == 1 for number in numbers)
    assert rig.core.context.selectors.spent == spent


def test_a_publish_whose_key_would_be_compared_with_too_much_is_refused_for_good_and_noted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client()
    key = topical(rig, client, 200)
    monkeypatch.setattr("services.primary.core.selecting.PUBLISH_STEPS_MAX", 5_000)
    rig.pass_time(50)
    number = client.command(publish(key, b"1", exchange="t"))
    while wake(rig):
        pass
    answered = client.answers[number]
    assert answered.code is ErrorCode.TOO_LARGE and "5000 steps" in answered.message
    assert noted(rig) == ["publish_steps_max"]
    client.resume()
    client.say(client.sent[number])
    assert client.answers[number] == answered
    assert client.ok(publish("other", b"2", exchange="t")) == 0
    rig.check_log()


def test_a_key_is_looked_for_anew_when_something_is_bound_meanwhile(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    key = topical(rig, client, 200)
    other.declare("late")
    assert rig.core.context.selectors.has_share(rig.core.context.now)
    rig.core.context.selectors.pay(2 * SHARE_STEPS)
    number = client.command(publish(key, b"1", exchange="t"))
    assert number not in client.answers
    other.ok(BindCommand(0, "t", "late", "#"))
    while wake(rig):
        pass
    assert client.answers[number].value == 2
    assert rig.bodies("late") == rig.bodies("topical") == [b"1"]
    rig.check_log()


# --- one message to very many queues ---


def spread(rig: Rig, count: int, *, is_mixed: bool = False, evicts: bool = False) -> None:
    """An exchange that leads to so many queues, some of which are not durable if they are `is_mixed`."""
    writer, ids = rig.core.context.writer, []
    writer.append(DeclareExchange(None, "all", "fanout", True), True)
    for number in range(count):
        is_durable = not is_mixed or number % 3 > 0
        queue = DeclareQueue(None, f"q{number}", is_durable, length_max=2 * evicts, is_evicting=evicts)
        ids.append(writer.append(queue, is_durable))
    exchange = rig.state.exchanges.by_name["all"].id
    for index in ids:
        writer.append(Bind(None, exchange, QueueId(index), ""), True)
    rig.pass_time(50)


def longest(count: int, is_mixed: bool, evicts: bool, do: Callable[[RigClient], None]) -> int:
    """Calls of functions in the longest step of something that is done on a rig where a message goes to so many queues."""
    rig = Rig()
    client = rig.client()
    spread(rig, count, is_mixed=is_mixed, evicts=evicts)
    measured = Longest(rig)
    do(client)
    take_turns(rig)
    queues = rig.state.queues.by_id.values()
    assert {queue.length for queue in queues} == {2} and not rig.state.unfinished
    assert all(answered.code is ErrorCode.NONE for answered in client.answers.values())
    rig.check_log()
    return measured.calls


def publish_thrice(client: RigClient) -> None:
    say(client, *(publish("k", body, exchange="all") for body in (b"1", b"2", b"3")))


def publish_two(client: RigClient) -> None:
    say(client, publish("k", b"1", b"2", exchange="all"))


def commit_two(client: RigClient) -> None:
    key = client.begin()
    say(
        client,
        publish("k", b"1", exchange="all", transaction=key, sequence=1),
        publish("k", b"2", exchange="all", transaction=key, sequence=2),
        CommitCommand(0, key, 2),
    )


def commit_with_its_publish(client: RigClient) -> None:
    key = client.begin()
    last = PublishCommand(0, "all", "k", (OutgoingMessage(b"", b"1"), OutgoingMessage(b"", b"2")), key, 1)
    say(client, CommitCommand(0, key, 1, last_publish=last))


@pytest.mark.parametrize(
    ("do", "is_mixed", "evicts"),
    [
        (publish_two, False, False),
        (publish_two, True, False),
        (publish_thrice, True, True),
        (commit_two, False, False),
        (commit_with_its_publish, False, False),
    ],
)
def test_what_goes_to_very_many_queues_takes_more_steps_and_no_longer_ones(
    do: Callable[[RigClient], None], is_mixed: bool, evicts: bool
) -> None:
    few, many = (longest(count, is_mixed, evicts, do) for count in (1500, 3600))
    assert many < SLACK * few


def test_nobody_sees_that_only_some_queues_have_a_message(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    spread(rig, 4000)
    number = client.command(publish("k", b"1", exchange="all"))
    other.consume("q3999")
    assert number not in client.answers and not other.in_hand
    turns = 0
    while number not in client.answers:
        assert wake(rig) or number in client.answers
        turns += 1
    assert turns > 1
    rig.pass_time(50)
    assert other.bodies("q3999") == [b"1"]
    rig.check_log()


def test_a_message_that_would_go_to_more_queues_than_may_be_is_refused_and_noted() -> None:
    rig = Rig(PrimarySettings(message_queues_max=3))
    client = rig.client()
    for number in range(4):
        client.declare(f"q{number}")
    client.exchange("most", "q0", "q1", "q2")
    client.exchange("all", "q0", "q1", "q2", "q3")
    assert client.ok(publish("k", b"1", exchange="most")) == 3
    answered = client.do(publish("k", b"2", exchange="all"))
    assert answered.code is ErrorCode.TOO_LARGE and "message_queues_max is 3" in answered.message
    key = client.begin()
    refused = client.do(publish("k", b"2", exchange="all", transaction=key, sequence=1))
    assert refused.code is ErrorCode.TOO_LARGE
    assert client.do(CommitCommand(0, key, 1)).code is ErrorCode.ROLLED_BACK
    assert noted(rig) == ["message_queues_max"] * 2
    assert rig.bodies("q0") == [b"1"]
    rig.check_log()


# --- dead letters for many queues ---

DEAD = "all", ""
"""The exchange and the key of dead letters."""


def in_hand(client: RigClient, messages: int, ttl_ms: int = 0, credit: int = 0) -> None:
    """A queue whose dead letters go to many others has so many messages, with so many of them in hand."""
    exchange, key = DEAD
    client.declare("from", delivery_count_max=1, dead_letter_exchange=exchange, dead_letter_key=key)
    client.publish("from", *(b"%d" % number for number in range(messages)), ttl_ms=ttl_ms)
    if credit:
        client.consume("from", credit=credit)


def settles(client: RigClient, disposition: int) -> int:
    epoch = client.rig.core.epoch
    return client.command(SettleCommand(0, "from", epoch, client.positions("from"), disposition))


def expire(client: RigClient, messages: int) -> None:
    in_hand(client, messages, 100)
    client.rig.pass_time(200)


def reject(client: RigClient, messages: int) -> None:
    in_hand(client, messages, credit=messages)
    settles(client, Disposition.REJECT)


def fail(client: RigClient, messages: int) -> None:
    in_hand(client, messages, credit=messages)
    settles(client, Disposition.FAIL)


def vanish(client: RigClient, messages: int) -> None:
    in_hand(client, messages, credit=messages)
    client.lose_stream()
    client.rig.pass_time(20_000)


def roll_back(client: RigClient, messages: int) -> None:
    in_hand(client, messages, credit=messages)
    key = client.begin()
    client.settle("from", transaction=key, sequence=1)
    client.command(RollbackCommand(0, key))


WAYS_OUT = [expire, reject, fail, vanish, roll_back]


def publish_in_between(rig: Rig, other: RigClient) -> int:
    """A message for `other` with each turn, until nothing is left in `from`; how many those are."""
    published = 0
    while rig.state.queues.by_name["from"].length:
        other.command(publish("other", b"in between"))
        published += 1
        wake(rig)
    return published


def longest_of_letters(
    rig: Rig, targets: int, messages: int, is_mixed: bool, leave: Callable[[RigClient, int], None]
) -> int:
    """Calls of functions in the longest step in which so many dead letters leave for so many queues."""
    client = rig.client()
    spread(rig, targets, is_mixed=is_mixed)
    measured = Longest(rig)
    leave(client, messages)
    take_turns(rig)
    assert rig.bodies("from") == []
    bodies = [b"%d" % number for number in range(messages)]
    for queue in (0, 1, targets // 2, targets - 1):
        assert rig.bodies(f"q{queue}") == bodies
    assert {queue.length for queue in rig.state.queues.by_id.values()} == {0, messages}
    rig.check_log()
    return measured.calls


@pytest.mark.parametrize("leave", WAYS_OUT)
@pytest.mark.parametrize(
    ("few", "many", "is_mixed"),
    [((3000, 1), (8000, 1), False), ((3000, 1), (6000, 1), True), ((60, 60), (60, 180), False)],
)
def test_dead_letters_for_many_queues_take_more_steps_and_no_longer_ones(
    leave: Callable[[RigClient, int], None],
    few: tuple[int, int],
    many: tuple[int, int],
    is_mixed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    monkeypatch.setattr(Rig, "_check_order", lambda *_: None)
    calls = [longest_of_letters(Rig(), *each, is_mixed, leave) for each in (few, many)]
    assert calls[1] < SLACK * calls[0]


@pytest.mark.parametrize("leave", WAYS_OUT)
def test_between_dead_letters_for_many_queues_others_have_their_turn(
    rig: Rig, leave: Callable[[RigClient, int], None]
) -> None:
    client, other, messages = rig.client(), rig.client(), 12
    spread(rig, 300)
    other.declare("other")
    leave(client, messages)
    published = publish_in_between(rig, other)
    assert published >= messages // 6
    take_turns(rig)
    assert rig.bodies("other") == [b"in between"] * published
    assert all(answered.code is ErrorCode.NONE for answered in other.answers.values())
    assert rig.bodies("q0") == rig.bodies("q299") == [b"%d" % number for number in range(messages)]
    rig.check_log()


@pytest.mark.parametrize("disposition", [None, Disposition.REJECT, Disposition.FAIL])
def test_others_are_heard_behind_each_part_of_dead_letters(
    disposition: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: they expire."""
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    rig = Rig(PrimarySettings(piece_cost=1))
    client, other = rig.client(), rig.client()
    spread(rig, QUEUES_MANY - 4)
    other.declare("other")
    messages = 300
    in_hand(client, messages, 100 if disposition is None else 0, messages if disposition is not None else 0)
    rig.holds_store = True
    if disposition is None:
        rig.pass_time(200)
    else:
        settles(client, disposition)
    published = publish_in_between(rig, other)
    assert published > 8 and rig.state.queues.by_name["other"].length > published // 2
    rig.acknowledge()
    take_turns(rig)
    rig.check_log()


def test_dead_letters_of_several_queues_take_turns(rig: Rig) -> None:
    client = rig.client()
    spread(rig, 500)
    for name in ("one", "other"):
        client.declare(name, message_ttl_ms=100, dead_letter_exchange="all")
        client.publish(name, *[name.encode()] * 8)
    rig.pass_time(200)
    take_turns(rig)
    bodies = rig.bodies("q0")
    assert len(bodies) == 16 and set(bodies[:4]) == {b"one", b"other"}
    rig.check_log()


def test_rejects_for_many_queues_take_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    first, second = rig.client(), rig.client()
    spread(rig, 500)
    first.declare("from", dead_letter_exchange="all")
    first.publish("from", *[b"first"] * 8, *[b"second"] * 8)
    first.consume("from", credit=8)
    second.consume("from", credit=8)
    rig.holds_store = True
    numbers = [settles(client, Disposition.REJECT) for client in (first, second)]
    take_turns(rig)
    bodies = rig.bodies("q0")
    assert len(bodies) == 16 and set(bodies[:8]) == {b"first", b"second"}
    rig.acknowledge()
    codes = [client.answers[number].code for client, number in zip((first, second), numbers, strict=True)]
    assert codes == [ErrorCode.NONE] * 2
    rig.check_log()


@pytest.mark.parametrize("is_auto_delete", [False, True])
def test_what_others_say_on_the_stream_of_a_reject_that_may_be_partial_waits_for_one_part(
    rig: Rig, is_auto_delete: bool
) -> None:
    client = rig.client()
    spread(rig, 500)
    client.declare("other")
    client.declare("from", is_auto_delete=is_auto_delete, dead_letter_exchange="all")
    client.publish("from", *(b"%d" % number for number in range(12)))
    consumer = client.consume("from", credit=12)
    left, turns, rounds = client.positions("from"), 0, 0
    while left:
        reject_all = SettleCommand(0, "from", rig.core.epoch, left, Disposition.REJECT, may_be_partial=True)
        number, behind = say(client, reject_all, publish("other", b"%d" % rounds))
        while behind not in client.answers:
            wake(rig)
            turns += 1
        assert client.answers[number].code is ErrorCode.NONE and client.answers[number].value > 0
        left = left[client.answers[number].value :]
        assert rig.state.queues.by_name["from"].length == len(left)
        rounds += 1
    assert rounds > 3 and turns < 40 * rounds
    client.say(CloseConsumer(consumer))
    assert ("from" in rig.state.queues.by_name) is not is_auto_delete
    assert rig.bodies("other") == [b"%d" % each for each in range(rounds)]
    assert rig.bodies("q0") == rig.bodies("q499") == [b"%d" % number for number in range(12)]
    rig.check_log()


def test_a_queue_that_ends_with_its_last_consumer_takes_nothing_of_a_reject_along(rig: Rig) -> None:
    client = rig.client()
    spread(rig, 500)
    client.declare("from", is_auto_delete=True, dead_letter_exchange="all")
    client.publish("from", *(b"%d" % number for number in range(12)))
    consumer = client.consume("from")
    reject_all = SettleCommand(0, "from", rig.core.epoch, client.positions("from"), Disposition.REJECT)
    number = say(client, reject_all)[0]
    client.say(CloseConsumer(consumer))
    take_turns(rig)
    assert client.answers[number].value == 12 and "from" not in rig.state.queues.by_name
    assert rig.bodies("q0") == [b"%d" % number for number in range(12)]
    rig.check_log()


def test_a_queue_that_ends_with_its_last_consumer_takes_nothing_along_that_failed_too_often(rig: Rig) -> None:
    client = rig.client()
    spread(rig, 500)
    client.declare("from", is_auto_delete=True, dead_letter_exchange="all", delivery_count_max=1)
    client.publish("from", *(b"%d" % number for number in range(12)))
    consumer = client.consume("from")
    say(client, SettleCommand(0, "from", rig.core.epoch, client.positions("from"), Disposition.FAIL))
    client.say(CloseConsumer(consumer))
    take_turns(rig)
    assert rig.bodies("q0") == rig.bodies("q499") == [b"%d" % number for number in range(12)]
    assert "from" in rig.state.queues.by_name
    for _ in range(3):
        rig.pass_time(1000)
    assert "from" not in rig.state.queues.by_name
    rig.check_log()


def test_an_exclusive_queue_takes_no_dead_letters_along_when_its_session_ends(rig: Rig) -> None:
    owner = rig.client()
    spread(rig, 500)
    owner.declare("from", is_exclusive=True, dead_letter_exchange="all", delivery_count_max=1)
    owner.publish("from", *(b"%d" % number for number in range(12)))
    owner.consume("from")
    say(owner, SettleCommand(0, "from", rig.core.epoch, owner.positions("from"), Disposition.FAIL))
    owner.say(DetachSession())
    take_turns(rig)
    assert rig.bodies("q0") == rig.bodies("q499") == [b"%d" % number for number in range(12)]
    for _ in range(3):
        rig.pass_time(1000)
    assert "from" not in rig.state.queues.by_name
    rig.check_log()


def test_a_queue_that_ends_with_its_consumers_session_takes_nothing_along_that_failed_too_often(
    rig: Rig,
) -> None:
    client = rig.client()
    spread(rig, 500)
    client.declare("from", is_auto_delete=True, dead_letter_exchange="all", delivery_count_max=1)
    client.publish("from", *(b"%d" % number for number in range(12)))
    client.consume("from")
    client.lose_stream()
    rig.pass_time(20_000)
    take_turns(rig)
    assert rig.bodies("q0") == rig.bodies("q499") == [b"%d" % number for number in range(12)]
    rig.pass_time(1000)
    assert "from" not in rig.state.queues.by_name
    rig.check_log()


def test_the_name_of_an_exclusive_queue_is_free_as_soon_as_its_dead_letters_are_gone(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    spread(rig, 500)
    client.declare("from", is_exclusive=True, dead_letter_exchange="all", delivery_count_max=1)
    client.publish("from", *(b"%d" % number for number in range(24)))
    client.consume("from")
    say(client, SettleCommand(0, "from", rig.core.epoch, client.positions("from"), Disposition.FAIL))
    client.say(DetachSession())
    declare = DeclareQueueCommand(0, "from", QueueOptions(is_exclusive=True))
    early = other.command(declare)
    take_turns(rig)
    assert other.answers[early].code is ErrorCode.LOCKED
    rig.pass_time(50)
    other.ok(declare)
    assert rig.bodies("from") == [] and rig.bodies("q499") == [b"%d" % number for number in range(24)]
    rig.check_log()


def test_a_queue_that_has_its_session_stays_when_its_dead_letters_are_gone_beside_one_that_has_not(
    rig: Rig,
) -> None:
    owners = {"from": rig.client(), "stays": rig.client()}
    spread(rig, 500)
    for name, client in owners.items():
        client.declare(name, is_exclusive=True, dead_letter_exchange="all", delivery_count_max=1)
        client.publish(name, *(b"%d" % number for number in range(12)))
        client.consume(name)
        say(client, SettleCommand(0, name, rig.core.epoch, client.positions(name), Disposition.FAIL))
    owners["from"].say(DetachSession())
    take_turns(rig)
    rig.pass_time(50)
    assert len(rig.bodies("q0")) == 24
    assert "from" not in rig.state.queues.by_name and "stays" in rig.state.queues.by_name
    rig.check_log()


def test_what_an_ended_queue_stayed_for_is_found_by_the_next_primary_before_it_ends(rig: Rig) -> None:
    """That has much to look through, and comes to it seconds behind its beginning."""
    client = rig.client()
    spread(rig, 500)
    client.declare("from", is_exclusive=True, dead_letter_exchange="all", delivery_count_max=1)
    client.publish("from", *(b"%d" % number for number in range(12)))
    client.consume("from")
    say(client, SettleCommand(0, "from", rig.core.epoch, client.positions("from"), Disposition.FAIL))
    client.say(DetachSession())
    assert not rig.state.sessions.by_key and len(rig.bodies("q0")) < 12
    rig._settings = PrimarySettings(piece_cost=100)
    rig = rig.next_reign("failover")
    for _ in range(3):
        rig.pass_time(2000)
        take_turns(rig)
    assert rig.bodies("q0") == rig.bodies("q499") == [b"%d" % number for number in range(12)]
    assert "from" not in rig.state.queues.by_name
    rig.check_log()


def test_what_a_partial_reject_has_left_is_held_and_goes_out_again_without_its_session(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    spread(rig, 500)
    in_hand(client, 12, credit=12)
    positions = client.positions("from")
    number = say(
        client, SettleCommand(0, "from", rig.core.epoch, positions, Disposition.REJECT, may_be_partial=True)
    )[0]
    while number not in client.answers:
        wake(rig)
    done = client.answers[number].value
    assert 0 < done < 12
    other.consume("from")
    assert not other.in_hand
    client.command(SettleCommand(0, "from", rig.core.epoch, positions[done:], Disposition.RELEASE))
    take_turns(rig)
    assert other.positions("from") == positions[done:]
    assert len(rig.bodies("q0")) == done
    rig.check_log()


def test_a_partial_reject_whose_answer_nobody_heard_is_answered_again_with_what_it_did(rig: Rig) -> None:
    client = rig.client()
    spread(rig, 500)
    in_hand(client, 12, credit=12)
    positions = client.positions("from")
    command = SettleCommand(0, "from", rig.core.epoch, positions, Disposition.REJECT, may_be_partial=True)
    number = say(client, command)[0]
    while number not in client.answers:
        wake(rig)
    answered = client.answers[number]
    client.resume()
    client.answers.clear()
    client.say(replace(command, number=number))
    assert client.answers[number] == answered
    rig.check_log()


def test_rejects_for_many_queues_leave_other_dead_letters_their_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    client, count, rejected = rig.client(), 12, 100
    spread(rig, 300)
    in_hand(client, rejected, credit=rejected)
    client.declare("expiring", message_ttl_ms=100, dead_letter_exchange="all")
    client.publish("expiring", *[b"expired"] * count)
    rig.pass_time(50)
    epoch, positions = rig.core.epoch, client.positions("from")
    reject_one = [SettleCommand(0, "from", epoch, (each,), Disposition.REJECT) for each in positions]
    numbers = say(client, *reject_one)
    rig.pass_time(100)
    while rig.state.queues.by_name["expiring"].length:
        wake(rig)
    assert numbers[rejected // 2] not in client.answers
    take_turns(rig)
    assert {client.answers[number].code for number in numbers} == {ErrorCode.NONE}
    assert len(rig.bodies("q0")) == rejected + count and not rig.bodies("from")
    rig.check_log()


@pytest.mark.parametrize("leave", [fail, reject])
def test_publishes_that_are_compared_with_much_leave_dead_letters_their_turn(
    rig: Rig, leave: Callable[[RigClient, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    client, busy = rig.client(), rig.client()
    spread(rig, 20)
    headed(rig, busy, 40)
    numbers: list[int] = []
    several = [PublishCommand(0, "h", "k", messages(20))] * 10

    def keep_busy() -> None:
        if sum(number not in busy.answers for number in numbers) < 10:
            numbers.extend(say(busy, *several))

    keep_busy()
    leave(client, 400)
    turns = 0
    while rig.state.queues.by_name["from"].length:
        keep_busy()
        wake(rig)
        turns += 1
        assert turns < 100, "publishes leave them nothing"
    assert turns > 1 and sum(number in busy.answers for number in numbers) >= turns // 4
    while wake(rig):
        pass
    assert rig.bodies("q0") == [b"%d" % number for number in range(400)]
    codes = {answered.code for each in (client, busy) for answered in each.answers.values()}
    assert codes == {ErrorCode.NONE}
    rig.check_log()


def test_a_dead_letter_that_waits_is_moved_once_though_its_end_is_noticed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time was up when it was given back, and nobody had looked at it yet."""
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    batch = 13
    rig = Rig(PrimarySettings(expiry_batch_max=batch))
    client, other = rig.client(), rig.client()
    spread(rig, 373)
    client.declare("from", dead_letter_exchange="all")
    for number in range(2 * batch - 1):
        client.publish("from", b"%d" % number, ttl_ms=100)
    client.publish("from", b"last", ttl_ms=101)
    other.consume("from", credit=2 * batch)
    *positions, last = other.positions("from")
    other.settle("from", *positions, disposition=Disposition.RELEASE)
    rig.pass_time(200)
    assert rig.core.context.letters.ready and other.bodies("from") == [b"last"]
    other.settle("from", last, disposition=Disposition.RELEASE)
    take_turns(rig)
    assert rig.bodies("from") == []
    assert rig.bodies("q0") == [*(b"%d" % number for number in range(2 * batch - 1)), b"last"]
    rig.check_log()


@pytest.mark.parametrize("leave", [expire, fail])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_dead_letters_that_wait_are_offered_to_nobody_and_found_by_a_successor(
    rig: Rig, leave: Callable[[RigClient, int], None], is_restarted: bool
) -> None:
    client, other = rig.client(), rig.client()
    spread(rig, 500)
    leave(client, 12)
    assert 0 < rig.state.queues.by_name["from"].length < 12
    other.consume("from")
    for _ in range(3):
        wake(rig)
    assert not other.in_hand
    left = rig.state.queues.by_name["from"].length
    assert left
    while rig.core.is_alone:
        wake(rig)
    successor = Rig(predecessor=rig, is_restarted=is_restarted)
    successor.pass_time(200)
    while successor.wakes:
        wake(successor)
    assert successor.bodies("from") == []
    assert successor.bodies("q0") == successor.bodies("q499") == [b"%d" % number for number in range(12)]
    successor.check_log()


@pytest.mark.parametrize("leave", [fail, reject])
def test_a_primary_that_leaves_does_not_go_on_with_dead_letters_before(
    rig: Rig, leave: Callable[[RigClient, int], None]
) -> None:
    client = rig.client()
    spread(rig, 500)
    leave(client, 12)
    while rig.core.is_alone:
        wake(rig)
    left = rig.state.queues.by_name["from"].length
    rig.perform(rig.core.prepare_to_leave(rig.now))
    for _ in range(3):
        rig.boottime_ms += 50
        wake(rig)
    assert rig.core.may_leave and rig.state.queues.by_name["from"].length == left > 0
    rig.perform(rig.core.stay(rig.now))
    rig.pass_time(50)
    take_turns(rig)
    assert rig.bodies("from") == [] and len(rig.bodies("q499")) == 12
    rig.check_log()


@pytest.mark.parametrize("disposition", [Disposition.REJECT, Disposition.FAIL])
def test_a_key_of_dead_letters_is_compared_with_many_patterns_in_turns(
    disposition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.core.routing.STEPS_IN_ONE", 100)
    rig = Rig(PrimarySettings(piece_cost=1))
    client = rig.client()
    key = topical(rig, client, 200)
    client.declare("from", delivery_count_max=1, dead_letter_exchange="t", dead_letter_key=key)
    client.publish("from", b"1", b"2")
    client.consume("from")
    rig.pass_time(50)
    selectors = rig.core.context.selectors
    begun = before = selectors.spent
    number = settles(client, disposition)
    most = selectors.spent - before
    while rig.wakes:
        before = selectors.spent
        wake(rig)
        most = max(most, selectors.spent - before)
    assert client.answers[number].code is ErrorCode.NONE and rig.bodies("topical") == [b"1", b"2"]
    assert most <= 1000 < selectors.spent - begun
    rig.check_log()


@pytest.mark.parametrize("leave", WAYS_OUT)
def test_dead_letters_whose_key_would_be_compared_with_too_much_are_lost_and_noted(
    leave: Callable[[RigClient, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.primary.core.dead_letter_routes.PUBLISH_STEPS_MAX", 10_000)
    rig = Rig()
    client = rig.client()
    key = topical(rig, client, 400)
    monkeypatch.setattr("tests.unit.services.primary.test_many_targets.DEAD", ("t", key))
    rig.pass_time(50)
    selectors, figures = rig.core.context.selectors, rig.core.context.figures
    before = selectors.spent
    leave(client, 40)
    take_turns(rig)
    assert rig.bodies("from") == rig.bodies("topical") == []
    assert (figures.dead_letters_lost, figures.dead_letters_limited) == (40, 0)
    assert set(noted(rig)) == {"publish_steps_max"}
    assert 10_000 <= selectors.spent - before <= 20_000, "it is tried once"
    rig.check_log()


def test_where_dead_letters_go_is_looked_for_again_when_something_is_bound_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.primary.core.dead_letter_routes.PUBLISH_STEPS_MAX", 10_000)
    rig = Rig()
    client = rig.client()
    key = topical(rig, client, 400)
    monkeypatch.setattr("tests.unit.services.primary.test_many_targets.DEAD", ("t", key))
    selectors = rig.core.context.selectors
    spent = []
    for _ in range(3):
        rig.pass_time(50)
        before = selectors.spent
        expire(client, 2)
        while rig.wakes:
            wake(rig)
        spent.append(selectors.spent - before)
        if len(spent) == 2:
            client.ok(BindCommand(0, "t", "topical", "other"))
    assert min(spent[0], spent[2]) >= 10_000 and spent[1] == 0
    assert rig.bodies("topical") == [] and rig.core.context.figures.dead_letters_lost == 6
    rig.check_log()


@pytest.mark.parametrize("leave", WAYS_OUT)
def test_a_dead_letter_goes_to_as_many_queues_as_a_message_may_and_the_rest_is_noted(
    leave: Callable[[RigClient, int], None],
) -> None:
    rig = Rig(PrimarySettings(message_queues_max=3))
    client = rig.client()
    spread(rig, 4)
    leave(client, 2)
    rig.pass_time(50)
    assert [len(rig.bodies(f"q{number}")) for number in range(4)] == [2, 2, 2, 0] and not rig.bodies("from")
    figures = rig.core.context.figures
    assert (figures.dead_letters_limited, figures.dead_letters_lost) == (2, 0)
    assert set(noted(rig)) == {"message_queues_max"}
    rig.check_log()


def test_dead_letters_for_very_many_queues_leave_with_what_brought_them(rig: Rig) -> None:
    client = rig.client()
    spread(rig, 3600, is_mixed=True)
    client.declare("worn", delivery_count_max=1, dead_letter_exchange="all")
    client.publish("worn", b"1")
    client.consume("worn")
    key = client.begin(timeout_ms=100)
    client.settle("worn", transaction=key, sequence=1)
    rig.pass_time(200)
    take_turns(rig)
    log = rig.core.context.writer.log
    assert log.framed_end == log.end == log.commit_index
    assert {queue.length for queue in rig.state.queues.by_id.values() if queue.name != "worn"} == {1}
    rig.check_log()


def test_publishes_of_several_clients_to_very_many_queues_wait_for_no_tick(rig: Rig) -> None:
    clients = [rig.client() for _ in range(5)]
    spread(rig, 2000)
    rig.wakes.clear()
    numbers = [client.command(publish("k", b"1", exchange="all")) for client in clients]
    take_turns(rig)
    assert all(number in client.answers for number, client in zip(numbers, clients, strict=True))
    assert {queue.length for queue in rig.state.queues.by_id.values()} == {len(clients)}
    rig.check_log()


@pytest.mark.parametrize("is_with_commit", [True, False])
def test_behind_each_publish_to_very_many_queues_others_have_their_turn(
    rig: Rig, is_with_commit: bool
) -> None:
    clients, other = [rig.client() for _ in range(3)], rig.client()
    spread(rig, 2000)
    other.declare("other")
    said: list[tuple[RigClient, AnyCommand]] = []
    for client in clients:
        command: AnyCommand = publish("k", b"1", exchange="all")
        if is_with_commit:
            key = client.begin()
            last = PublishCommand(0, "all", "k", (OutgoingMessage(b"", b"1"),), key, 1)
            command = CommitCommand(0, key, 1, last_publish=last)
        said.append((client, command))
    said.append((other, publish("other", b"1")))
    waiting = [(client, say(client, command)[0]) for client, command in said]
    answered: list[RigClient] = []
    while waiting:
        wake(rig)
        answered += [client for client, number in waiting if number in client.answers]
        waiting = [(client, number) for client, number in waiting if number not in client.answers]
    assert answered == [clients[0], other, *clients[1:]]
    rig.check_log()


@pytest.mark.parametrize("waits", [False, True])
def test_publishes_to_very_many_queues_are_answered_while_those_behind_them_are_done(
    rig: Rig, waits: bool
) -> None:
    """Also if all were said behind a command that waited for its name. A piece takes its time: the share of selectors grows."""
    client, count = rig.client(), 4
    spread(rig, 3 * SHARES_AT_ONCE)
    rig.holds_claims = waits
    first = [DeclareQueueCommand(0, "new", QueueOptions())] if waits else []
    said = say(client, *first, *(publish("k", b"%d" % each, exchange="all") for each in range(count)))
    numbers = said[-count:]
    if waits:
        rig.claimed()
    while rig.wakes:
        rig.boottime_ms += SHARE_STEPS // STEPS_PER_MS
        wake(rig)
        assert sum(number in client.answers for number in numbers) >= len(rig.bodies("q0")) - 1
    assert set(said) <= set(client.answers)
    assert rig.bodies("q0") == [b"%d" % each for each in range(count)]
    rig.check_log()


@pytest.mark.parametrize("disposition", [None, Disposition.REJECT, Disposition.FAIL])
@pytest.mark.parametrize("answers_late", [False, True])
def test_dead_letters_and_publishes_to_very_many_queues_that_keep_coming_take_turns(
    disposition: int | None, answers_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: they expire. `answers_late`: the store, while the next publish is done."""
    monkeypatch.setattr("tests.unit.services.primary.primary_rig.check_invariants", lambda _: None)
    rig = Rig()
    clients = [rig.client() for _ in range(4)]
    spread(rig, 3 * SHARES_AT_ONCE)
    targets = [f"t{number}" for number in range(200)]
    for name in targets:
        clients[0].declare(name)
    clients[0].exchange("dead", *targets)
    consumer, messages = rig.client(), 60
    ttl_ms, count_max = (100, 0) if disposition is None else (0, 1)
    consumer.declare("from", message_ttl_ms=ttl_ms, dead_letter_exchange="dead", delivery_count_max=count_max)
    consumer.publish("from", *[b""] * messages)
    if disposition is not None:
        consumer.consume("from", credit=messages)
    rig.holds_store = answers_late
    waiting = [say(client, publish("k", b"", exchange="all"))[0] for client in clients]
    if disposition is None:
        rig.pass_time(200)
    else:
        settles(consumer, disposition)
    published = 0
    while rig.state.queues.by_name["from"].length:
        rig.boottime_ms += SHARE_STEPS // STEPS_PER_MS
        wake(rig)
        if rig.boottime_ms % 3 == 0:
            rig.acknowledge()
        for place, client in enumerate(clients):
            if waiting[place] in client.answers:
                published += 1
                [waiting[place]] = say(client, publish("k", b"", exchange="all"))
        assert published < messages
    assert published > 4


def test_accepts_go_with_a_commit_that_publishes_to_very_many_queues(rig: Rig) -> None:
    client = rig.client()
    spread(rig, SHARES_AT_ONCE + 1)
    client.declare("from")
    client.publish("from", b"0")
    client.consume("from")
    name = client.ok(CommitCommand(0, client.begin(), 0, begins=1)) - 1
    key = LogIndex(name), rig.core.epoch
    last = PublishCommand(0, "all", "k", (OutgoingMessage(b"", b"1"),), key, 2)
    positions = client.positions("from")
    accept = SettleCommand(0, "from", rig.core.epoch, positions, Disposition.ACCEPT, key, 1)
    numbers = say(client, accept, CommitCommand(0, key, 2, last_publish=last))
    take_turns(rig)
    assert [client.answers[number].code for number in numbers] == [ErrorCode.NONE] * 2
    assert rig.bodies("from") == [] and rig.bodies("q0") == rig.bodies(f"q{SHARES_AT_ONCE}") == [b"1"]
    rig.check_log()
