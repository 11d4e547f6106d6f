"""Sessions that end, or that nobody holds any more; and names that sets do not know any more."""

import asyncio
import gc

import pytest

import lockstep
from lockstep.client import Client, Rejected, Session, directory
from lockstep.client import session as sessions
from lockstep.client import session_events as e
from lockstep.client.directory import Place
from lockstep.client.set_session import SetSession
from lockstep.core import commands as c
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition, SetName
from lockstep.core.server_messages import DeliveredMessage
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.fake_primary import FakePrimary
from tests.unit.lockstep.client.session_bench import bodies


async def test_a_session_that_nobody_holds_ends_with_its_client(broker: FakeBroker) -> None:
    client = await lockstep.connect(broker.address)
    await client.session().publish("a", b"x")
    gc.collect()
    await client.close()
    assert broker.worlds["one"].ended


async def test_a_consumer_of_a_session_that_nobody_holds_ends_with_its_client(broker: FakeBroker) -> None:
    client = await lockstep.connect(broker.address)
    consumer = await client.session().consume("a", credit=4)
    gc.collect()
    await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
    await client.close()
    assert broker.worlds["one"].ended
    with pytest.raises(Rejected):
        await anext(consumer)


async def test_what_waits_for_room_ends_with_its_session(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = client.session()
    await session.publish("a", b"x")
    port, _ = next(iter(session._sets.values()))
    monkeypatch.setattr(port, "BACKLOG_BYTES_MAX", -1)
    waiting = asyncio.ensure_future(session.publish("a", b"y"))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await session.close()
    async with asyncio.timeout(3):
        with pytest.raises(Rejected):
            await waiting


async def test_what_gathers_as_its_session_is_given_up_is_answered(
    broker: FakeBroker, session: Session
) -> None:
    await session.publish("a", b"x")
    port, batches = next(iter(session._sets.values()))
    await broker.__aexit__()
    await eventually(lambda: not port.is_attached)
    settled = batches.settle("a", Epoch(1), [QueuePosition(1)], Disposition.ACCEPT, None)
    assert not settled.done()
    await port.close(0.0)
    assert isinstance(settled.exception() if settled.done() else None, Rejected)


class Leaving:
    """A consumer that stops itself, and another one, when it hears of the end, as links of proxies do."""

    def __init__(self, session: SetSession) -> None:
        self.told = 0
        self.number = session.consume(self, "a", 0, is_exclusive=False)
        self.other: Leaving = self
        self._session = session

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None: ...

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None: ...

    def drained(self) -> None: ...

    def stop(self, code: ErrorCode, message: str) -> None:
        self.told += 1
        for each in self, self.other:
            self._session.stop_consuming(each.number)


async def test_all_consumers_hear_of_the_end_though_they_stop_when_they_do(client: Client) -> None:
    async with client.session() as session:
        opened, _ = await session.of_target("", "a")
        ports = [Leaving(opened) for _ in range(4)]
        ports[0].other = ports[1]
        opened._perform_all([e.Closed(ErrorCode.NONE, "")])
        assert [port.told for port in ports] == [1, 0, 1, 1]
        async with asyncio.timeout(3):
            await opened._closed


async def test_who_hears_of_void_deliveries_may_raise(
    broker: FakeBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def voided(*_: object) -> None:
        raise KeyError("mine")

    session = client.session(voided=voided)
    consumer = await session.consume("a", credit=4)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[-1][1].requests) == 2)
    await broker.deliver("one", 1, "a", 1)
    await anext(consumer)
    await consumer.close()
    broker.is_holding = True
    under_way = await session.publish_soon("a", b"x")
    await eventually(lambda: len(broker.worlds["one"].log) == 3)
    broker.worlds["one"].fail_over(1)
    broker.is_holding = False
    broker.hang_up()
    async with asyncio.timeout(10):
        await under_way
    assert "KeyError: 'mine'" in caplog.text
    await session.close()


async def test_who_publishes_faster_than_can_be_said_waits(session: Session) -> None:
    await session.publish("a", b"x")
    port, batches = next(iter(session._sets.values()))
    body, most = bytes(1 << 16), 0
    for _ in range(2 * port.BACKLOG_BYTES_MAX // len(body)):
        await session.publish_soon("a", body)
        most = max(most, sum(batch.size for batch in batches._batches))
    assert most <= port.BACKLOG_BYTES_MAX + len(body)


@pytest.mark.parametrize("way", ["publish", "transaction"])
async def test_a_queue_that_its_set_does_not_know_is_looked_for_again(
    broker: FakeBroker, session: Session, way: str
) -> None:
    await session.publish("a", b"1")
    broker.refusals["a"] = (ErrorCode.NOT_FOUND, 0)
    broker.directory["a"] = "two"
    if way == "publish":
        with pytest.raises(Rejected):
            await session.publish("a", b"2")
    else:
        with pytest.raises(Rejected):
            async with session.transaction() as transaction:
                await transaction.publish("a", b"2")
    broker.refusals.clear()
    await session.publish("a", b"3")
    assert bodies(broker.worlds["two"].executed()) == ["3"]


async def test_a_queue_that_another_set_has_by_now_is_declared_there(
    broker: FakeBroker, session: Session
) -> None:
    await session.declare_queue("a")
    broker.directory["a"] = "two"
    await session.declare_queue("a")
    await session.publish("a", b"x")
    assert bodies(broker.worlds["two"].executed()) == ["x"]


@pytest.mark.parametrize("moved", [("exchange",), ("a",), ("exchange", "a")])
async def test_what_has_moved_to_another_set_is_bound_where_it_is(
    broker: FakeBroker, session: Session, moved: tuple[str, ...]
) -> None:
    broker.directory |= {"exchange": "one", "c": "two"}
    await session.bind("exchange", "a")
    broker.directory |= dict.fromkeys(moved, "two")
    if len(moved) == 1:
        with pytest.raises(Rejected) as refused:
            await session.bind("exchange", "a")
        assert refused.value.code is ErrorCode.OTHER_SET
        broker.directory |= {"exchange": "two", "a": "two"}
    await session.bind("exchange", "a")
    await session.unbind("exchange", "c")
    bound = [one for one in broker.worlds["two"].executed() if isinstance(one, c.BindCommand)]
    assert [(one.exchange, one.queue) for one in bound] == [("exchange", "a"), ("exchange", "c")]


async def test_a_queue_that_exists_with_other_options_is_asked_for_once_more_only(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.publish("a", b"x")

    def refuse(primary: FakePrimary, message: object) -> None:
        if isinstance(message, c.DeclareQueueCommand):
            primary.world.log[-1].code = ErrorCode.ALREADY_EXISTS

    monkeypatch.setattr(broker, "_refuse", refuse)
    with pytest.raises(Rejected) as refused:
        await session.declare_queue("a")
    assert refused.value.code is ErrorCode.ALREADY_EXISTS
    assert isinstance(broker.worlds["one"].log[-2].command, c.PublishCommand)


async def test_the_only_set_is_not_remembered(broker: FakeBroker, session: Session) -> None:
    broker.only_set = "one"
    await session.declare_queue("first")
    broker.only_set = ""
    with pytest.raises(Rejected, match="there are 2 resource sets"):
        await session.declare_queue("second")


async def test_who_asks_where_a_queue_is_goes_on_behind_those_who_asked_before(client: Client) -> None:
    known = client._directory
    gone_on: list[int] = []
    asking: list[asyncio.Future[None]] = []

    async def ask(number: int) -> None:
        if known.known_target("", "a") is None:
            await known.locate_target("", "a")
        gone_on.append(number)

    while len(gone_on) < 3:
        asking.append(asyncio.ensure_future(ask(len(asking))))
        await asyncio.sleep(0)
        if len(asking) == 3:
            asking[1].cancel()
    await asyncio.wait(asking)
    assert gone_on == [number for number in range(len(asking)) if number != 1]
    assert known.known_target("", "a") is not None


async def test_who_gives_up_as_the_answer_comes_leaves_it_to_the_next(client: Client) -> None:
    known = client._directory
    asking = asyncio.ensure_future(known.locate_target("", "a"))
    await asyncio.sleep(0)
    (question,) = known._asking.values()
    while not question.answer.done():
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert (await known.locate_target("", "a")).set_name == "one"
    assert known.known_target("", "a") is not None


async def test_a_session_finds_a_set_that_other_brokers_have_by_now(
    broker: FakeBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOOK_AGAIN_SECONDS", 0.01)
    client._directory.remember(
        directory.Kind.KIND_QUEUE, "a", Place(SetName("one"), Epoch(1), ("127.0.0.1:1",))
    )
    async with client.session() as session:
        await session.publish("a", b"x")
    monkeypatch.setattr(sessions, "LOOK_AGAIN_SECONDS", 1_000_000)
    async with client.session() as session:
        await session.publish("a", b"y")
    assert bodies(broker.worlds["one"].executed()) == ["x", "y"]


async def test_names_are_not_remembered_without_end(
    broker: FakeBroker, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "NAMES_MAX", 10)
    for number in range(30):
        broker.directory[f"reply-{number}"] = "one"
        await session.publish(f"reply-{number}", b"x")
    assert len(session._directory._names) == 10


async def test_a_client_that_is_closed_opens_nothing(broker: FakeBroker) -> None:
    client = await lockstep.connect(broker.address)
    await client.close()
    with pytest.raises(Rejected, match="the client is closed") as raised:
        client.session()
    assert raised.value.code is ErrorCode.ILLEGAL_STATE
    for transaction_id in ("one/5.1", "0" * 32):
        with pytest.raises(Rejected, match="the client is closed"):
            await client.get_outcome(transaction_id)
