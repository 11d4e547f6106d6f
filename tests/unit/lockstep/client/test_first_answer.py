"""Who is asked, when, and whose answer counts."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest

from lockstep.client.first_answer import NobodyAnswered, first_answer
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.status import STATUS, metadata_of

Call = Callable[[], Awaitable[str]]


class Brokers:
    """What they were asked, and what became of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.given_up: list[str] = []

    def answers(self, name: str) -> Call:
        async def call() -> str:
            self.asked.append(name)
            return name

        return call

    def hangs(self, name: str) -> Call:
        async def call() -> str:
            self.asked.append(name)
            try:
                await asyncio.Event().wait()
                raise AssertionError("nobody sets it")
            except asyncio.CancelledError:
                self.given_up.append(name)
                raise

        return call

    def refuses(self, name: str, code: ErrorCode) -> Call:
        async def call() -> str:
            self.asked.append(name)
            raise _failure(Rejected(code, f"{name} refuses"))

        return call

    def cannot_be_reached(self, name: str) -> Call:
        async def call() -> str:
            self.asked.append(name)
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "no route"
            )

        return call


async def test_a_broker_that_answers_is_the_only_one_asked() -> None:
    brokers = Brokers()
    assert await first_answer([brokers.answers("a"), brokers.answers("b")], 10) == "a"
    assert brokers.asked == ["a"]


async def test_another_is_asked_beside_one_that_hangs_which_is_given_up_then() -> None:
    brokers = Brokers()
    calls = [brokers.hangs("a"), brokers.refuses("b", ErrorCode.NOT_PRIMARY), brokers.answers("c")]
    assert await first_answer(calls, 0.01) == "c"
    await asyncio.sleep(0)
    assert (brokers.asked, brokers.given_up) == (["a", "b", "c"], ["a"])


async def test_nobody_is_asked_beside_another_unless_that_is_wanted() -> None:
    brokers = Brokers()
    asking = asyncio.ensure_future(first_answer([brokers.hangs("a"), brokers.answers("b")]))
    await asyncio.sleep(0.05)
    assert brokers.asked == ["a"]
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)
    assert brokers.given_up == ["a"]


async def test_a_refusal_that_is_an_answer_ends_the_asking() -> None:
    brokers = Brokers()
    calls = [brokers.refuses("a", ErrorCode.NOT_FOUND), brokers.answers("b")]
    with pytest.raises(Rejected, match="a refuses"):
        await first_answer(calls, 10)
    assert brokers.asked == ["a"]


async def test_a_set_that_one_broker_has_not_heard_of_is_asked_of_the_others() -> None:
    brokers = Brokers()
    assert await first_answer([brokers.refuses("a", ErrorCode.UNKNOWN_SET), brokers.answers("b")]) == "b"


@pytest.mark.parametrize(
    ("codes", "knows_nobody"),
    [
        ([ErrorCode.UNKNOWN_SET, ErrorCode.UNKNOWN_SET], True),
        ([ErrorCode.UNKNOWN_SET, ErrorCode.UNAVAILABLE], False),
        ([ErrorCode.NOT_PRIMARY, ErrorCode.UNKNOWN_SET], False),
    ],
)
async def test_that_there_is_no_such_set_is_known_when_all_have_said_so(
    codes: list[ErrorCode], knows_nobody: bool
) -> None:
    brokers = Brokers()
    with pytest.raises(NobodyAnswered) as raised:
        await first_answer([brokers.refuses(code.name, code) for code in codes])
    assert raised.value.knows_nobody is knows_nobody


@pytest.mark.parametrize("beside_seconds", [None, 10.0])
async def test_what_the_last_one_said_is_told_where_nobody_answers(beside_seconds: float | None) -> None:
    brokers = Brokers()
    calls = [brokers.refuses("a", ErrorCode.NOT_PRIMARY), brokers.cannot_be_reached("b")]
    with pytest.raises(NobodyAnswered) as raised:
        await first_answer(calls, beside_seconds)
    assert brokers.asked == ["a", "b"]
    assert raised.value.error.code is ErrorCode.NOT_PRIMARY


async def test_nobody_to_ask() -> None:
    with pytest.raises(NobodyAnswered):
        await first_answer([], 10)


def _failure(error: LockstepError) -> grpc.aio.AioRpcError:
    """As it comes from a broker."""
    trailing = grpc.aio.Metadata(*metadata_of(error))
    return grpc.aio.AioRpcError(STATUS[error.code], grpc.aio.Metadata(), trailing, error.message)
