"""Batches keep the order that a caller may rely on, and join what may be joined."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.client import session_events as e
from lockstep.client.command_batches import (
    BATCH_MESSAGES_MAX,
    COMMAND_PLACES_MAX,
    COMMAND_POSITIONS_MAX,
    FAN_OUTS_KEPT,
    MESSAGE_QUEUES_MAX,
    CommandBatches,
    Confirmation,
)
from lockstep.client.command_window import MESSAGE_BYTES
from lockstep.core import commands as c
from lockstep.core.alike_messages import AlikeMessages
from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, TransactionKey
from services.primary.core.settings import PrimarySettings

TX = (LogIndex(7), Epoch(1))
OTHER_TX = (LogIndex(8), Epoch(1))


class Writing:
    """A session in a set whose last write is under way: what is submitted is only noted."""

    before_write: Callable[[], None]
    gathered_bytes = 0
    lost_sessions = 0
    losses_told = 0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.submitted: list[c.AnyCommand] = []
        self.heard: list[Callable[[e.CommandAnswer], None]] = []
        self.left_out: list[TransactionKey] = []

    def write_soon(self) -> None:
        pass

    def leave_out(self, transaction: TransactionKey) -> None:
        self.left_out.append(transaction)

    def submit_for(self, command: c.AnyCommand, heard: Callable[[e.CommandAnswer], None]) -> None:
        self.submitted.append(command)
        self.heard.append(heard)


def batches(*, in_order: bool = True) -> tuple[Writing, CommandBatches]:
    session = Writing()
    return session, CommandBatches(session, in_order)  # type: ignore[arg-type]


def message(text: str) -> c.OutgoingMessage:
    return c.OutgoingMessage(b"", text.encode())


def told(commands: list[c.AnyCommand]) -> list[str]:
    """Each command in short."""
    said = []
    for command in commands:
        match command:
            case c.PublishCommand():
                said.append(f"{command.exchange}>{command.routing_key}:{len(command.messages)}")
            case c.SettleCommand():
                said.append(f"settle {command.queue}:{len(command.positions)}")
    return said


async def test_the_same_target_joins_and_other_targets_do_not_overtake_it() -> None:
    session, made = batches()
    for queue in ("a", "b", "a", "b"):
        made.publish("", queue, [message("x")], None)
    made.flush()
    assert told(session.submitted) == [">a:2", ">b:2"]


async def test_an_accept_does_not_overtake_what_was_published_before_it() -> None:
    session, made = batches()
    for position in (1, 2):
        made.publish("", "a", [message("x")], None)
        made.settle("q", Epoch(1), [QueuePosition(position)], c.Disposition.ACCEPT, None)
    made.flush()
    assert told(session.submitted) == [">a:1", "settle q:1", ">a:1", "settle q:1"]


async def test_in_a_transaction_order_between_queues_does_not_matter() -> None:
    session, made = batches()
    for position in (1, 2, 3):
        made.settle("q", Epoch(1), [QueuePosition(position)], c.Disposition.ACCEPT, TX)
        made.publish("", "a", [message("x")], TX)
        made.publish("", "b", [message("x")], TX)
    made.flush()
    assert told(session.submitted) == ["settle q:3", ">a:3", ">b:3"]


@pytest.mark.parametrize("transaction", [None, TX])
async def test_through_an_exchange_messages_keep_their_order(transaction: Any) -> None:
    session, made = batches()
    for exchange, key in (("", "a"), ("topics", "k1"), ("topics", "k2"), ("topics", "k1"), ("", "a")):
        made.publish(exchange, key, [message("x")], transaction)
    made.flush()
    assert told(session.submitted) == [">a:1", "topics>k1:1", "topics>k2:1", "topics>k1:1", ">a:1"]


async def test_what_many_callers_do_joins_whatever_the_others_do_between() -> None:
    session, made = batches(in_order=False)
    for position in (1, 2):
        made.settle("q", Epoch(1), [QueuePosition(position)], c.Disposition.ACCEPT, None)
        made.publish("", "a", [message("x")], None)
        made.publish("", "b", [message("x")], TX)
    made.flush()
    assert told(session.submitted) == [">a:2", ">b:2", "settle q:2"]


async def test_of_many_callers_too_an_exchange_gets_messages_in_their_order() -> None:
    session, made = batches(in_order=False)
    for exchange, key in (("topics", "k1"), ("", "a"), ("topics", "k1"), ("topics", "k2"), ("topics", "k1")):
        made.publish(exchange, key, [message("x")], None)
    made.flush()
    assert told(session.submitted) == ["topics>k1:2", ">a:1", "topics>k2:1", "topics>k1:1"]


async def test_a_batch_has_a_limit_and_a_callers_messages_are_not_split() -> None:
    session, made = batches()
    for _ in range(3):
        made.publish("", "a", [message("x")] * (BATCH_MESSAGES_MAX - 1), None)
    made.flush()
    assert told(session.submitted) == [f">a:{2 * (BATCH_MESSAGES_MAX - 1)}", f">a:{BATCH_MESSAGES_MAX - 1}"]


@pytest.mark.parametrize("transaction", [None, TX])
@pytest.mark.parametrize("in_order", [True, False])
async def test_what_is_settled_is_split_where_no_set_takes_it_in_one_command(
    in_order: bool, transaction: Any
) -> None:
    session, made = batches(in_order=in_order)
    positions = [QueuePosition(one) for one in range(2 * COMMAND_POSITIONS_MAX + 1)]
    settled = made.settle("q", Epoch(1), positions, c.Disposition.ACCEPT, transaction)
    made.settle("q", Epoch(1), [QueuePosition(1 << 40)], c.Disposition.ACCEPT, transaction)
    made.flush()
    assert told(session.submitted) == [*[f"settle q:{COMMAND_POSITIONS_MAX}"] * 2, "settle q:2"]
    named = [
        one
        for command in session.submitted
        if isinstance(command, c.SettleCommand)
        for one in command.positions
    ]
    assert named[:-1] == positions
    for count, heard in zip((COMMAND_POSITIONS_MAX, COMMAND_POSITIONS_MAX, 1), session.heard, strict=True):
        await asyncio.sleep(0)
        assert not settled.done()
        heard(e.Done(count))
    assert await settled == len(positions)


def test_sets_take_in_one_command_what_is_not_split() -> None:
    settings = PrimarySettings()
    assert settings.command_messages_max == COMMAND_POSITIONS_MAX
    assert settings.command_places_max == COMMAND_PLACES_MAX
    assert settings.message_queues_max == MESSAGE_QUEUES_MAX
    assert settings.transaction_places_max <= COMMAND_PLACES_MAX, "or batches refuse what is of a transaction"


def publish_to_topic(made: CommandBatches, session: Writing, calls: int, messages: int = 1) -> list[int]:
    """So many calls at once; the messages of each command that they become."""
    before = len(session.submitted)
    for _ in range(calls):
        made.publish("topic", "k", [message("x")] * messages, None)
    made.flush()
    return [len(each.messages) for each in session.submitted[before:] if isinstance(each, c.PublishCommand)]


@pytest.mark.parametrize("messages", [1, 49, 99, 100])
async def test_what_callers_publish_together_is_taken_however_many_queues_an_exchange_has(
    messages: int,
) -> None:
    session, made = batches()
    counts = publish_to_topic(made, session, 300, messages)
    assert sum(counts) == 300 * messages
    assert max(counts) * MESSAGE_QUEUES_MAX <= COMMAND_PLACES_MAX


@pytest.mark.parametrize(
    ("queues", "together"), [(0, 1000), (1, 1000), (125, 1000), (500, 250), (2000, 62), (10_000, 50)]
)
async def test_what_a_set_has_taken_says_how_much_is_published_together_from_then_on(
    queues: int, together: int
) -> None:
    session, made = batches()
    [count] = publish_to_topic(made, session, 3)
    session.heard[-1](e.Done(count * queues))
    assert max(publish_to_topic(made, session, 2500)) == together
    assert max(publish_to_topic(made, session, 50, together - 1)) <= 2 * together
    session.heard[-1](Rejected(ErrorCode.TOO_LARGE, "too many"))
    assert max(publish_to_topic(made, session, 2500)) == 50, "nothing is known any more"


async def test_other_keys_of_an_exchange_say_nothing() -> None:
    session, made = batches()
    made.publish("topic", "other", [message("x")], None)
    made.flush()
    session.heard[-1](e.Done(1))
    assert max(publish_to_topic(made, session, 200)) == 50


async def test_what_was_answered_long_ago_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.client.command_batches.FAN_OUT_SECONDS", 0)
    session, made = batches()
    publish_to_topic(made, session, 1)
    session.heard[-1](e.Done(1))
    assert max(publish_to_topic(made, session, 200)) == 50


async def test_what_was_refused_together_is_not_joined_again_though_few_queues_get_it() -> None:
    """Selectors of few queues may be what takes too much."""
    session, made = batches()
    publish_to_topic(made, session, 1)
    session.heard[-1](e.Done(1))
    assert publish_to_topic(made, session, 1000) == [1000]
    session.heard[-1](Rejected(ErrorCode.TOO_LARGE, "too many steps"))
    assert max(publish_to_topic(made, session, 200)) == 50
    for answer in (e.Done(50), e.Done(50), Rejected(ErrorCode.TOO_LARGE, "a message by itself")):
        publish_to_topic(made, session, 1)
        session.heard[-1](answer)
        assert max(publish_to_topic(made, session, 2000)) == 125


async def test_what_was_refused_together_is_not_joined_again_behind_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All callers of a burst are refused by that, though each alone would be taken."""
    monkeypatch.setattr("lockstep.client.command_batches.FAN_OUT_SECONDS", 0)
    session, made = batches(in_order=False)
    assert publish_to_topic(made, session, 1, 1000) == [1000]
    session.heard[-1](Rejected(ErrorCode.TOO_LARGE, "too many steps"))
    monkeypatch.setattr("lockstep.client.command_batches.FAN_OUT_SECONDS", 1000)
    publish_to_topic(made, session, 1)
    session.heard[-1](e.Done(1))
    assert max(publish_to_topic(made, session, 2000)) == 125


async def test_that_is_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.client.command_batches.FAN_OUT_SECONDS", 0)
    monkeypatch.setattr("lockstep.client.command_batches.REFUSED_SECONDS", 0)
    session, made = batches(in_order=False)
    publish_to_topic(made, session, 1, 1000)
    session.heard[-1](Rejected(ErrorCode.TOO_LARGE, "too many steps"))
    monkeypatch.setattr("lockstep.client.command_batches.FAN_OUT_SECONDS", 1000)
    publish_to_topic(made, session, 1)
    session.heard[-1](e.Done(1))
    assert max(publish_to_topic(made, session, 2000)) == 1000


async def test_so_many_as_any_set_takes_are_joined_whatever_was_refused_together() -> None:
    session, made = batches()
    assert publish_to_topic(made, session, 3) == [3]
    session.heard[-1](Rejected(ErrorCode.TOO_LARGE, "too many steps"))
    publish_to_topic(made, session, 1)
    session.heard[-1](e.Done(1))
    assert made.together("topic", "k") == 50


async def test_targets_of_which_something_is_known_are_forgotten_when_there_are_too_many() -> None:
    session, made = batches()
    for number in range(FAN_OUTS_KEPT + 1):
        made.publish("topic", f"k{number}", [message("x")], None)
        made.flush()
        session.heard[-1](e.Done(1))
    assert [made.together("topic", f"k{number}") for number in (0, FAN_OUTS_KEPT)] == [50, 1000]


REFUSED = Rejected(ErrorCode.STALE_DELIVERY, "stale", queue="q")
DOUBTFUL = InDoubt(ErrorCode.UNAVAILABLE, "no primary")


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (REFUSED, REFUSED, Rejected),
        (REFUSED, e.Done(1), InDoubt),
        (e.Done(1), REFUSED, InDoubt),
        (REFUSED, DOUBTFUL, InDoubt),
        (e.Done(1), DOUBTFUL, InDoubt),
    ],
)
async def test_parts_of_which_some_are_refused_and_others_not_are_in_doubt(
    first: e.CommandAnswer, second: e.CommandAnswer, kind: type[Exception]
) -> None:
    session, made = batches()
    positions = [QueuePosition(one) for one in range(COMMAND_POSITIONS_MAX + 1)]
    settled = made.settle("q", Epoch(1), positions, c.Disposition.RELEASE, None)
    made.flush()
    for answer, heard in zip((first, second), session.heard, strict=True):
        heard(answer)
    with pytest.raises(kind) as raised:
        await settled
    assert isinstance(raised.value, Rejected | InDoubt)
    assert raised.value.code is (DOUBTFUL if DOUBTFUL in (first, second) else REFUSED).code


async def test_parts_may_be_answered_behind_the_end_of_who_waited_for_them() -> None:
    session, made = batches()
    positions = [QueuePosition(one) for one in range(COMMAND_POSITIONS_MAX + 1)]
    settled = made.settle("q", Epoch(1), positions, c.Disposition.RELEASE, None)
    made.flush()
    raised: list[object] = []
    session.loop.set_exception_handler(lambda _, context: raised.append(context))
    settled.cancel()
    for heard in session.heard:
        heard(e.Done(1))
    await asyncio.sleep(0.01)
    assert settled.cancelled() and raised == []


def test_an_effect_reads_well() -> None:
    assert repr(e.CommandDone("t", 3)) == "CommandDone(ticket='t', value=3, transaction=None, begun=())"


async def test_a_commit_gets_its_transactions_publish_to_a_queue_if_that_is_the_last_of_all() -> None:
    session, made = batches()
    made.publish("", "a", [message("1")], TX)
    made.publish("", "b", [message("2")], TX)
    made.publish("", "b", [message("3")], TX)
    last = made.flush_but_last_publish(TX)
    assert told(session.submitted) == [">a:1"]
    assert last is not None
    assert told([last[0]]) == [">b:2"]


async def test_what_is_behind_a_publish_that_goes_with_a_commit_does_not_join_it() -> None:
    session, made = batches()
    made.publish("", "b", [message("1")], TX)
    assert made.flush_but_last_publish(TX) is not None
    made.publish("", "b", [message("2")], TX)
    made.flush()
    assert told(session.submitted) == [">b:1"]


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_is_of_others_or_no_publish_does_not_go_with_a_commit(*, in_order: bool) -> None:
    enters: tuple[Callable[[CommandBatches], object], ...] = (
        lambda made: made.publish("", "a", [message("1")], OTHER_TX),
        lambda made: made.publish("", "a", [message("1")], None),
        lambda made: made.publish("e", "a", [message("1")], TX),
        lambda made: made.settle("a", Epoch(1), (QueuePosition(1),), c.Disposition.ACCEPT, TX),
    )
    for enter in enters:
        session, made = batches(in_order=in_order)
        enter(made)
        assert made.flush_but_last_publish(TX) is None
        assert len(session.submitted) == 1
    session, made = batches(in_order=in_order)
    assert made.flush_but_last_publish(TX) is None
    assert not session.submitted


async def test_what_has_no_size_leaves_no_batch_behind() -> None:
    session, made = batches()
    no_properties: Any = None
    with pytest.raises(TypeError):
        made.publish("", "a", AlikeMessages((b"x",), no_properties), TX)
    made.publish("", "b", [message("x")], TX)
    made.flush()
    assert told(session.submitted) == [">b:1"]
    assert session.left_out == [], "who was told goes on without it"


async def test_what_gathers_counts_though_it_has_no_content() -> None:
    session, made = batches()
    made.publish("", "a", [message("")] * 3, TX)
    assert session.gathered_bytes == 3 * MESSAGE_BYTES
    made.publish("", "b", [message("x")], TX)
    assert session.gathered_bytes == 4 * MESSAGE_BYTES + 1
    assert made.flush_but_last_publish(TX) is not None
    assert session.gathered_bytes == 0


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_is_settled_is_said_in_the_name_of_no_later_session(in_order: bool) -> None:
    session, made = batches(in_order=in_order)

    def settle(position: int, transaction: Any = None) -> Confirmation:
        positions = [QueuePosition(position)]
        return made.settle("q", Epoch(1), positions, c.Disposition.ACCEPT, transaction)

    of_the_lost, in_a_transaction = settle(1), settle(2, TX)
    session.lost_sessions += 1
    session.losses_told += 1
    of_the_next = settle(3)
    made.flush()
    error = of_the_lost.exception()
    assert isinstance(error, Rejected) and error.code is ErrorCode.STALE_DELIVERY
    assert error.details["queue"] == "q"
    settled = [one.positions for one in session.submitted if isinstance(one, c.SettleCommand)]
    assert sorted(settled) == [(2,), (3,)], "its set refuses what is of a transaction that has ended"
    assert not in_a_transaction.done() and not of_the_next.done()


@pytest.mark.parametrize("in_order", [True, False])
async def test_what_is_settled_while_consumers_have_still_to_hear_of_a_loss_is_said_in_nobodys_name(
    in_order: bool,
) -> None:
    """They have nothing of the next session before they have heard of it."""
    session, made = batches(in_order=in_order)
    session.lost_sessions += 1
    late = made.settle("q", Epoch(1), [QueuePosition(1)], c.Disposition.ACCEPT, None)
    rejected = made.settle("q", Epoch(1), [QueuePosition(2)], c.Disposition.REJECT, None)
    session.losses_told += 1
    of_the_next = made.settle("q", Epoch(1), [QueuePosition(3)], c.Disposition.ACCEPT, None)
    made.flush()
    for confirmation in late, rejected:
        error = confirmation.exception()
        assert isinstance(error, Rejected) and error.code is ErrorCode.STALE_DELIVERY
    settled = [one.positions for one in session.submitted if isinstance(one, c.SettleCommand)]
    assert settled == [(3,)] and not of_the_next.done()


class _OnceOnly(list[c.OutgoingMessage]):
    """Messages that are counted, and then raise."""

    was_read = False

    def __iter__(self) -> Iterator[c.OutgoingMessage]:
        if self.was_read:
            raise ValueError("no more")
        self.was_read = True
        return super().__iter__()


@pytest.mark.parametrize("goes_with_commit", [False, True])
@pytest.mark.parametrize("transaction", [None, TX])
async def test_a_batch_that_makes_no_command_fails_alone(transaction: Any, *, goes_with_commit: bool) -> None:
    session, made = batches()
    before = made.publish("", "a", [message("x")], transaction)
    bad = made.publish("", "b", _OnceOnly([message("x")]), transaction)
    if not goes_with_commit:
        made.publish("", "c", [message("x")], transaction)
        made.flush()
    else:
        assert made.flush_but_last_publish(TX) is None
    assert told(session.submitted) == [">a:1"] if goes_with_commit else [">a:1", ">c:1"]
    assert isinstance(error := bad.exception(), Rejected)
    assert error.code is ErrorCode.INVALID_ARGUMENT
    assert not before.done()
    assert session.left_out == ([] if transaction is None else [TX])
