"""Much that comes on a session stream at once: what is done with it is a step of its own."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from lockstep.client.session_events import Received, StreamLost
from lockstep.client.session_stream import MUCH_BYTES, SessionStream
from lockstep.core.ids import Epoch, LogIndex, QueuePosition, SetName
from lockstep.core.server_messages import AnyServerMessage, ConsumerOpened, DeliveredMessage, Deliveries
from lockstep.runtime.session_codec import encode_response
from tests.unit.lockstep.client.fake_broker import eventually
from tests.unit.lockstep.runtime.serialized import whole

SET = SetName("one")
DELIVERED = DeliveredMessage(QueuePosition(7), b"", bytes(MUCH_BYTES), 0, 0, True)
MUCH = Deliveries(Epoch(1), LogIndex(2), 1, "q", (DELIVERED,))
LITTLE = [ConsumerOpened(Epoch(1), LogIndex(2), number) for number in range(3)]


class Call:
    """Gives all that it has as soon as somebody hears; then its stream ends."""

    def __init__(self, said: list[AnyServerMessage]) -> None:
        self._said = said
        self.steps = 0

    def __call__(self) -> "Call":
        return self

    def stream_stream(self, _method: str) -> "Call":
        return self

    async def hear(self, handle: Callable[[bytes], bool]) -> bool:
        while self._said:
            if not handle(whole(encode_response(SET, [self._said.pop(0)]))):
                return True
        return False

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def details(self) -> str:
        return ""

    def cancel(self) -> None:
        self._said.clear()


@pytest.mark.parametrize("is_over", [False, True])
async def test_much_is_heard_in_its_order_and_in_another_step(is_over: bool) -> None:
    heard: list[Any] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        asyncio.get_running_loop().call_soon(step)

    def hear(event: Received | StreamLost) -> None:
        heard.extend((steps, message) for message in getattr(event, "messages", ()))
        if is_over:
            stream.cancel()

    asyncio.get_running_loop().call_soon(step)
    call = Call([LITTLE[0], MUCH, LITTLE[1], MUCH, LITTLE[2]])
    stream = SessionStream(cast(grpc.aio.Channel, call), SET, 1, hear, lambda _: None)
    await eventually(lambda: len(heard) == (1 if is_over else 5))
    await stream.close()
    if is_over:
        assert [message for _, message in heard] == [LITTLE[0]]
        return
    assert [message for _, message in heard] == [LITTLE[0], MUCH, LITTLE[1], MUCH, LITTLE[2]]
    assert heard[0][0] < heard[1][0] and heard[2][0] < heard[3][0], "in the step in which it came"
