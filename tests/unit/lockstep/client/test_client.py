"""The SDK over real gRPC, against a fake broker."""

import asyncio
import gc

import pytest

import lockstep
from lockstep.client import Client, InDoubt, Rejected, Session, TransactionState, coordinators
from lockstep.client.command_batches import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from lockstep.client.session_stream import SessionStream
from lockstep.client.set_session import SetSession
from lockstep.client.transaction import Transaction
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition, SetName
from lockstep.core.server_messages import DeliveredMessage, QueueDescription
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import bodies


async def test_a_message_goes_to_the_set_of_its_queue(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", b"1")
    await session.publish("c", [b"2", b"3"])
    assert bodies(broker.worlds["one"].executed()) == ["1"]
    assert bodies(broker.worlds["two"].executed()) == ["2", "3"]


async def test_publishes_at_the_same_time_share_commands(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", b"first")
    await asyncio.gather(*(session.publish("a", str(i).encode()) for i in range(200)))
    published = [m for m in broker.worlds["one"].executed() if isinstance(m, c.PublishCommand)]
    assert bodies(list(published)) == ["first", *map(str, range(200))]
    assert len(published) < 20


async def test_a_caller_is_not_refused_for_what_another_asked(broker: FakeBroker, session: Session) -> None:
    broker.refusals["a"] = (ErrorCode.QUEUE_FULL, 2)
    big = session.publish("a", [b"1", b"2", b"3"])
    results = await asyncio.gather(
        big, session.publish("a", b"4"), session.publish("a", b"5"), return_exceptions=True
    )
    assert [type(result) for result in results] == [Rejected, type(None), type(None)]
    assert bodies(broker.worlds["one"].executed()) == ["4", "5"]


async def test_an_unknown_queue_is_a_typed_error(session: Session) -> None:
    with pytest.raises(Rejected) as raised:
        await session.publish("nowhere", b"")
    assert repr(raised.value) == "Rejected(NOT_FOUND, 'no nowhere', name='nowhere')"


async def test_a_queue_is_declared_where_it_is_or_where_the_caller_says(
    broker: FakeBroker, session: Session
) -> None:
    await session.declare_queue("new", set_name="two")
    await session.declare_queue("a")
    assert [m.name for m in broker.worlds["two"].executed() if isinstance(m, c.DeclareQueueCommand)] == [
        "new"
    ]
    assert [m.name for m in broker.worlds["one"].executed() if isinstance(m, c.DeclareQueueCommand)] == ["a"]
    with pytest.raises(Rejected, match="there are 2 resource sets"):
        await session.declare_queue("other")


async def test_whoever_declared_a_name_knows_where_it_is(broker: FakeBroker, session: Session) -> None:
    """Nobody is asked, who here knew nothing of either."""
    await session.declare_queue("new", set_name="two")
    await session.declare_exchange("news", set_name="two")
    await session.publish("new", b"1")
    await session.publish("", b"2", exchange="news")
    assert bodies(broker.worlds["two"].executed()) == ["1", "2"]


async def test_a_declared_name_that_is_gone_is_asked_for_again(broker: FakeBroker, session: Session) -> None:
    await session.declare_queue("new", set_name="two")
    broker.refusals["new"] = (ErrorCode.NOT_FOUND, 0)
    with pytest.raises(Rejected) as refused:
        await session.publish("new", b"1")
    assert refused.value.code is ErrorCode.NOT_FOUND
    broker.refusals.clear()
    broker.directory["new"] = "one"
    await session.publish("new", b"1")
    assert bodies(broker.worlds["one"].executed()) == ["1"]


async def test_a_lost_stream_is_not_noticed_by_the_caller(broker: FakeBroker, session: Session) -> None:
    await session.publish("a", b"before")
    broker.is_holding = True
    publishing = asyncio.ensure_future(session.publish("a", b"during"))
    await eventually(lambda: len(broker.worlds["one"].log) == 4)
    broker.is_holding = False
    broker.hang_up()
    await publishing
    assert bodies(broker.worlds["one"].executed()) == ["before", "during"]


async def test_a_transaction_sends_each_target_once(broker: FakeBroker, session: Session) -> None:
    async with session.transaction() as transaction:
        for number in range(10):
            await transaction.publish("a", str(number).encode())
            await transaction.publish("b", str(number).encode())
    assert transaction.state is TransactionState.COMMITTED
    begin, *operations, commit = broker.worlds["one"].executed()
    assert isinstance(begin, c.BeginCommand)
    assert [type(m).__name__ for m in operations] == ["PublishCommand"] * len(operations)
    assert len(operations) <= 4
    assert isinstance(commit, c.CommitCommand)
    assert commit.operations == len(operations)


@pytest.mark.parametrize("takes_last_publish", [True, False])
async def test_a_commit_brings_the_last_publish_where_the_set_takes_it(
    broker: FakeBroker, session: Session, takes_last_publish: bool
) -> None:
    broker.worlds["one"].takes_last_publish = takes_last_publish
    async with session.transaction() as transaction:
        first = await transaction.publish("a", [b"1", b"2"])
        last = await transaction.publish("b", [b"3", b"4", b"5"])
    executed = broker.worlds["one"].executed()
    commit = executed[-1]
    assert bodies(executed) == ["1", "2", "3", "4", "5"]
    assert isinstance(commit, c.CommitCommand)
    assert commit.operations == 2
    if takes_last_publish:
        brought = commit.last_publish
        assert brought is not None
        assert (brought.routing_key, brought.transaction, brought.sequence) == ("b", commit.transaction, 2)
        assert (await first, await last) == (0, 3)
    else:
        assert commit.last_publish is None


async def test_what_a_commit_does_not_bring(broker: FakeBroker, session: Session) -> None:
    """What goes through an exchange, what was sent before, and what is behind the publish."""
    async with session.transaction() as transaction:
        await transaction.publish("a", b"1", exchange="b")
    async with session.transaction() as transaction:
        await (await transaction.publish("a", b"2"))
    commits = [m for m in broker.worlds["one"].executed() if isinstance(m, c.CommitCommand)]
    assert [m.operations for m in commits] == [1, 1]
    assert [m.last_publish for m in commits] == [None, None]


async def test_a_refused_last_publish_is_told_to_whoever_published_and_rolls_back(
    broker: FakeBroker, session: Session
) -> None:
    broker.refusals["a"] = (ErrorCode.QUEUE_FULL, 0)
    transaction = session.transaction()
    confirmation = await transaction.publish("a", b"1")
    with pytest.raises(Rejected) as refused:
        await transaction.commit()
    assert refused.value.code is ErrorCode.ROLLED_BACK
    assert transaction.state is TransactionState.ROLLED_BACK
    with pytest.raises(Rejected) as why:
        await confirmation
    assert why.value.code is ErrorCode.QUEUE_FULL
    async with session.transaction() as another:
        await another.publish("b", b"2")
    assert bodies(broker.worlds["one"].executed()) == ["2"]


async def test_the_commit_of_a_distributed_transaction_brings_nothing(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was published last is an operation of its branch."""

    class Wide:
        state, was_in_doubt = TransactionState.OPEN, False

        async def commit(self) -> None:
            self.state = TransactionState.COMMITTED

    transaction = session.transaction()
    await transaction.publish("a", b"1")
    monkeypatch.setattr(transaction, "_wide", Wide())
    await transaction.commit()
    assert transaction.state is TransactionState.COMMITTED
    await eventually(lambda: bodies(broker.worlds["one"].executed()) == ["1"])
    assert not [m for m in broker.worlds["one"].executed() if isinstance(m, c.CommitCommand)]


async def test_what_is_published_behind_a_commit_does_not_join_what_it_has_brought(
    broker: FakeBroker, session: Session
) -> None:
    transaction = session.transaction()
    await transaction.publish("a", b"1")
    committing = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(0)
    confirmed = await session.publish_soon("a", b"2")
    await committing
    await confirmed
    assert bodies(broker.worlds["one"].executed()) == ["1", "2"]


async def test_transactions_in_a_row_need_one_round_each(broker: FakeBroker, session: Session) -> None:
    for number in range(12):
        async with session.transaction() as transaction:
            await transaction.publish("a", str(number).encode())
    executed = broker.worlds["one"].executed()
    kinds = [type(m).__name__ for m in executed]
    last = len(kinds) - 1 - kinds[::-1].index("PublishCommand")
    assert "BeginCommand" not in kinds[last - 1 : last], "it was begun before"
    assert kinds.count("CommitCommand") == 12
    assert len(bodies(executed)) == 12


async def test_a_transaction_while_nobody_serves_takes_none_that_is_about_to_end(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        async with session.transaction() as transaction:
            await transaction.publish("a", str(number).encode())
    set_session, _ = await session.of_set(SetName("one"))
    begun = len(set_session.reserve)
    assert begun > 0
    monkeypatch.setattr(SetSession, "is_attached", False)
    transaction = session.transaction()
    await transaction.publish("a", b"after")
    assert len(set_session.reserve) == begun
    await transaction.commit()
    assert transaction.state is TransactionState.COMMITTED


async def test_a_commit_is_written_in_its_own_call(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = session.transaction()
    await transaction.publish("a", b"1")
    await asyncio.sleep(0.05)  # What was written before has left.
    written: list[object] = []
    monkeypatch.setattr(SessionStream, "write", lambda _, messages: written.append(messages))
    committing = transaction.commit()
    committing.send(None)
    assert len(written) == 1
    committing.close()


async def test_whoever_commits_one_after_the_other_has_the_next_ones_begun_by_commits(
    broker: FakeBroker, session: Session
) -> None:
    for number in range(20):
        async with session.transaction() as transaction:
            await transaction.publish("a", str(number).encode())
    executed = broker.worlds["one"].executed()
    commits = [m for m in executed if isinstance(m, c.CommitCommand)]
    assert len(begins_of(broker)) == 3
    assert sum(m.begins for m in commits) >= 17
    assert len({m.transaction for m in commits}) == 20


async def test_what_a_commit_has_begun_is_taken_though_its_caller_is_gone(
    broker: FakeBroker, session: Session
) -> None:
    for _ in range(2):
        async with session.transaction() as transaction:
            await transaction.publish("a", b"1")
    transaction = session.transaction()
    await transaction.publish("a", b"2")
    before = begins_of(broker)
    await cancel_commit(broker, transaction)
    set_session, _ = await session.of_set(SetName("one"))
    while not len(set_session.reserve):
        await asyncio.sleep(0.01)
    async with session.transaction() as transaction:
        await transaction.publish("a", b"3")
    assert begins_of(broker) == before


async def cancel_commit(broker: FakeBroker, transaction: Transaction) -> None:
    """Its caller is gone before it is answered."""
    committing = asyncio.create_task(transaction.commit())
    broker.is_holding = True
    await asyncio.sleep(0.01)
    committing.cancel()
    await asyncio.wait([committing])
    assert committing.cancelled()
    await broker.commit()


def begins_of(broker: FakeBroker) -> list[c.BeginCommand]:
    return [m for m in broker.worlds["one"].executed() if isinstance(m, c.BeginCommand)]


async def test_a_caller_cancelled_in_its_commit_leaves_the_commit_and_the_session_as_they_are(
    broker: FakeBroker, session: Session
) -> None:
    transaction = session.transaction()
    await transaction.publish("a", b"1")
    await cancel_commit(broker, transaction)
    async with session.transaction() as another:
        await another.publish("a", b"2")
    assert another.state is TransactionState.COMMITTED
    executed = broker.worlds["one"].executed()
    assert [type(m).__name__ for m in executed].count("CommitCommand") == 2


async def test_a_block_that_raises_rolls_back(broker: FakeBroker, session: Session) -> None:
    transaction = session.transaction()

    async def block() -> None:
        async with transaction:
            await transaction.publish("a", b"")
            raise KeyError

    with pytest.raises(KeyError):
        await block()
    assert transaction.state is TransactionState.ROLLED_BACK
    assert isinstance(broker.worlds["one"].executed()[-1], c.RollbackCommand)


async def test_another_sets_queue_needs_a_coordinator(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "NONE_SECONDS", 0.1)
    async with await lockstep.connect(broker.address) as client, client.session() as session:
        transaction = session.transaction()
        await transaction.publish("a", b"")
        with pytest.raises(Rejected, match="needs a coordinator"):
            await transaction.publish("c", b"")
        with pytest.raises(Rejected) as raised:
            await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK


async def test_a_failover_ends_an_open_transaction(broker: FakeBroker, session: Session) -> None:
    transaction = session.transaction()
    await transaction.publish("a", b"")
    broker.worlds["one"].fail_over(keep=9)
    broker.hang_up()
    await eventually(lambda: transaction.state is TransactionState.ROLLED_BACK)
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_commit_in_doubt_is_resolved(broker: FakeBroker, session: Session, is_kept: bool) -> None:
    transaction = session.transaction()
    await transaction.publish("a", b"x")
    broker.is_holding = True
    committing = asyncio.ensure_future(transaction.commit())
    world = broker.worlds["one"]
    await eventually(lambda: isinstance(world.log[-1].command, c.CommitCommand))
    if is_kept:
        world.commit_index = len(world.log)
    world.restart()
    broker.is_holding = False
    broker.hang_up()
    if is_kept:
        await committing
        assert transaction.state is TransactionState.COMMITTED
    else:
        with pytest.raises(Rejected) as raised:
            await committing
        assert raised.value.code is ErrorCode.ROLLED_BACK
    assert transaction.was_in_doubt


async def test_a_commit_that_nobody_can_tell_of_stays_in_doubt(broker: FakeBroker, session: Session) -> None:
    transaction = session.transaction()
    await transaction.publish("a", b"x")
    broker.outcome = sm.OutcomeState.EXPIRED
    broker.is_holding = True
    committing = asyncio.ensure_future(transaction.commit())
    await eventually(lambda: isinstance(broker.worlds["one"].log[-1].command, c.CommitCommand))
    broker.worlds["one"].restart()
    broker.is_holding = False
    broker.hang_up()
    with pytest.raises(InDoubt) as raised:
        await committing
    assert raised.value.details == {"transaction_id": transaction.id}


async def test_messages_are_consumed_and_accepted_in_batches(broker: FakeBroker, session: Session) -> None:
    async with await session.consume("a", credit=8) as consumer:
        await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
        await broker.deliver("one", 1, "a", *range(1, 9))
        taken = [await anext(consumer) for _ in range(8)]
        assert [message.body for message in taken] == [b"body"] * 8
        await asyncio.gather(*(message.accept() for message in taken))
    settles = [m for m in broker.worlds["one"].executed() if isinstance(m, c.SettleCommand)]
    assert settles == [c.SettleCommand(1, "a", 1, tuple(range(1, 9)))]  # type: ignore[arg-type]
    grants = [m for m in broker.streams[0][1].requests if isinstance(m, rq.GrantCredit)]
    assert sum(grant.credit for grant in grants) == 8


@pytest.mark.parametrize("turns", range(4))
async def test_a_caller_cancelled_as_a_message_comes_has_it_or_ends(session: Session, turns: int) -> None:
    consumer = await session.consume("a", credit=8)
    waiting = asyncio.create_task(consumer.next(5))
    await asyncio.sleep(0.01)
    message = sm.DeliveredMessage(QueuePosition(1), b"", b"body", 0, 0, True)
    consumer.deliver("a", Epoch(1), (message,))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_waiting = waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() == was_waiting
    assert (consumer.take() is not None) == was_waiting
    await consumer.close()


async def test_deliveries_before_a_failover_are_void(broker: FakeBroker, session: Session) -> None:
    consumer = await session.consume("a", credit=8)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    await broker.deliver("one", 1, "a", 1, 2, 3)
    first = await anext(consumer)
    broker.worlds["one"].fail_over(keep=9)
    broker.hang_up()
    await eventually(lambda: first.is_void)
    assert consumer.take() is None
    with pytest.raises(Rejected) as raised:
        await first.accept()
    assert raised.value.code is ErrorCode.STALE_DELIVERY
    await consumer.close()


async def test_a_transaction_accepts_what_is_of_one_queue_together(
    broker: FakeBroker, session: Session
) -> None:
    of_a, of_b = await session.consume("a", credit=4), await session.consume("b", credit=4)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 3)
    await broker.deliver("one", 1, "a", 1, 2, 3)
    await broker.deliver("one", 2, "b", 4, 5)
    a, b = [await anext(of_a) for _ in range(3)], [await anext(of_b) for _ in range(2)]
    async with session.transaction() as transaction:
        await transaction.accept(*a[:2], *b, a[2])
    executed = broker.worlds["one"].executed()
    settles = [(m.queue, m.positions) for m in executed if isinstance(m, c.SettleCommand)]
    assert sorted(settles) == [("a", (1, 2, 3)), ("b", (4, 5))]
    grants = [m for m in broker.streams[0][1].requests if isinstance(m, rq.GrantCredit)]
    assert sorted((grant.consumer, grant.credit) for grant in grants) == [(1, 1), (1, 2), (2, 2)]
    await of_a.close()
    await of_b.close()


async def test_a_transaction_accepts_no_more_in_one_command_than_sets_take(
    broker: FakeBroker, session: Session
) -> None:
    count = 2 * BATCH_MESSAGES_MAX + 1
    consumer = await session.consume("a", credit=count)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    await broker.deliver("one", 1, "a", *range(1, count + 1))
    messages = [await anext(consumer) for _ in range(count)]
    async with session.transaction() as transaction:
        await transaction.accept(*messages)
    settles = [m for m in broker.worlds["one"].executed() if isinstance(m, c.SettleCommand)]
    assert [len(m.positions) for m in settles] == [BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX, 1]
    await consumer.close()


async def test_what_a_transaction_could_not_accept_is_released(broker: FakeBroker, session: Session) -> None:
    broker.refused_accepts["a"] = ErrorCode.STALE_DELIVERY
    consumer = await session.consume("a", credit=4)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    await broker.deliver("one", 1, "a", 1, 2)
    messages = [await anext(consumer) for _ in range(2)]
    transaction = session.transaction()
    await transaction.accept(*messages)
    await asyncio.sleep(0.05)
    with pytest.raises(Rejected) as refused:
        await transaction.commit()
    assert refused.value.code is ErrorCode.ROLLED_BACK
    released = [one for one in broker.worlds["one"].executed() if isinstance(one, c.SettleCommand)]
    assert [(one.positions, one.disposition) for one in released] == [((1, 2), c.Disposition.RELEASE)]
    await consumer.close()


async def test_a_message_that_is_settled_already_ends_a_transactions_accept_there(
    broker: FakeBroker, session: Session
) -> None:
    consumer = await session.consume("a", credit=4)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    await broker.deliver("one", 1, "a", 1, 2, 3)
    first, second, third = [await anext(consumer) for _ in range(3)]
    transaction = session.transaction()
    with pytest.raises(Rejected) as refused:
        await transaction.accept(first, second, first, third)
    assert refused.value.code is ErrorCode.STALE_DELIVERY
    assert refused.value.details["position"] == 1
    assert (first.is_settled, second.is_settled, third.is_settled) == (True, True, False)
    with pytest.raises(Rejected) as ended:
        await transaction.commit()
    assert ended.value.code is ErrorCode.ROLLED_BACK
    assert transaction.state is TransactionState.ROLLED_BACK
    executed = broker.worlds["one"].executed()
    assert [m.positions for m in executed if isinstance(m, c.SettleCommand)] == [(1, 2)]
    assert not [m for m in executed if isinstance(m, c.CommitCommand)]
    await consumer.close()


async def test_what_is_put_back_is_the_next_one_unless_it_is_void(
    broker: FakeBroker, session: Session
) -> None:
    async with await session.consume("a", credit=8) as consumer:
        await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1, 2)
        taken = await anext(consumer)
        consumer.put_back(taken)
        assert [(await anext(consumer)).position for _ in range(2)] == [1, 2]
        broker.worlds["one"].fail_over(keep=9)
        broker.hang_up()
        await eventually(lambda: taken.is_void)
        consumer.put_back(taken)
        assert consumer.take() is None


async def test_what_is_put_back_into_a_consumer_that_is_closed_is_released(
    broker: FakeBroker, session: Session
) -> None:
    async with await session.consume("a", credit=8) as consumer:
        await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1)
        taken = await anext(consumer)
    consumer.put_back(taken)
    await eventually(
        lambda: any(
            isinstance(one, c.SettleCommand) and one.disposition == c.Disposition.RELEASE
            for one in broker.worlds["one"].executed()
        )
    )


async def test_closing_a_consumer_releases_what_nobody_took(broker: FakeBroker, session: Session) -> None:
    consumer = await session.consume("a", credit=8)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    await broker.deliver("one", 1, "a", 1, 2, 3)
    first = await anext(consumer)
    await consumer.close()
    assert broker.worlds["one"].executed() == [
        c.SettleCommand(1, "a", 1, (2, 3), c.Disposition.RELEASE)  # type: ignore[arg-type]
    ]
    await first.accept()
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)


async def test_a_consumer_asks_for_what_its_selector_matches(broker: FakeBroker, session: Session) -> None:
    async with await session.consume("a", credit=8, selector="colour = 'red'"):
        await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    assert broker.streams[0][1].requests[1] == rq.OpenConsumer(1, "a", 8, selector="colour = 'red'")


async def test_many_queues_are_described_by_pages(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.client.session.DESCRIBE_PAGE", 2)
    broker.worlds["one"].queues = [
        QueueDescription(f"q{number}", number, True, 0, 0, 0, 0) for number in range(1, 6)
    ]
    described = await session.describe("one")
    assert [queue.name for queue in described.queues] == ["q1", "q2", "q3", "q4", "q5"]
    assert not described.next_page_token


async def test_a_queue_is_described_or_not_there(broker: FakeBroker, session: Session) -> None:
    assert (await session.describe_queue("a")).is_durable
    broker.worlds["one"].gone.add("a")
    with pytest.raises(Rejected) as raised:
        await session.describe_queue("a")
    assert raised.value.code is ErrorCode.NOT_FOUND and raised.value.details == {"queue": "a"}


async def test_a_port_hears_that_its_consumer_is_drained(broker: FakeBroker, session: Session) -> None:
    inner, _ = await session.of_target("", "a")
    port = _Port()
    consumer = inner.consume(port, "a", 8, False, is_browser=True)
    inner.drain(consumer)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) >= 2)
    requests = broker.streams[0][1].requests
    await eventually(lambda: requests[-1] == rq.DrainConsumer(consumer))
    await broker.drained("one", consumer, 8)
    await eventually(lambda: port.drains == 1)


class _Port:
    """A consumer's port that counts its drains."""

    def __init__(self) -> None:
        self.drains = 0

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None: ...
    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None: ...
    def stop(self, code: ErrorCode, message: str) -> None: ...

    def drained(self) -> None:
        self.drains += 1


async def test_an_outcome_is_asked_of_any_broker(client: Client, session: Session) -> None:
    async with session.transaction() as transaction:
        await transaction.publish("a", b"x")
    assert transaction.id is not None
    assert (await client.get_outcome(transaction.id)).state.name == "COMMITTED"
    with pytest.raises(Rejected, match="not a transaction id"):
        await client.get_outcome("nonsense")


async def test_a_fence_says_whose_sessions_ask_also_behind_their_end(
    broker: FakeBroker, client: Client
) -> None:
    """By that the set knows that the transaction is the client's; without a fence nobody has to know."""
    async with client.session() as ended, ended.transaction() as transaction:
        await transaction.publish("a", b"x")
    (first, _) = await ended.of_set(SetName("one"))
    other = client.session()
    await other.publish("a", b"x")
    (second, _) = await other.of_set(SetName("one"))
    ids = {first.core.session_id, second.core.session_id}
    del ended, first
    gc.collect()
    name = transaction.id
    assert name is not None
    await client.get_outcome(name)
    await client.get_outcome(name, fence=True)
    assert broker.shown[-2] == []
    assert set(broker.shown[-1]) == ids and len(ids) == len(broker.shown[-1]) == 2


async def test_nobody_at_the_address_is_a_clear_error() -> None:
    async with Client(["127.0.0.1:1"]) as client:
        with pytest.raises(Rejected, match=r"no broker answered at 127\.0\.0\.1:1"):
            await client.get_outcome("s/1.1", patience_seconds=0)


async def test_what_was_sent_since_is_not_overtaken_by_a_part_of_a_refused_batch(
    broker: FakeBroker, session: Session
) -> None:
    """The one before it fares as its neighbour, and hears so: it cannot come behind the one that was sent meanwhile."""
    await session.publish("a", b"0")
    broker.refusals["a"] = (ErrorCode.TOO_LARGE, 1)
    first = await session.publish_soon("a", b"1")
    refused = await session.publish_soon("a", [b"too", b"many"])
    broker.is_holding = True
    await eventually(lambda: len(broker.worlds["one"].log) == 4)
    last = await session.publish_soon("a", b"2")
    await eventually(lambda: len(broker.worlds["one"].log) == 5)
    await broker.commit()
    assert await last == 0
    for confirmation in (first, refused):
        with pytest.raises(Rejected):
            await confirmation
    assert bodies(broker.worlds["one"].executed()) == ["0", "2"]


async def test_what_fills_a_command_alone_joins_no_other(broker: FakeBroker, session: Session) -> None:
    async with session.transaction() as transaction:
        await transaction.publish("a", b"x")
        await transaction.publish("a", [b"x"] * BATCH_MESSAGES_MAX)
        await transaction.publish("a", bytes(BATCH_BYTES_MAX))
    executed = broker.worlds["one"].executed()
    sizes = [len(one.messages) for one in executed if isinstance(one, c.PublishCommand)]
    assert sizes == [1, BATCH_MESSAGES_MAX, 1]
