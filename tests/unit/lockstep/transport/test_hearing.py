"""Messages that are heard in the turn in which they come, and written at once where there is room."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime import rpc
from lockstep.transport.stream import COPIED_BYTES_MAX
from tests.unit.lockstep.transport.ends import Ends, within

PATH = "/lockstep.wire.v1.Talk/Talk"
_Handler = Callable[[Any], Coroutine[Any, Any, None]]


async def talk(ends: Ends, handler: _Handler) -> Any:
    """A call of a method with that handler."""
    served = await ends.serve(rpc.service("Talk", {"Talk": rpc.stream_stream(handler)}))
    return ends.open_channel(served.address).stream_stream(PATH)()


class Listener:
    """Takes messages until it has had enough."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.heard: list[bytes] = []

    def take(self, data: bytes | memoryview) -> bool:
        self.heard.append(bytes(data))
        return len(self.heard) % self.enough != 0


@within(30)
async def test_all_messages_are_heard_in_order_until_the_end(our_ends: Ends) -> None:
    listener, more = Listener(1000), list[bool]()

    async def hear(context: Any) -> None:
        more.append(await rpc.hear(context, listener.take))
        await context.write(b"%d" % len(listener.heard))

    call = await talk(our_ends, hear)
    said = [b"%d" % number for number in range(100)]
    for data in said[:50]:
        await call.write(data)
    await asyncio.sleep(0.05)
    for data in said[50:]:
        await call.write(data)
    await call.done_writing()
    assert await call.read() == b"100"
    assert (listener.heard, more) == (said, [False])


@within(60)
async def test_big_messages_are_heard_as_they_were_said_whatever_is_read_at_once(our_ends: Ends) -> None:
    listener = Listener(1000)

    async def hear(context: Any) -> None:
        await rpc.hear(context, listener.take)
        await context.write(b"over")

    call = await talk(our_ends, hear)
    sizes = [0, 1, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, 3, 45_000, 45_000, 300_000, 20_000, 7]
    said = [random.randbytes(size) for size in sizes]
    for data in said:
        await call.write(data)
    await call.done_writing()
    assert await call.read() == b"over"
    assert listener.heard == said


@within(30)
async def test_who_has_had_enough_has_his_turn_before_the_next_message(our_ends: Ends) -> None:
    listener, steps = Listener(3), list[int]()

    async def hear(context: Any) -> None:
        while await rpc.hear(context, listener.take):
            steps.append(len(listener.heard))
            await asyncio.sleep(0.01)
        await context.write(b"over")

    call = await talk(our_ends, hear)
    for number in range(10):
        await call.write(b"%d" % number)
    await call.done_writing()
    assert await call.read() == b"over"
    assert steps == [3, 6, 9]
    assert listener.heard == [b"%d" % number for number in range(10)]


@within(30)
async def test_a_client_hears_answers_and_then_the_end(our_ends: Ends) -> None:
    async def answer(context: Any) -> None:
        for number in range(40):
            await context.write(b"%d" % number)

    call, listener = await talk(our_ends, answer), Listener(1000)
    assert not await call.hear(listener.take)
    assert listener.heard == [b"%d" % number for number in range(40)]
    assert await call.code() is grpc.StatusCode.OK


@within(30)
async def test_an_error_of_the_call_is_raised_behind_what_was_said_before(our_ends: Ends) -> None:
    async def answer(context: Any) -> None:
        await context.write(b"one")
        raise Rejected(ErrorCode.NOT_FOUND, "no more")

    call, listener = await talk(our_ends, answer), Listener(1000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.hear(listener.take)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert listener.heard == [b"one"]


@pytest.mark.parametrize("first", [1, 3])
@within(30)
async def test_what_a_handler_raises_ends_its_call_and_no_other(our_ends: Ends, first: int) -> None:
    def take(data: bytes | memoryview) -> bool:
        if data == b"bad":
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "bad")
        return True

    async def hear(context: Any) -> None:
        await context.write(b"ready")
        await rpc.hear(context, take)

    served = await our_ends.serve(rpc.service("Talk", {"Talk": rpc.stream_stream(hear)}))
    channel = our_ends.open_channel(served.address)
    bad, good = channel.stream_stream(PATH)(), channel.stream_stream(PATH)()
    assert (await bad.read(), await good.read()) == (b"ready", b"ready")
    for _ in range(first):
        await bad.write(b"good")
    await bad.write(b"bad")
    assert await bad.code() is grpc.StatusCode.INVALID_ARGUMENT
    await good.write(b"good")
    await good.done_writing()
    assert await good.code() is grpc.StatusCode.OK


@within(30)
async def test_a_handler_may_end_its_own_reader(our_ends: Ends) -> None:
    """As a client's session does that drops its stream because of what it heard; nothing is said of a broken connection."""

    async def answer(context: Any) -> None:
        for number in range(20):
            await context.write(b"%d" % number)
        await rpc.hear(context, lambda data: True)

    call, heard = await talk(our_ends, answer), list[bytes]()

    def take(data: bytes | memoryview) -> bool:
        heard.append(bytes(data))
        reading.cancel()
        call.cancel()
        return True

    reading = asyncio.ensure_future(call.hear(take))
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert heard == [b"0"]


@within(30)
async def test_a_message_is_written_now_only_where_there_is_room(our_ends: Ends) -> None:
    answers, big = list[bool](), bytes(1 << 20)

    async def answer(context: Any) -> None:
        answers.append(context.write_now(b"before the headers"))
        await context.write(b"first")
        answers.append(context.write_now(b"second"))
        while context.write_now(big):
            answers.append(True)
            assert len(answers) < 1000, "nothing holds the writer back"
        await context.write(b"last")

    call = await talk(our_ends, answer)
    assert await call.read() == b"first"
    heard = [data async for data in call]
    assert answers[:2] == [False, True]
    assert heard == [b"second", *[big] * (len(answers) - 2), b"last"]


@within(30)
async def test_nothing_is_written_now_on_a_call_that_is_over(our_ends: Ends) -> None:
    async def leave(context: Any) -> None:
        await context.write(b"bye")

    call = await talk(our_ends, leave)
    assert [data async for data in call] == [b"bye"]
    assert not call.write_now(b"too late")
