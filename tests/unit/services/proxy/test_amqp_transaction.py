"""One transaction of a client: what it hands on when, and what becomes of it when its time is over."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from typing import cast

import pytest

from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.session import Session
from lockstep.client.set_session import SetSession
from lockstep.client.transaction_state import TransactionState
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, QueuePosition
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.amqp_transaction import Work as AnyWork
from services.proxy.amqp_transactions import AmqpTransactions
from services.proxy.nodes import Target
from services.proxy.settings import ProxyLimits

MESSAGES = (OutgoingMessage(b"", b"x"),)
TARGET = Target("", "q", cast(SetSession, None), cast(CommandBatches, None))
PLACE = cast(tuple[SetSession, CommandBatches], (None, None))


class RecordedWork:
    """Hears what it is told, and confirms it at once."""

    def __init__(self) -> None:
        self.state = TransactionState.OPEN
        self.heard: list[str] = []

    async def publish(
        self, routing_key: str, messages: Sequence[OutgoingMessage], *, exchange: str = ""
    ) -> Confirmation:
        return self._hear("publish")

    async def accept_deliveries(self, *_: object) -> Confirmation:
        return self._hear("accept")

    async def commit(self) -> None:
        self._hear("commit")
        self.state = TransactionState.COMMITTED

    async def rollback(self) -> None:
        self._hear("rollback")
        self.state = TransactionState.ROLLED_BACK

    def _hear(self, what: str) -> Confirmation:
        self.heard.append(what)
        confirmation: Confirmation = asyncio.get_running_loop().create_future()
        confirmation.set_result(1)
        return confirmation


def begun(timeout_seconds: float = 0) -> tuple[RecordedWork, AmqpTransaction, list[BaseException | None]]:
    """With the work behind it, and what becomes of its operations."""
    work = RecordedWork()
    return work, AmqpTransaction(b"name", cast(AnyWork, work), timeout_seconds), []


@pytest.fixture
async def unraised() -> AsyncIterator[list[BaseException]]:
    """What tasks that nobody waits for raised: a process halts by assertions among it."""
    raised: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    yield raised
    gc.collect()
    assert all(isinstance(error, AssertionError) for error in raised)


async def test_a_commit_is_handed_on_with_what_came_right_before_it() -> None:
    work, transaction, done = begun()
    transaction.accept(PLACE, "q", Epoch(1), (QueuePosition(1),), lambda: None, done.append)
    transaction.publish(TARGET, MESSAGES, done.append)
    committing = asyncio.ensure_future(transaction.commit())
    asyncio.get_running_loop().call_soon(work.heard.append, "a write of the session")
    await committing
    assert work.heard == ["accept", "publish", "commit", "a write of the session"]
    await asyncio.sleep(0)
    assert done == [None, None]


async def test_an_accept_that_is_void_when_its_turn_comes_is_not_asked_for_and_fails_the_commit() -> None:
    work, transaction, done = begun()
    posted, voided = asyncio.Event(), False

    def check() -> None:
        if voided:
            raise Rejected(ErrorCode.STALE_DELIVERY, "void")

    transaction.wait_for(posted)
    transaction.accept(PLACE, "q", Epoch(1), (QueuePosition(1),), check, done.append)
    await asyncio.sleep(0)
    voided = True
    posted.set()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert work.heard == ["rollback"]
    assert [cast(Rejected, error).code for error in done] == [ErrorCode.STALE_DELIVERY]


async def test_an_accept_is_checked_again_when_its_transaction_has_begun_in_its_set() -> None:
    """A coordinator was asked meanwhile, and the session that held the delivery is lost."""
    checks: list[str] = []
    begins = asyncio.Event()

    class Work(RecordedWork):
        async def accept_deliveries(self, *given: object) -> Confirmation:
            await begins.wait()
            checks.append("has begun")
            cast(Callable[[], None], given[-1])()
            return self._hear("accept")

    def check() -> None:
        checks.append("checked")
        if "has begun" in checks:
            raise Rejected(ErrorCode.STALE_DELIVERY, "void")

    work = Work()
    transaction = AmqpTransaction(b"name", cast(AnyWork, work), 0)
    done: list[BaseException | None] = []
    transaction.accept(PLACE, "q", Epoch(1), (QueuePosition(1),), check, done.append)
    await asyncio.sleep(0)
    assert checks == ["checked"]
    begins.set()
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert work.heard == ["rollback"]
    assert [cast(Rejected, error).code for error in done] == [ErrorCode.STALE_DELIVERY]


ERRORS = [ValueError("an error of ours"), AssertionError("a bug"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS, ids=["error", "assertion", "cancelled"])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_waited_for", [True, False], ids=["raised before the end", "while it is ended"])
async def test_a_step_that_raises_takes_no_other_along_and_fails_the_commit(
    error: BaseException, is_commit: bool, is_waited_for: bool, unraised: list[BaseException]
) -> None:
    class Work(RecordedWork):
        async def publish(self, routing_key: str, *_: object, exchange: str = "") -> Confirmation:
            await asyncio.sleep(0)
            if routing_key == "bad":
                raise error
            return self._hear(routing_key)

    work = Work()
    transaction, done = AmqpTransaction(b"name", cast(AnyWork, work), 0), list[object]()
    ends: list[bool] = []
    transaction.at_end(ends.append)
    for key in ("good", "bad", "last"):
        transaction.publish(Target("", key, *PLACE), MESSAGES, done.append)
    for _ in range(10 if is_waited_for else 0):
        await asyncio.sleep(0)
    if is_commit:
        with pytest.raises(Rejected) as raised:
            await transaction.commit()
        assert raised.value.code is ErrorCode.ROLLED_BACK
    else:
        await transaction.rollback()
    await asyncio.sleep(0)
    assert work.heard == ["good", "last", "rollback"]
    assert [type(heard) for heard in done] == [type(None), Rejected, type(None)]
    assert ends == [False]


async def test_an_end_that_cannot_be_told_to_one_is_told_to_the_others() -> None:
    work, transaction, _ = begun()
    ends: list[bool] = []

    def fail(_: bool) -> None:
        raise ValueError("an error of ours")

    transaction.at_end(fail)
    transaction.at_end(ends.append)
    await transaction.commit()
    assert work.heard == ["commit"] and ends == [True]


async def test_what_is_not_discharged_in_time_is_rolled_back_and_can_do_nothing_more() -> None:
    work, transaction, done = begun(0.01)
    ends: list[bool] = []
    transaction.at_end(ends.append)
    transaction.publish(TARGET, MESSAGES, done.append)
    while "rollback" not in work.heard:
        await asyncio.sleep(0.005)
    assert transaction.is_late
    transaction.publish(TARGET, MESSAGES, done.append)
    transaction.accept(PLACE, "q", Epoch(1), (QueuePosition(1),), lambda: None, done.append)
    with pytest.raises(Rejected) as raised:
        await transaction.commit()
    assert raised.value.code is ErrorCode.ROLLED_BACK
    assert work.heard == ["publish", "rollback"]
    assert done[0] is None
    assert [cast(Rejected, error).code for error in done[1:]] == [ErrorCode.ROLLED_BACK] * 2
    assert ends == [False]


async def test_the_time_of_a_transaction_that_is_being_ended_does_not_run() -> None:
    for end in ("commit", "rollback"):
        work, transaction, _ = begun(0.01)
        await getattr(transaction, end)()
        await asyncio.sleep(0.02)
        assert work.heard == [end]
        assert not transaction.is_late


class AskedSession:
    """Hears for how long its transactions may be over several sets."""

    def __init__(self) -> None:
        self.asked_ms: list[int] = []

    def transaction(self, *, wide_timeout_ms: int) -> RecordedWork:
        self.asked_ms.append(wide_timeout_ms)
        return RecordedWork()


@pytest.mark.parametrize(("seconds", "wide_ms"), [(300, 300_000), (7_200, 600_000), (0, 600_000)])
async def test_over_several_sets_a_transaction_has_its_time_as_far_as_coordinators_allow(
    seconds: float, wide_ms: int
) -> None:
    session = AskedSession()
    transaction = AmqpTransactions(cast(Session, session), ProxyLimits(transaction_seconds=seconds)).declare(
        None
    )
    assert session.asked_ms == [wide_ms]
    await transaction.rollback()
