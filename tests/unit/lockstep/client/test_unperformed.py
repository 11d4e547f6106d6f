"""What raises where a session tells of something: nobody else waits for ever because of it."""

import asyncio

import pytest

from lockstep.client import Session
from lockstep.client.session_events import Received, StreamLost
from lockstep.client.session_stream import SessionStream
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition, SessionId, SessionKey, SetName
from lockstep.core.requests import AttachSession
from lockstep.core.server_messages import DeliveredMessage
from lockstep.runtime.channels import Channels
from tests.unit.lockstep.client.fake_broker import FakeBroker, eventually


class RaisingPort:
    """A consumer with a fault in it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None:
        self._raise("deliver")

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> None:
        self._raise("void")

    def drained(self) -> None:
        self._raise("drained")

    def stop(self, code: ErrorCode, message: str) -> None:
        self._raise("stop")

    def _raise(self, what: str) -> None:
        self.told.append(what)
        raise ZeroDivisionError(what)


async def test_a_consumer_that_raises_takes_no_other_answer_along(
    broker: FakeBroker, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    port, _ = await session.of_set(SetName("one"))
    consumer = RaisingPort()
    number = port.consume(consumer, "a", 8, False)
    await eventually(lambda: bool(broker.streams) and len(broker.streams[0][1].requests) == 2)
    await broker.deliver("one", number, "a", 1)
    await eventually(lambda: consumer.told == ["deliver"])
    async with asyncio.timeout(30):
        await session.publish("a", b"x")
    broker.worlds["one"].fail_over(9)
    broker.hang_up()
    async with asyncio.timeout(30):
        await session.publish("a", b"y")
    assert "void" in consumer.told
    assert len(broker.streams) == 1, "a stream is lost for what ends it, not for what is heard on it"
    assert "was not performed" in caplog.text


async def test_whatever_ends_the_reading_of_a_stream_ends_the_stream(broker: FakeBroker) -> None:
    lost: list[StreamLost] = []

    def hear(event: Received | StreamLost) -> None:
        if isinstance(event, Received):
            raise ZeroDivisionError("of the core")
        lost.append(event)

    channels = Channels()
    try:
        stream = SessionStream(channels.to(broker.address), SetName("one"), 1, hear, lambda _: None)
        stream.write((AttachSession(SetName("one"), SessionId("s"), SessionKey(0), Epoch(0), 1000, 0, ()),))
        await eventually(lambda: lost)
        assert lost == [StreamLost(1, "ZeroDivisionError: of the core")]
        await stream.close()
    finally:
        await channels.close()
