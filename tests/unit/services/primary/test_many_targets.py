"""Publishes that go to many queues, and messages with headers that are compared with many bindings: others have their turn."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from lockstep.core.commands import AnyCommand, BindCommand, OutgoingMessage, PublishCommand
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.inputs import Woken
from lockstep.core.queues import Queue
from lockstep.core.routing import SELECTOR_ARGUMENT
from services.primary.core import publishing
from services.primary.core.selecting import PAIRS_MANY, PUBLISH_STEPS_MAX, QUEUES_MANY, SHARE_STEPS
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish

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


def wake(rig: Rig) -> bool:
    """One more turn, if one was asked for."""
    rig.boottime_ms += 1
    rig.wakes.clear()
    rig.feed(Woken(SET))
    return bool(rig.wakes)


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
            publishing._check_limits(queues, routed)
    else:
        publishing._check_limits(queues, routed)
    assert Compared.times <= 2 * len(ids)


# --- headers ---


def headed(rig: Rig, client: RigClient, bindings: int) -> None:
    """An exchange of headers with so many bindings of a queue."""
    client.declare("headed")
    client.exchange("h", kind="headers")
    pairs = tuple((f"n{number}", "1") for number in range(PAIRS_MANY // 4))
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
    number = client.command(PublishCommand(0, "h", "k", messages(3_000)))
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
    pairs = tuple((f"n{number}", "1") for number in range(PAIRS_MANY // 4))
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
