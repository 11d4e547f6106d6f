"""A name that has several addresses is reached while one of them is; an event loop of the test's own says which it has."""

import asyncio
import contextlib
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
import uvloop

from lockstep.runtime import channels
from lockstep.runtime.ports import choose_ports
from lockstep.transport.channel import CONNECT_SECONDS
from tests.unit.lockstep.transport.probe_service import Probe, path

NAME = "brokers"
FAST_SECONDS = 1.0
"""Two attempts that are not answered take 0.5 s."""
HERE, DEAD, DEAD_TOO = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class Names:
    """What an event loop of this test knows: the addresses of `NAME`."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()
        self.asked = 0
        self.complaints: list[str] = []

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        assert host == NAME
        self.asked += 1
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self.addresses
            for _ in range(2)
        ]


class OwnUvloop(Names, uvloop.Loop):  # type: ignore[misc]
    """Production's."""


class OwnAsyncio(Names, asyncio.SelectorEventLoop):  # type: ignore[misc]
    """Of programs that take asyncio's own."""

    def __init__(self) -> None:
        Names.__init__(self)
        asyncio.SelectorEventLoop.__init__(self)


Run = Callable[[Sequence[str], Coroutine[Any, Any, None]], Names]


@pytest.fixture(params=[OwnUvloop, OwnAsyncio], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs on such a loop, which must have nothing to complain of."""

    def run(addresses: Sequence[str], test: Coroutine[Any, Any, None]) -> Names:
        with asyncio.Runner(loop_factory=request.param) as runner:
            loop: Any = runner.get_loop()
            loop.addresses = addresses
            loop.set_exception_handler(lambda _, context: loop.complaints.append(str(context)))
            runner.run(test)
            gc.collect()
            assert loop.complaints == []
            names: Names = loop
        return names

    return run


@contextlib.contextmanager
def nobody_answers(port: int, *addresses: str) -> Iterator[None]:
    """There packets vanish: somebody listens, and has no room for one more connection."""
    with contextlib.ExitStack() as cleanup:
        for address in addresses:
            hole = cleanup.enter_context(socket.socket())
            hole.bind((address, port))
            hole.listen(0)
            for _ in range(3):
                filler = cleanup.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex((address, port))
        yield


@contextlib.asynccontextmanager
async def served(port: int) -> AsyncIterator[None]:
    server = channels.make_server()
    server.add_generic_rpc_handlers((Probe().handlers(),))
    server.add_insecure_port(f"{HERE}:{port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def ask(address: str) -> tuple[bytes | grpc.aio.AioRpcError, float]:
    """The answer, or the error, and after how long."""
    async with channels.open_channel(address) as channel:
        begun = time.monotonic()
        try:
            method: Any = channel.unary_unary(path("Echo"))
            answer: bytes = await method(b"here")
        except grpc.aio.AioRpcError as error:
            return error, time.monotonic() - begun
        return answer, time.monotonic() - begun


def sockets() -> int:
    """How many this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


async def expect_answer(port: int) -> None:
    async with served(port):
        answer, seconds = await ask(f"{NAME}:{port}")
    assert answer == b"here"
    assert seconds < FAST_SECONDS


def test_addresses_where_nobody_answers_do_not_hide_the_one_where_somebody_does(run: Run) -> None:
    (port,) = choose_ports(1)
    with nobody_answers(port, DEAD, DEAD_TOO):
        run([DEAD, DEAD_TOO, HERE], expect_answer(port))


def test_behind_an_address_that_refuses_the_next_one_is_tried_at_once(run: Run) -> None:
    (port,) = choose_ports(1)
    run([f"127.0.1.{number}" for number in range(1, 20)] + [HERE], expect_answer(port))


def test_who_takes_a_connection_and_says_nothing_is_not_waited_for(run: Run) -> None:
    (port,) = choose_ports(1)
    with socket.socket() as silent:
        silent.bind((DEAD, port))
        silent.listen()
        run([DEAD, HERE], expect_answer(port))


@pytest.mark.parametrize("addresses", [[DEAD], [DEAD, DEAD_TOO]], ids=["one", "two"])
def test_where_all_are_dead_the_error_is_that_of_one(run: Run, addresses: list[str]) -> None:
    (port,) = choose_ports(1)

    async def test() -> None:
        error, seconds = await ask(f"{NAME}:{port}")
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == f"failed to connect to {NAME}:{port}: TimeoutError"
        assert CONNECT_SECONDS * 0.9 < seconds < CONNECT_SECONDS + FAST_SECONDS

    with nobody_answers(port, *addresses):
        run(addresses, test())


def test_where_all_refuse_the_error_says_so(run: Run) -> None:
    (port,) = choose_ports(1)

    async def test() -> None:
        error, seconds = await ask(f"{NAME}:{port}")
        assert isinstance(error, grpc.aio.AioRpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert f"failed to connect to {NAME}:{port}: " in str(error.details())
        assert "Errno 111" in str(error.details())
        assert seconds < FAST_SECONDS

    run([DEAD, DEAD_TOO], test())


def test_attempts_that_were_not_first_leave_nothing(run: Run) -> None:
    (port,) = choose_ports(1)

    async def test() -> None:
        async with served(port):
            before, tasks = sockets(), asyncio.all_tasks()
            for _ in range(5):
                await ask(f"{NAME}:{port}")
            # What is closed may say its last word for a second.
            async with asyncio.timeout(10):
                while sockets() > before or asyncio.all_tasks() != tasks:
                    await asyncio.sleep(0.05)

    with nobody_answers(port, DEAD), socket.socket() as silent:
        silent.bind((DEAD_TOO, port))
        silent.listen()
        run([DEAD, DEAD_TOO, HERE], test())


def test_a_channel_that_is_closed_meanwhile_leaves_nothing(run: Run) -> None:
    (port,) = choose_ports(1)

    async def test() -> None:
        before = sockets()
        channel = channels.open_channel(f"{NAME}:{port}")
        ready = asyncio.ensure_future(channel.channel_ready())
        await asyncio.sleep(0.4)
        await channel.close()
        with contextlib.suppress(grpc.aio.UsageError):
            await ready
        async with asyncio.timeout(10):
            while sockets() > before or len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0.05)

    with nobody_answers(port, DEAD, DEAD_TOO):
        run([DEAD, DEAD_TOO], test())


def test_an_address_is_looked_up_nowhere_and_a_name_once(run: Run) -> None:
    (port,) = choose_ports(1)

    async def test() -> None:
        async with served(port):
            for address in (f"{HERE}:{port}", f"{NAME}:{port}"):
                answer, _ = await ask(address)
                assert answer == b"here"

    assert run([HERE], test()).asked == 1
