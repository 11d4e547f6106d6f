"""What one caller says first comes first, also where the one is a numbered command and the other is not (a close, a drain, a
question): each may depend on what was said before it."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.client import Client, Session
from lockstep.client import session_events as e
from lockstep.client.command_batches import CommandBatches, Confirmation
from lockstep.client.consumer import Consumer, Message
from lockstep.client.questions import QUESTIONS_SAID_MAX
from lockstep.client.session_settings import SessionSettings
from lockstep.client.set_session import SetSession
from lockstep.core import commands as c
from lockstep.core import requests as rq
from lockstep.core import server_messages as sm
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, LogIndex, QueuePosition
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually
from tests.unit.lockstep.client.session_bench import Bench, publish

FEW = SessionSettings(send_commands_max=2)
"""Commands in one write."""


def said(bench: Bench) -> list[str]:
    """Behind the attachment, in order: the body of a publish, the type of everything else."""
    return [
        message.messages[0].body.decode() if isinstance(message, c.PublishCommand) else type(message).__name__
        for message in bench.sent
        if not isinstance(message, rq.AttachSession | rq.OpenConsumer)
    ]


def consuming(settings: SessionSettings | None = None) -> Bench:
    """A write is under way."""
    bench = Bench(settings=settings).start()
    bench.feed(e.StartConsuming(1, "q", 10))
    return bench


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (e.StopConsuming(1), "CloseConsumer"),
        (e.Drain(1), "DrainConsumer"),
        (e.Ask("asked", rq.Browse(0, "q", QueuePosition(0), 10)), "Browse"),
    ],
)
def test_a_request_comes_behind_what_was_submitted_before_it_and_before_what_was_submitted_since(
    request_: e.Input, name: str
) -> None:
    bench = consuming(FEW)
    for text in "abc":
        bench.submit(text, publish(text))
    bench.feed(request_)
    bench.submit("d", publish("d"))
    bench.exchange()
    assert said(bench) == ["a", "b", "c", name, "d"]


def test_requests_keep_their_order_whatever_they_wait_for() -> None:
    bench = consuming(FEW)
    for text in "abc":
        bench.submit(text, publish(text))
    bench.feed(e.StopConsuming(1))
    bench.feed(e.StartConsuming(2, "q", 1, is_exclusive=True))
    bench.core.grant(2, 5)
    bench.exchange()
    (_, again) = [place for place, one in enumerate(bench.sent) if isinstance(one, rq.OpenConsumer)]
    assert [type(message) for message in bench.sent[again - 1 : again + 2]] == [
        rq.CloseConsumer,
        rq.OpenConsumer,
        rq.GrantCredit,
    ]


def test_a_heartbeat_waits_for_no_command() -> None:
    bench = consuming(SessionSettings(push_back_ms=600, push_back_max_ms=600))
    bench.exchange()
    assert bench.primary is not None
    bench.primary.pushes_back = True
    bench.submit("a", publish("a"))
    bench.exchange()
    bench.primary.pushes_back = False
    bench.feed(e.StopConsuming(1))
    bench.sent.clear()
    for _ in range(8):
        bench.wait(100)
        bench.exchange()
    beats = said(bench).index("a")
    assert said(bench)[:beats] == ["Heartbeat"] * beats and beats > 0
    assert said(bench)[beats + 1] == "CloseConsumer"
    assert bench.outcomes("a") == [e.CommandDone("a", 0)]


def test_a_drain_comes_behind_what_was_given_back_on_a_new_stream_too() -> None:
    bench = consuming()
    bench.exchange()
    assert bench.primary is not None
    bench.say(bench.primary.deliver(1, "q", 7))
    given_back = c.SettleCommand(0, "q", bench.core.epoch, (QueuePosition(7),), c.Disposition.RELEASE)
    bench.submit("back", given_back)
    bench.feed(e.Drain(1))
    bench.lose()
    bench.sent.clear()
    bench.exchange()
    assert said(bench) == ["SettleCommand", "DrainConsumer"]


def waiting_to_ask(*tickets: str) -> Bench:
    """Questions behind a command that was pushed back."""
    bench = consuming(SessionSettings(push_back_ms=600, push_back_max_ms=600))
    bench.exchange()
    assert bench.primary is not None
    bench.primary.pushes_back = True
    bench.submit("a", publish("a"))
    bench.exchange()
    bench.primary.pushes_back = False
    for ticket in tickets:
        bench.feed(e.Ask(ticket, rq.Browse(0, ticket, QueuePosition(0), 10)))
    bench.sent.clear()
    return bench


def asked_at_last(bench: Bench) -> list[str]:
    """The queues of all questions that are said once the command is done."""
    for _ in range(8):
        bench.wait(100)
        bench.exchange()
    assert bench.outcomes("a") == [e.CommandDone("a", 0)]
    return [message.queue for message in bench.sent if isinstance(message, rq.Browse)]


def test_a_question_that_was_given_up_while_it_waited_is_not_said() -> None:
    """It may be more than a question: a fence ends what is undecided."""
    bench = waiting_to_ask("first", "second")
    bench.core.give_up("first")
    assert asked_at_last(bench) == ["second"]


def test_it_makes_room_for_those_that_waited_behind_it() -> None:
    tickets = [str(number) for number in range(QUESTIONS_SAID_MAX + 3)]
    bench = waiting_to_ask(*tickets)
    for ticket in tickets[:QUESTIONS_SAID_MAX]:
        bench.core.give_up(ticket)
    assert asked_at_last(bench) == tickets[QUESTIONS_SAID_MAX:]


def test_what_waits_to_be_said_is_of_its_stream() -> None:
    bench = consuming(FEW)
    for text in "abc":
        bench.submit(text, publish(text))
    bench.feed(e.StopConsuming(1))
    bench.feed(e.Ask("asked", rq.Browse(0, "q", QueuePosition(0), 10)))
    bench.lose()
    bench.sent.clear()
    bench.exchange()
    assert said(bench) == ["a", "b", "c", "Browse"]


# --- the client library on a broker that writes down what it hears --------------------------------------------------------


async def heard(broker: FakeBroker, kind: type[rq.ClientMessage], count: int = 1) -> list[rq.ClientMessage]:
    """All that came on the last stream but heartbeats, when so many of a kind have come."""
    async with asyncio.timeout(5):
        while True:
            told = [one for _, primary, _ in broker.streams[-1:] for one in primary.heard]
            told = [one for one in told if not isinstance(one, rq.Heartbeat)]
            if sum(isinstance(one, kind) for one in told) == count:
                return told
            await asyncio.sleep(0.005)


async def in_hand(broker: FakeBroker, session: Session, count: int) -> tuple[Consumer, list[Message]]:
    """A consumer of queue a, and messages that it has been given."""
    consumer = await session.consume("a", credit=10)
    await heard(broker, rq.OpenConsumer)
    await broker.deliver("one", 1, "a", *range(1, count + 1))
    return consumer, [await anext(consumer) for _ in range(count)]


SETTLES: list[Callable[[Message], object]] = [Message.accept, Message.release, Message.fail, Message.reject]


@pytest.mark.parametrize("settle", SETTLES)
async def test_what_is_settled_and_then_left_is_settled_first(
    broker: FakeBroker, session: Session, settle: Callable[[Message], object]
) -> None:
    consumer, (message,) = await in_hand(broker, session, 1)
    settle(message)
    await consumer.close()
    told = await heard(broker, rq.CloseConsumer)
    assert [type(one) for one in told[-2:]] == [c.SettleCommand, rq.CloseConsumer]


async def test_a_queue_is_described_behind_what_was_published_before(
    broker: FakeBroker, session: Session
) -> None:
    await in_hand(broker, session, 1)
    await session.publish_soon("a", b"body")
    await session.describe_queue("a")
    told = await heard(broker, rq.DescribeQueue)
    assert [type(one) for one in told[-2:]] == [c.PublishCommand, rq.DescribeQueue]


async def test_what_was_left_is_free_for_whoever_takes_it_alone(broker: FakeBroker, session: Session) -> None:
    consumer, (message,) = await in_hand(broker, session, 1)
    message.release()
    await consumer.close()
    await session.consume("a", exclusive=True)
    told = await heard(broker, rq.OpenConsumer, 2)
    assert [type(one) for one in told[-3:]] == [c.SettleCommand, rq.CloseConsumer, rq.OpenConsumer]


class Draining:
    """A consumer that wants its credit back where what it had is void, as proxies do."""

    def __init__(self) -> None:
        self.set: SetSession | None = None
        self.number = 0
        self.positions: list[QueuePosition] = []
        self.voided = 0

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[sm.DeliveredMessage, ...]) -> None:
        self.positions += [message.position for message in messages]

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        assert self.set is not None
        self.voided += 1
        self.set.drain(self.number)

    def drained(self) -> None: ...

    def stop(self, code: ErrorCode, message: str) -> None: ...


async def test_what_waits_in_line_when_its_session_is_lost_is_said_in_no_others_name(
    broker: FakeBroker, client: Client
) -> None:
    port = Draining()
    async with client.session(in_order=False) as session:
        port.set, batches = await session.of_target("", "a")
        port.number = port.set.consume(port, "a", 10, is_exclusive=False)
        await heard(broker, rq.OpenConsumer)
        await broker.deliver("one", port.number, "a", 1, 2, 3)
        while not port.positions:
            await asyncio.sleep(0.005)
        broker.is_holding = True
        epoch, positions = port.set.core.epoch, port.positions
        batches.settle("a", epoch, positions[:1], c.Disposition.REJECT, None)
        await heard(broker, c.SettleCommand)
        waiting = batches.settle("a", epoch, positions[1:2], c.Disposition.REJECT, None)
        await asyncio.sleep(0.02)
        broker.worlds["one"].ended.add(broker.streams[-1][1].session)
        broker.is_holding = False
        broker.hang_up()
        with pytest.raises(Rejected, match="their session is lost"):
            await waiting
        told = await heard(broker, rq.OpenConsumer)
        assert port.voided and not any(isinstance(one, c.SettleCommand) for one in told)


async def test_a_consumer_ends_behind_all_that_was_rejected_of_its_queue_though_it_is_done_in_parts(
    broker: FakeBroker, client: Client
) -> None:
    """The queue may end with it, and would take the rest along."""
    broker.worlds["one"].settled_max = 2
    async with client.session(in_order=False) as session:
        consumer, messages = await in_hand(broker, session, 5)
        rejected = [message.reject() for message in messages]
        await consumer.close()
        assert [one.result() for one in rejected] == [1] * 5
        told = await heard(broker, rq.CloseConsumer)
    settle = c.SettleCommand
    assert [type(one) for one in told[-5:]] == [settle, rq.DrainConsumer, settle, settle, rq.CloseConsumer]


async def test_a_consumer_ends_behind_what_is_to_be_done_first_and_what_was_settled_until_then(
    broker: FakeBroker, client: Client
) -> None:
    port = Draining()
    async with client.session(in_order=False) as session:
        port.set, batches = await session.of_target("", "a")
        port.number = port.set.consume(port, "a", 10, is_exclusive=False)
        await heard(broker, rq.OpenConsumer)
        await broker.deliver("one", port.number, "a", 1)
        while not port.positions:
            await asyncio.sleep(0.005)
        first = asyncio.get_running_loop().create_future()
        ending = port.set.stop_consuming(port.number, [first])
        await heard(broker, rq.DrainConsumer)
        batches.settle("a", port.set.core.epoch, port.positions, c.Disposition.FAIL, None)
        first.set_result(None)
        assert ending is not None
        await ending
        told = await heard(broker, rq.CloseConsumer)
    assert [type(one) for one in told[-3:]] == [rq.DrainConsumer, c.SettleCommand, rq.CloseConsumer]


async def test_what_comes_for_a_consumer_that_ends_behind_what_was_rejected_goes_back(
    broker: FakeBroker, client: Client
) -> None:
    async with client.session(in_order=False) as session:
        consumer, (message,) = await in_hand(broker, session, 1)
        broker.is_holding = True
        message.reject()
        closing = asyncio.ensure_future(consumer.close())
        await heard(broker, rq.DrainConsumer)
        await broker.deliver("one", 1, "a", 2)
        told = await heard(broker, c.SettleCommand, 2)
        back = told[-1]
        assert isinstance(back, c.SettleCommand)
        assert (back.positions, back.disposition) == ((2,), c.Disposition.RELEASE)
        assert not closing.done() and consumer.take() is None
        await broker.commit()
        await closing
        assert isinstance((await heard(broker, rq.CloseConsumer))[-1], rq.CloseConsumer)


async def test_a_consumer_waits_for_nothing_that_was_rejected_of_another_queue(
    broker: FakeBroker, client: Client
) -> None:
    async with client.session(in_order=False) as session:
        _, (message,) = await in_hand(broker, session, 1)
        other = await session.consume("b")
        await heard(broker, rq.OpenConsumer, 2)
        broker.is_holding = True
        message.reject()
        await other.close()
        assert isinstance((await heard(broker, rq.CloseConsumer))[-1], rq.CloseConsumer)
        await broker.commit()


async def test_a_session_ends_behind_all_that_was_rejected(broker: FakeBroker, client: Client) -> None:
    broker.worlds["one"].settled_max = 2
    async with client.session(in_order=False) as session:
        _, messages = await in_hand(broker, session, 5)
        for message in messages:
            message.reject()
    told = await heard(broker, rq.DetachSession)
    assert [type(one) for one in told[-4:]] == [*[c.SettleCommand] * 3, rq.DetachSession]


async def test_what_gathers_is_said_before_a_consumer_begins_and_before_it_is_drained(
    broker: FakeBroker, session: Session
) -> None:
    await in_hand(broker, session, 2)
    port, batches = await session.of_target("", "a")
    epoch = port.core.epoch
    batches.settle("a", epoch, [QueuePosition(1)], c.Disposition.RELEASE, None)
    number = port.consume(Draining(), "a", 1, is_exclusive=False)
    batches.settle("a", epoch, [QueuePosition(2)], c.Disposition.RELEASE, None)
    port.drain(number)
    told = await heard(broker, rq.DrainConsumer)
    kinds = [c.SettleCommand, rq.OpenConsumer, c.SettleCommand, rq.DrainConsumer]
    assert [type(one) for one in told[-4:]] == kinds


async def test_so_it_is_in_a_session_behind_one_that_was_lost(broker: FakeBroker, session: Session) -> None:
    consumer, _ = await in_hand(broker, session, 1)
    port, _ = await session.of_target("", "a")
    broker.worlds["one"].ended.add(port.core.session)
    broker.hang_up()
    await eventually(lambda: port.lost_sessions == 1 and port.is_attached)
    await heard(broker, rq.OpenConsumer)
    await broker.deliver("one", 1, "a", 2)
    (await anext(consumer)).release()
    await consumer.close()
    told = await heard(broker, rq.CloseConsumer)
    assert [type(one) for one in told[-2:]] == [c.SettleCommand, rq.CloseConsumer]


def test_credit_waits_for_no_command() -> None:
    bench = consuming(SessionSettings(push_back_ms=600, push_back_max_ms=600))
    bench.exchange()
    assert bench.primary is not None
    bench.primary.pushes_back = True
    bench.submit("a", publish("a"))
    bench.exchange()
    bench.sent.clear()
    bench.core.grant(1, 5)
    bench.feed(e.Turn())
    assert said(bench) == ["GrantCredit"]


class AtOnce:
    """A consumer that says at once what becomes of what it gets, as proxies do for links without unsettled deliveries."""

    def __init__(self, disposition: int) -> None:
        self.batches: CommandBatches | None = None
        self.confirmations: list[Confirmation] = []
        self._disposition = disposition

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[sm.DeliveredMessage, ...]) -> None:
        assert self.batches is not None
        positions = [message.position for message in messages]
        self.confirmations.append(self.batches.settle(queue, epoch, positions, self._disposition, None))

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None: ...

    def drained(self) -> None: ...

    def stop(self, code: ErrorCode, message: str) -> None: ...


@pytest.mark.parametrize("disposition", [c.Disposition.ACCEPT, c.Disposition.RELEASE])
async def test_what_is_settled_while_the_loss_of_its_session_is_told_is_said_in_no_others_name(
    broker: FakeBroker, client: Client, disposition: int
) -> None:
    """The next one may hold the message, of the same epoch, for somebody else."""
    port = AtOnce(disposition)
    async with client.session(in_order=False) as session:
        opened, port.batches = await session.of_target("", "a")
        number = opened.consume(port, "a", 10, is_exclusive=False)
        await heard(broker, rq.OpenConsumer)
        await eventually(lambda: opened.is_attached)
        head = opened.core.epoch, LogIndex(1)
        message = sm.DeliveredMessage(QueuePosition(1), b"", b"", 0, 0, True)
        opened._hear(
            e.Received(
                opened.core.line.stream,
                (
                    sm.Deliveries(*head, number, "a", (message,)),
                    sm.SessionEnded(*head, ErrorCode.UNKNOWN_SESSION, "it is over"),
                ),
            )
        )
        assert opened.lost_sessions == 1
        await session.publish("a", b"in the next")
        told = await heard(broker, c.PublishCommand)
        assert not any(isinstance(one, c.SettleCommand) for one in told)
        (confirmation,) = port.confirmations
        with pytest.raises(Rejected, match="their session is lost"):
            await confirmation
