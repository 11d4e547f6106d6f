"""`lockstep transfer`: what a failover rolled back is done again, and what a queue refuses is not."""

import asyncio
import time
from typing import Any, Self

import pytest

from lockstep.cli.transfer import Moved, move, take, take_or_ask
from lockstep.client import ErrorCode, Message, Rejected, connect
from lockstep.core import commands as c
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import InDoubt, LockstepError
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.requests import OpenConsumer
from lockstep.core.server_messages import DeliveredMessage
from tests.unit.lockstep.cli.test_silent_sets import lockstep
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


class RefusingBroker(FakeBroker):
    """With two queues to move messages between."""

    def __init__(self) -> None:
        super().__init__("one")
        self.directory |= {"orders": "one", "full": "one"}

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    @property
    def consumers(self) -> int:
        return sum(
            isinstance(said, OpenConsumer) for _, primary, _ in self.streams for said in primary.requests
        )

    @property
    def ends(self) -> list[type[c.AnyCommand]]:
        """How transactions have ended, of those in which a message was accepted."""
        ended = (c.CommitCommand, c.RollbackCommand)
        return [type(command) for command in self.worlds["one"].executed() if isinstance(command, ended)]


@pytest.mark.parametrize(("code", "batch"), [(ErrorCode.QUEUE_FULL, 1), (ErrorCode.STORE_FULL, 2)])
async def test_a_target_that_refuses_ends_it(code: ErrorCode, batch: int) -> None:
    async with RefusingBroker() as broker:
        broker.refusals["full"] = (code, 0)
        options = ("--count", "2", "--batch", str(batch), "--json", "-b", broker.address)
        running = asyncio.ensure_future(lockstep("transfer", "orders", "full", *options))
        await eventually(lambda: broker.consumers)
        await broker.deliver("one", 1, "orders", 1)
        status, out, err = await asyncio.wait_for(running, 30)
        assert (status, out) == (1, "")
        assert err == f"lockstep: full refuses messages of orders, after 0 were moved: {code.name}\n"
        assert broker.ends == [c.RollbackCommand], "the message is in its source again"


async def test_the_queue_that_refuses_is_named_among_several() -> None:
    async with RefusingBroker() as broker, await connect(broker.address) as client:
        broker.refusals["full"] = (ErrorCode.QUEUE_FULL, 0)
        async with client.session() as session, await session.consume("orders") as consumer:
            await eventually(lambda: broker.consumers)
            await broker.deliver("one", 1, "orders", 1)
            taken = await take(consumer, 1, 30.0)
            moved = Moved(messages=7)
            with pytest.raises(Rejected, match=r"^full refuses messages of orders, after 7 were moved"):
                await move(session, taken, ["orders", "full"], moved)
            assert (moved.rolled_back, moved.under_way) == (0, set())


async def test_what_a_failover_rolls_back_is_to_be_done_again() -> None:
    async with (
        RefusingBroker() as broker,
        await connect(broker.address) as client,
        client.session() as session,
        await session.consume("orders") as consumer,
    ):
        await eventually(lambda: broker.consumers)
        await broker.deliver("one", 1, "orders", 1)
        taken = await take(consumer, 1, 30.0)
        broker.worlds["one"].fail_over(0)
        broker.hang_up()
        moved = Moved()
        assert await move(session, taken, ["full"], moved) is None
        assert (moved.rolled_back, moved.committed) == (1, 0)
        await eventually(lambda: broker.consumers)
        await broker.deliver("one", 1, "orders", 1)
        assert await move(session, await take(consumer, 1, 30.0), ["full"], moved) is not None
        assert (moved.rolled_back, moved.committed, moved.messages) == (1, 1, 1)


class RolledBack:
    """A session whose transactions are rolled back for one reason."""

    was_in_doubt = False

    def __init__(self, cause: LockstepError | None) -> None:
        self._cause = cause

    def transaction(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        raise Rejected(ErrorCode.ROLLED_BACK, "it was rolled back") from self._cause

    async def accept(self, *messages: object) -> None:
        pass

    async def publish(self, _target: str, _messages: object) -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()


class FromOrders:
    queue, properties, body, is_durable, ttl_ms = "orders", b"", b"", True, 0


class Recorded(RolledBack):
    """A session whose transactions commit."""

    id = "1"

    def __init__(self) -> None:
        super().__init__(None)
        self.published: list[OutgoingMessage] = []

    async def __aexit__(self, *_: object) -> None:
        pass

    async def publish(self, _target: str, messages: Any) -> asyncio.Future[int]:
        self.published += messages
        return asyncio.get_running_loop().create_future()


async def test_messages_keep_what_is_left_of_their_time_to_live() -> None:
    now_ms = time.time_ns() // 1_000_000
    contents = [
        DeliveredMessage(QueuePosition(1), b"", b"body", 0, expires_ms, True)
        for expires_ms in (now_ms + 60_000, now_ms - 60_000, 0)
    ]
    session: Any = Recorded()
    consumer: Any = None
    assert await move(session, [Message(consumer, Epoch(1), one, 0) for one in contents], ["full"], Moved())
    left, over, none = (message.ttl_ms for message in session.published)
    assert 10_000 < left <= 60_000
    assert (over, none) == (1, 0)


async def moved_by(session: Any) -> str | None:
    taken: Any = [FromOrders()]
    return await move(session, taken, ["full"], Moved())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ROLLED_BACK,
        ErrorCode.STALE_DELIVERY,
        ErrorCode.UNAVAILABLE,
        ErrorCode.UNKNOWN_SESSION,
        ErrorCode.UNKNOWN_TRANSACTION,
    ],
)
async def test_what_the_loss_of_a_primary_brings_is_to_be_done_again(code: ErrorCode) -> None:
    for cause in (Rejected(code, "its primary was lost"), InDoubt(code, "nobody could tell"), None):
        assert await moved_by(RolledBack(cause)) is None


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_FOUND, ErrorCode.TOO_LARGE, ErrorCode.LOCKED, ErrorCode.UNAUTHORIZED]
)
async def test_no_other_refusal_is(code: ErrorCode) -> None:
    with pytest.raises(Rejected, match=r"^orders refuses .*: it is so$") as raised:
        await moved_by(RolledBack(Rejected(code, "it is so")))
    assert raised.value.code is code


class Leaderless:
    """A queue whose set has no primary for a while: nothing comes of it until somebody has waited for one."""

    queue = "orders"

    def __init__(self, length: int, held_by_others: bool = False) -> None:
        self.length = length
        self.quiet_times = 0
        self._has_primary = False
        self._held_by_others = held_by_others

    async def next(self, _seconds: float) -> object | None:
        if self._has_primary and not self._held_by_others:
            return FromOrders()
        self.quiet_times += 1
        return None

    def take(self) -> None:
        return None

    async def describe_queue(self, _name: str) -> Self:
        self._has_primary = True
        return self


@pytest.mark.parametrize(
    ("queue", "taken", "left", "quiet_times"),
    [
        (Leaderless(3), 1, 0, 1),
        (Leaderless(0), 0, 0, 1),
        (Leaderless(3, held_by_others=True), 0, 3, 2),
    ],
)
async def test_a_queue_is_done_with_when_its_primary_says_so(
    queue: Any, taken: int, left: int, quiet_times: int
) -> None:
    found, stay = await take_or_ask(queue, queue, 100)
    assert (len(found), stay, queue.quiet_times) == (taken, left, quiet_times)
