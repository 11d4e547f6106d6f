"""Transactions whose caller is cancelled, whose begin or operations are refused, and messages that are not theirs."""

import asyncio
import contextlib

import pytest

from lockstep.client import Client, Rejected, Session, TransactionState
from lockstep.client.distributed_transaction import DistributedTransaction
from lockstep.client.session_events import Done
from lockstep.client.transaction import Transaction
from lockstep.core import commands as c
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import SetName, TransactionKey
from lockstep.core.xid import Xid
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


async def test_a_message_of_another_session_is_not_accepted_and_nothing_commits_without_it(
    broker: FakeBroker, client: Client
) -> None:
    async with client.session() as consuming, client.session() as producing:
        consumer = await consuming.consume("a", credit=4)
        await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1)
        message = await anext(consumer)
        transaction = producing.transaction()
        await transaction.publish("b", b"result")
        with pytest.raises(Rejected) as raised:
            await transaction.accept(message)
        assert raised.value.code is ErrorCode.ILLEGAL_STATE
        with pytest.raises(Rejected) as raised:
            await transaction.commit()
        assert raised.value.code is ErrorCode.ROLLED_BACK
        manager = await producing.resource_manager("one")
        await manager.select()
        branch = await manager.start(Xid(1, b"g", b"b"))
        with pytest.raises(Rejected):
            branch.accept(message)
        kinds = [type(one) for one in broker.worlds["one"].executed()]
        assert c.CommitCommand not in kinds and c.SettleCommand not in kinds
        await message.accept()


async def test_a_transaction_that_could_not_begin_is_rolled_back_in_peace(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.publish("a", b"x")
    port, _ = next(iter(session._sets.values()))
    submit = port.submit

    def refuse_begins(command: c.AnyCommand) -> "asyncio.Future[Done]":
        if not isinstance(command, c.BeginCommand):
            return submit(command)
        refused: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        refused.set_exception(Rejected(ErrorCode.UNAVAILABLE, "too many"))
        return refused

    monkeypatch.setattr(port, "submit", refuse_begins)
    transaction = session.transaction()

    async def work() -> None:
        async with transaction:
            with contextlib.suppress(Rejected):
                await transaction.publish("a", b"x")
            raise KeyError("of the block")

    with pytest.raises(KeyError):
        await work()
    assert transaction.state is TransactionState.ROLLED_BACK


async def test_who_rolls_back_after_a_refusal_leaves_the_block_in_peace(
    broker: FakeBroker, session: Session
) -> None:
    broker.refusals["a"] = (ErrorCode.QUEUE_FULL, 0)
    async with session.transaction() as transaction:
        with pytest.raises(Rejected):
            await (await transaction.publish("a", b"x"))
        await transaction.rollback()
    assert transaction.state is TransactionState.ROLLED_BACK


async def test_who_is_cancelled_twice_leaves_no_transaction_open(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.publish("a", b"x")
    port, _ = next(iter(session._sets.values()))
    submit, answered = port.submit, asyncio.Event()

    def submit_later(command: c.AnyCommand) -> "asyncio.Future[Done]":
        async def later() -> Done:
            await answered.wait()
            return await submit(command)

        return asyncio.ensure_future(later()) if isinstance(command, c.BeginCommand) else submit(command)

    monkeypatch.setattr(port, "submit", submit_later)

    async def work() -> None:
        async with session.transaction() as transaction:
            await transaction.publish("a", b"y")

    working = asyncio.ensure_future(work())
    for _ in range(2):
        await asyncio.sleep(0.01)
        working.cancel()
    await asyncio.sleep(0.01)
    answered.set()
    await asyncio.wait([working])
    await eventually(lambda: isinstance(broker.worlds["one"].executed()[-1], c.RollbackCommand))


async def test_what_could_not_be_accepted_goes_back_though_nobody_waits_for_the_commit(
    broker: FakeBroker, session: Session
) -> None:
    broker.refused_accepts["a"] = ErrorCode.ROLLBACK_ONLY
    async with await session.consume("a", credit=4) as consumer:
        await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
        await broker.deliver("one", 1, "a", 1)
        transaction = session.transaction()
        await transaction.accept(await anext(consumer))
        broker.is_holding = True
        committing = asyncio.ensure_future(transaction.commit())
        await eventually(lambda: isinstance(broker.worlds["one"].log[-1].command, c.CommitCommand))
        committing.cancel()
        await asyncio.sleep(0.01)
        await broker.commit()
        await eventually(
            lambda: any(
                isinstance(one, c.SettleCommand) and one.disposition == c.Disposition.RELEASE
                for one in broker.worlds["one"].executed()
            )
        )


@pytest.mark.parametrize("is_widening", [False, True])
async def test_who_is_cancelled_before_his_commit_is_sent_leaves_no_transaction_open(
    broker: FakeBroker, session: Session, is_widening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()
    begin = Transaction._send_begin

    async def begin_late(transaction: Transaction) -> TransactionKey:
        await answered.wait()
        return await begin(transaction)

    async def widen_late(*_: object) -> DistributedTransaction:
        await answered.wait()
        raise Rejected(ErrorCode.UNAVAILABLE, "there is no coordinator")

    transaction = session.transaction()
    if is_widening:
        monkeypatch.setattr(Transaction, "_send_widen", widen_late)
        await transaction.publish("a", b"x")
    else:
        monkeypatch.setattr(Transaction, "_send_begin", begin_late)
    publishing = asyncio.ensure_future(transaction.publish("c" if is_widening else "a", b"y"))
    await eventually(lambda: transaction._widening if is_widening else transaction._beginning)
    publishing.cancel()
    committing = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.sleep(0)
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert transaction.state is TransactionState.ROLLED_BACK
    assert isinstance(broker.worlds["one"].executed()[-1], c.RollbackCommand)


@pytest.mark.parametrize("is_widening", [False, True])
@pytest.mark.usefixtures("coordinator")
async def test_work_that_waits_while_its_transaction_is_rolled_back_is_refused(
    broker: FakeBroker, session: Session, is_widening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it begins, or becomes a distributed one."""
    answered = asyncio.Event()
    begin, widen = Transaction._send_begin, Transaction._send_widen

    async def begin_late(transaction: Transaction) -> TransactionKey:
        await answered.wait()
        return await begin(transaction)

    async def widen_late(
        transaction: Transaction, key: TransactionKey, second: SetName
    ) -> DistributedTransaction:
        await answered.wait()
        return await widen(transaction, key, second)

    transaction = session.transaction()
    if is_widening:
        await transaction.publish("a", b"x")
        monkeypatch.setattr(Transaction, "_send_widen", widen_late)
    else:
        monkeypatch.setattr(Transaction, "_send_begin", begin_late)
    late = asyncio.ensure_future(transaction.publish("c" if is_widening else "a", b"y"))
    await eventually(lambda: transaction._widening if is_widening else transaction._beginning)
    ending = asyncio.ensure_future(transaction.rollback())
    await asyncio.sleep(0)
    answered.set()
    with pytest.raises(Rejected) as raised:
        await late
    assert raised.value.code is ErrorCode.TRANSACTION_FINISHED
    await ending
    published = [
        name
        for name in ("one", "two")
        for command in broker.worlds[name].executed()
        if isinstance(command, c.PublishCommand)
    ]
    assert published == ["one"] * is_widening
