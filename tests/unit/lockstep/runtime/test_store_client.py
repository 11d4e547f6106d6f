"""Store client: contents of messages are asked for until all of them are there."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lockstep.core.effects import ReadMessages
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Epoch, MessageId, SetName
from lockstep.core.inputs import MessagesRead
from lockstep.runtime.channels import Channels
from lockstep.runtime.driver import Driver
from lockstep.runtime.pulses import Pulses
from lockstep.runtime.store_client import StoreClient
from lockstep.wire.v1 import store_pb2

SET = SetName("orders")
ASKED = tuple(MessageId(number) for number in range(1, 8))


class Store:
    """Answers for so many messages of a request at most; also whoever connects to it."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.asked: list[list[int]] = []

    def to(self, address: str) -> "Store":
        return self

    def unary_unary(self, path: str) -> Callable[..., Any]:
        return self.answer

    async def answer(self, data: bytes, timeout: float) -> bytes:
        request = store_pb2.ReadMessagesRequest.FromString(data)
        self.asked.append(list(request.message_ids))
        response = store_pb2.ReadMessagesResponse()
        for message in request.message_ids[: self.counts.pop(0)]:
            response.is_there.append(message != 3)
            response.properties.append(b"")
            response.bodies.append(b"%d" % message)
        return response.SerializeToString()


class Heard:
    """In the place of a driver."""

    def __init__(self) -> None:
        self.inputs: list[MessagesRead] = []
        self.effects: dict[type, Callable[[Any], None]] = {}

    def on(self, kind: type, perform: Callable[[Any], None]) -> None:
        self.effects[kind] = perform

    def feed(self, given: MessagesRead) -> None:
        self.inputs.append(given)


async def read(store: Store) -> MessagesRead:
    heard = Heard()
    client = StoreClient(cast(Driver, heard), Pulses(), cast(Channels, store), "store")
    heard.effects[ReadMessages](ReadMessages(SET, 5, Epoch(1), ASKED))
    while not heard.inputs:
        await asyncio.sleep(0)
    await client.close()
    (given,) = heard.inputs
    return given


@pytest.mark.parametrize("counts", [(7,), (3, 3, 3), (1, 6)])
async def test_what_one_answer_has_no_room_for_is_asked_again(counts: tuple[int, ...]) -> None:
    store = Store(*counts)
    given = await read(store)
    expected = tuple(None if number == 3 else (b"", b"%d" % number) for number in ASKED)
    assert (given.request, given.contents) == (5, expected)
    assert len(store.asked) == len(counts) and store.asked[-1] == list(ASKED[sum(counts[:-1]) :])


async def test_an_answer_without_any_is_none() -> None:
    assert (await read(Store(2, 0))).contents is None


async def test_of_a_request_that_fails_half_way_nothing_is_told() -> None:
    class Failing(Store):
        async def answer(self, data: bytes, timeout: float) -> bytes:
            if not self.counts:
                raise Rejected(ErrorCode.UNAVAILABLE, "the set is not open")
            return await super().answer(data, timeout)

    store = Failing(3)
    assert (await read(store)).contents is None and len(store.asked) == 1
