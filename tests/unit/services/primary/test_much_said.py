"""What one client says in one go and is much together: in short steps, in order, beside what others say."""

import pytest
from msgspec.structs import replace

from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.commands import (
    AnyCommand,
    PublishCommand,
    SettleCommand,
)
from lockstep.core.effects import CloseClientStream, TellClient
from lockstep.core.inputs import Woken
from lockstep.core.server_messages import AttachRefused, SessionAttached
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import SET, Rig, RigClient, publish, take_turns
from tests.unit.services.primary.test_alone import Longest, hold
from tests.unit.services.primary.test_many_targets import say, spread

WORK_IN_ONE, SEVERAL = 40, 60
PRIORITY = 9
"""Each message has a place of its own then."""


@pytest.fixture(autouse=True)
def _little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("client_hearing", "primary"):
        monkeypatch.setattr(f"services.primary.core.{module}.WORK_IN_ONE", WORK_IN_ONE)


def batch(count: int, **target: str) -> PublishCommand:
    messages = AlikeMessages(tuple(b"%d" % number for number in range(count)), priority=PRIORITY)
    return PublishCommand(0, target.get("exchange", ""), target.get("key", "k"), messages)


def to_one_queue(client: RigClient) -> list[AnyCommand]:
    client.declare("k")
    return [batch(WORK_IN_ONE // 4)] * SEVERAL


def to_many_queues(client: RigClient) -> list[AnyCommand]:
    spread(client.rig, 5)
    return [batch(WORK_IN_ONE // 20, exchange="all")] * SEVERAL


def settled(client: RigClient) -> list[AnyCommand]:
    client.declare("q")
    each = WORK_IN_ONE // 4
    hold(client, "q", SEVERAL * each)
    held = [position for _, position in client.in_hand]
    return [
        SettleCommand(0, "q", client.rig.core.epoch, tuple(held[begin : begin + each]))
        for begin in range(0, len(held), each)
    ]


@pytest.mark.parametrize("what", [to_one_queue, to_many_queues, settled])
def test_the_more_is_said_in_one_go_the_more_steps_and_no_longer_ones(what: object) -> None:
    calls = []
    for count in (SEVERAL // 2, SEVERAL):
        rig = Rig()
        client, other = rig.client(), rig.client()
        other.declare("other")
        commands = what(client)[:count]  # type: ignore[operator]
        longest = Longest(rig)
        numbers = say(client, *commands)
        behind = other.command(publish("other", b"in between"))
        assert behind in other.answers and not all(number in client.answers for number in numbers)
        take_turns(rig)
        assert all(number in client.answers for number in numbers) and not rig.core.is_alone
        calls.append(longest.calls)
        rig.check_log()
    few, many = calls
    assert many <= 1.4 * few


def test_a_client_is_heard_in_the_order_in_which_it_speaks(rig: Rig) -> None:
    client = rig.client()
    commands = to_one_queue(client)
    client.declare("q")
    numbers = say(client, *commands)
    behind = say(client, publish("q", b"1"))
    say(client, publish("q", b"2"))
    assert not client.answers.keys() & {numbers[-1], *behind}
    while behind[0] not in client.answers:
        take_turns(rig, 1)
    assert all(number in client.answers for number in numbers)
    take_turns(rig)
    assert rig.bodies("q") == [b"1", b"2"]
    rig.check_log()


def test_streams_that_say_much_take_turns(rig: Rig) -> None:
    clients = [rig.client() for _ in range(3)]
    commands = to_one_queue(clients[0])
    numbers = [say(client, *commands) for client in clients]
    most = 0
    while rig.core.is_alone:
        take_turns(rig, 1)
        done = [
            sum(each in client.answers for each in its) for client, its in zip(clients, numbers, strict=True)
        ]
        if max(done) < SEVERAL:
            most = max(most, max(done[1:]) - min(done[1:]))
    assert done == [SEVERAL] * 3 and most <= 12


def test_what_a_client_said_and_is_not_done_goes_with_its_stream_and_is_done_once_when_it_comes_back(
    rig: Rig,
) -> None:
    client = rig.client()
    numbers = say(client, *to_one_queue(client))
    client.lose_stream()
    take_turns(rig)
    done = length(rig) // (WORK_IN_ONE // 4)
    assert 0 < done < SEVERAL and not rig.core.is_alone
    client.attach()
    for number in numbers:
        client.say(replace(batch(WORK_IN_ONE // 4), number=number))
        take_turns(rig)
    assert length(rig) == SEVERAL * (WORK_IN_ONE // 4)
    assert all(number in client.answers for number in numbers)
    rig.check_log()


def length(rig: Rig) -> int:
    queue = rig.state.queues.get("k")
    assert queue is not None
    return queue.length


def test_whoever_waits_to_be_heard_is_turned_away_when_the_reign_ends() -> None:
    """It came before the epoch served, behind somebody who said much."""
    before = Rig()
    commands = to_one_queue(before.client())
    rig = Rig(predecessor=before, holds_store=True)
    first, second = rig.client(), rig.client()
    say(first, *commands)
    rig.acknowledge(1)
    assert rig.core.is_alone and not second.heard_of(SessionAttached)
    told = list(rig.core.stop("enough"))
    refused = [
        each.stream
        for each in told
        if isinstance(each, TellClient) and isinstance(each.message, AttachRefused)
    ]
    assert refused == [second.stream] and CloseClientStream(SET, second.stream) in told


def test_a_primary_that_has_much_to_hear_can_leave() -> None:
    rig = Rig(PrimarySettings(piece_cost=1))
    client = rig.client()
    say(client, *to_one_queue(client))
    assert rig.core.is_alone and not rig.core.is_amid
    rig.core.prepare_to_leave(rig.now)
    for _ in range(10):
        rig.core.handle(Woken(SET), rig.now)
    assert rig.core.may_leave
