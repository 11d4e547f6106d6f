"""A command, and a transaction, bring messages to so many places in queues and no more; what would bring more does nothing."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from lockstep.client import command_batches
from lockstep.client import session_events as e
from lockstep.client.command_batches import CommandBatches
from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.commands import (
    AnyCommand,
    BindCommand,
    CommitCommand,
    EndCommand,
    OutgoingMessage,
    PrepareBranchCommand,
    PublishCommand,
    SelectDtxCommand,
    StartCommand,
)
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.routing import SELECTOR_ARGUMENT
from lockstep.core.xa import XaStatus
from services.primary.core.settings import PrimarySettings
from tests.unit.services.primary.primary_rig import Rig, RigClient, publish
from tests.unit.services.primary.test_bad_branches import NAME
from tests.unit.services.primary.test_costly_selectors import DEAR, LONG
from tests.unit.services.primary.test_limits import noted
from tests.unit.services.primary.test_many_places import said

QUEUES = 5
COUNT = 12
PLACES = QUEUES * COUNT
Messages = Sequence[OutgoingMessage]


def fanned_out(client: RigClient) -> Messages:
    """Messages, each of which is for all queues, and the wiring for that."""
    client.exchange("all", *(f"q{number}" for number in range(QUEUES)))
    return tuple(OutgoingMessage(b"", b"%d" % number) for number in range(COUNT))


def fanned_out_alike(client: RigClient) -> Messages:
    fanned_out(client)
    return AlikeMessages(tuple(b"%d" % number for number in range(COUNT)))


def by_headers(client: RigClient) -> Messages:
    """Every other message goes to one queue more, and the others to one less."""
    client.exchange("all", kind="headers")
    for number in range(QUEUES + 1):
        names = ("a",) if number == 0 else ("b",) if number == 1 else ("a", "b")
        given = (("x-match", "any"), *[(name, "1") for name in names])
        client.ok(BindCommand(0, "all", f"q{number}", "", given))
    ways = (("a", "1"), ("b", "1"))
    return tuple(OutgoingMessage(b"", b"%d" % each, headers=(ways[each % 2],)) for each in range(COUNT))


def by_selectors(client: RigClient) -> Messages:
    """Asking takes several turns."""
    client.exchange("all")
    for number in range(QUEUES):
        client.ok(BindCommand(0, "all", f"q{number}", "k", ((SELECTOR_ARGUMENT, f"{DEAR} OR p LIKE 'a%'"),)))
    return tuple(OutgoingMessage(LONG, b"%d" % number) for number in range(COUNT))


def by_selectors_alike(client: RigClient) -> Messages:
    by_selectors(client)
    return AlikeMessages(tuple(b"%d" % number for number in range(COUNT)), LONG)


WIRINGS = [fanned_out, fanned_out_alike, by_headers, by_selectors, by_selectors_alike]


def rig_with(**limits: int) -> tuple[Rig, RigClient]:
    """And a client with some queues."""
    rig = Rig(PrimarySettings(**limits))
    client = rig.client()
    for number in range(QUEUES + 1):
        client.declare(f"q{number}")
    return rig, client


def last_answer(client: RigClient, *commands: AnyCommand) -> ErrorCode:
    return client.answers[said(client, *commands)[-1]].code


@pytest.mark.parametrize("is_in_transaction", [False, True])
@pytest.mark.parametrize("wired", WIRINGS)
def test_a_command_may_have_so_many_places_and_not_one_more(
    wired: Callable[[RigClient], Messages], *, is_in_transaction: bool
) -> None:
    for places_max, code in ((PLACES, ErrorCode.NONE), (PLACES - 1, ErrorCode.TOO_LARGE)):
        rig, client = rig_with(command_places_max=places_max)
        messages = wired(client)
        rig.pass_time(50)
        key = client.begin() if is_in_transaction else None
        [number] = said(client, PublishCommand(0, "all", "k", messages, key, int(is_in_transaction)))
        answered = client.answers[number]
        assert answered.code is code
        lengths = [queue.length + queue.reserved_length for queue in rig.state.queues.by_id.values()]
        assert sum(lengths) == (PLACES if code is ErrorCode.NONE else 0)
        if code is not ErrorCode.NONE:
            assert f"more than {places_max} places" in answered.message
            assert noted(rig) == ["command_places_max"]
        if key is not None:
            rolled_back = ErrorCode.ROLLED_BACK if code is not ErrorCode.NONE else code
            assert last_answer(client, CommitCommand(0, key, 1)) is rolled_back
        rig.check_log()


def test_no_more_is_asked_than_may_be_kept() -> None:
    """Where messages go is kept until all have been asked about."""
    rig, client = rig_with(command_places_max=2 * QUEUES)
    messages = by_selectors(client)
    rig.pass_time(50)
    selectors = rig.core.context.selectors
    before = selectors.spent
    assert last_answer(client, PublishCommand(0, "all", "k", messages[:2])) is ErrorCode.NONE
    of_two, before = selectors.spent - before, selectors.spent
    assert last_answer(client, PublishCommand(0, "all", "k", messages)) is ErrorCode.TOO_LARGE
    assert selectors.spent - before < 2 * of_two


# --- transactions ---


def published_before(client: RigClient, key: object, last: PublishCommand) -> list[AnyCommand]:
    return [last, CommitCommand(0, key, 2)]  # type: ignore[arg-type]


def published_with(client: RigClient, key: object, last: PublishCommand) -> list[AnyCommand]:
    return [CommitCommand(0, key, 2, last_publish=last)]  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [published_before, published_with])
@pytest.mark.parametrize("wired", WIRINGS)
def test_a_transaction_may_have_so_many_places_and_not_one_more(
    wired: Callable[[RigClient], Messages],
    way: Callable[[RigClient, object, PublishCommand], list[AnyCommand]],
) -> None:
    for places_max, code in ((PLACES + 1, ErrorCode.NONE), (PLACES, ErrorCode.TOO_LARGE)):
        rig, client = rig_with(transaction_places_max=places_max)
        messages = wired(client)
        rig.pass_time(50)
        key = client.begin()
        client.ok(publish("q2", b"first", transaction=key, sequence=1))
        first, *others = said(client, *way(client, key, PublishCommand(0, "all", "k", messages, key, 2)))
        assert client.answers[first].code is code
        if code is not ErrorCode.NONE:
            text = f"would have {PLACES + 1} places in queues, transaction_places_max is {PLACES}"
            assert text in client.answers[first].message
            assert [client.answers[each].code for each in others] == [ErrorCode.ROLLED_BACK] * len(others)
            assert noted(rig) == ["transaction_places_max"]
        there = {bytes(body) for number in range(QUEUES + 1) for body in rig.bodies(f"q{number}")}
        assert len(there) == (COUNT + 1 if code is ErrorCode.NONE else 0)
        assert not rig.state.transactions.live
        rig.check_log()


@pytest.mark.parametrize("count", [1, 2])
def test_a_whole_transaction_has_the_same_limit(count: int) -> None:
    rig, client = rig_with(transaction_places_max=QUEUES)
    fanned_out(client)
    key = client.begin()
    last = publish("k", *[b"1"] * count, exchange="all", transaction=key, sequence=1)
    answer = last_answer(client, CommitCommand(0, key, 1, last_publish=last))
    assert answer is (ErrorCode.NONE if count == 1 else ErrorCode.TOO_LARGE)
    assert rig.bodies("q0") == [b"1"] * (count == 1)
    assert noted(rig) == ["transaction_places_max"] * (count > 1)
    rig.check_log()


def test_a_branch_has_the_same_limit_and_can_only_be_rolled_back_then() -> None:
    rig, client = rig_with(transaction_places_max=2 * QUEUES)
    fanned_out(client)
    client.ok(SelectDtxCommand(0))
    client.ok(StartCommand(0, NAME))
    key = rig.state.transactions.find_branch(NAME).key  # type: ignore[union-attr]
    client.ok(publish("k", b"1", b"2", exchange="all", transaction=key, sequence=1))
    refused = client.do(publish("q0", b"3", transaction=key, sequence=2))
    assert refused.code is ErrorCode.TOO_LARGE and "transaction_places_max" in refused.message
    client.do(EndCommand(0, NAME, 1))
    assert client.do(PrepareBranchCommand(0, NAME)).value != XaStatus.OK
    assert rig.bodies("q0") == [] and noted(rig) == ["transaction_places_max"]
    rig.check_log()


def test_a_transaction_that_is_handed_over_has_its_places_still() -> None:
    rig, client = rig_with(transaction_places_max=2 * QUEUES)
    fanned_out(client)
    client.attach(outlives_hand_over=True)
    key = client.begin()
    client.ok(publish("k", b"1", b"2", exchange="all", transaction=key, sequence=1))
    rig = rig.next_reign("hand-over")
    client.rig, client.stream = rig, 0
    client.attach(outlives_hand_over=True)
    refused = client.do(publish("q0", b"3", transaction=key, sequence=2))
    assert refused.code is ErrorCode.TOO_LARGE and "transaction_places_max" in refused.message
    rig.check_log()


# --- what callers publish together ---


class Sending:
    """A session in a set, whose commands a primary answers when it is told to."""

    before_write: Callable[[], None]
    gathered_bytes = 0

    def __init__(self, client: RigClient) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._submitted: list[tuple[AnyCommand, Callable[[e.CommandAnswer], None]]] = []

    def write_soon(self) -> None:
        """Nothing is written before it is asked for."""

    def submit_for(self, command: AnyCommand, heard: Callable[[e.CommandAnswer], None]) -> None:
        self._submitted.append((command, heard))

    def answer(self) -> int:
        """All that there is; answers how many commands that are."""
        submitted, self._submitted = self._submitted, []
        numbers = said(self._client, *(command for command, _ in submitted))
        for number, (_, heard) in zip(numbers, submitted, strict=True):
            told = self._client.answers[number]
            is_done = told.code is ErrorCode.NONE
            heard(e.Done(told.value) if is_done else Rejected(told.code, told.message))
        return len(submitted)


@pytest.mark.parametrize("in_order", [True, False])
async def test_nobody_is_refused_what_is_only_together_too_much(
    in_order: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, messages_of_one = QUEUES, 4
    monkeypatch.setattr(command_batches, "_TOGETHER_MIN", messages_of_one // 2)
    rig, client = rig_with(command_places_max=queues * messages_of_one, message_queues_max=queues)
    fanned_out(client)
    session = Sending(client)
    made = CommandBatches(session, in_order)  # type: ignore[arg-type]
    callers = 3 * messages_of_one
    confirmations = [
        made.publish("all", "k", AlikeMessages((b"%d" % caller,)), None) for caller in range(callers)
    ]
    made.flush()
    behind = made.publish("all", "k", AlikeMessages((b"behind",)), None)
    made.flush()
    assert session.answer() > 2
    assert [each.exception() for each in (*confirmations, behind)] == [None] * (callers + 1)
    assert rig.bodies("q0") == [*(b"%d" % caller for caller in range(callers)), b"behind"]


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_burst_is_taken_in_its_order_though_queues_were_bound_since_the_last_answer(
    in_order: bool,
) -> None:
    rig, client = rig_with(command_places_max=4 * QUEUES)
    client.exchange("all", "q0")
    session = Sending(client)
    made = CommandBatches(session, in_order)  # type: ignore[arg-type]

    def publish_each(bodies: Sequence[bytes]) -> list[command_batches.Confirmation]:
        found = [made.publish("all", "k", AlikeMessages((body,)), None) for body in bodies]
        made.flush()
        return found

    confirmations = publish_each([b"first"])
    session.answer()
    for number in range(1, QUEUES):
        client.declare(f"q{number}")
        client.ok(BindCommand(0, "all", f"q{number}", ""))
    burst = [[b"%d.%d" % (batch, caller) for caller in range(5)] for batch in range(3)]
    for bodies in burst:
        confirmations += publish_each(bodies)
    assert session.answer() == 3
    assert session.answer() == 15
    assert {each.exception() for each in confirmations} == {None}
    assert rig.bodies("q0") == [b"first", *[body for bodies in burst for body in bodies]]
