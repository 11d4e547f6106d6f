"""Clients that are not logged in: how many, who goes where there are too many, and that they take no place of others."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from lockstep.runtime.limit_log import LimitLog
from services.proxy.arrivals import IDLE_SECONDS, Arrivals
from services.proxy.security.settings import TlsSettings
from services.proxy.security.tls_files import TlsFiles
from services.proxy.settings import ProxyLimits
from services.proxy.tls_arrival import TlsListener, listening_sockets
from tests.amqp.stub_proxy import StubProxy, serving
from tests.unit.services.proxy.security.certificates import Certificates

ANONYMOUS = b"AMQP\x03\x01\x00\x00"
PLAIN_OPENING = b"AMQP\x00\x01\x00\x00"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Client:
    def __init__(self, name: str) -> None:
        self.peer = name
        self.is_closed = False

    def close_now(self) -> None:
        self.is_closed = True


@pytest.fixture(name="clock")
def started_clock() -> Clock:
    return Clock()


@pytest.fixture(name="arrivals")
def with_three(clock: Clock) -> Arrivals:
    return Arrivals(3, LimitLog(logging.getLogger("test.arrivals")), clock)


def test_the_one_that_has_said_nothing_for_longest_makes_room(arrivals: Arrivals, clock: Clock) -> None:
    clients = [Client(str(number)) for number in range(4)]
    for client in clients[:3]:
        assert arrivals.take(client)
        clock.now += 1
    arrivals.heard(clients[0])
    clock.now += IDLE_SECONDS
    assert arrivals.take(clients[3])
    assert [client.is_closed for client in clients] == [False, True, False, False]
    assert len(arrivals) == 3


def test_a_newcomer_is_turned_away_where_all_have_just_said_something(
    arrivals: Arrivals, clock: Clock
) -> None:
    clients = [Client(str(number)) for number in range(3)]
    assert all(arrivals.take(client) for client in clients)
    clock.now += IDLE_SECONDS / 2
    assert not arrivals.take(Client("late")) and not any(client.is_closed for client in clients)
    arrivals.drop(clients[1])
    assert arrivals.take(Client("later"))


def test_what_is_gone_takes_no_place(arrivals: Arrivals) -> None:
    client = Client("gone")
    for _ in range(10):
        assert arrivals.take(client)
        arrivals.drop(client)
        arrivals.heard(client)
    assert len(arrivals) == 0


def test_many_that_are_turned_away_are_one_line(arrivals: Arrivals, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(50):
        arrivals.take(Client(str(number)))
    assert [record.getMessage() for record in caplog.records] == [
        "event=limit_reached limit=arrivals refusals=1 peer=3 is turned away: 3 clients are not logged in"
    ]


# --- over sockets ---


async def connect(proxy: StubProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = proxy.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def until(what: "asyncio.Future[bytes] | None", holds: "partial[bool]") -> None:
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within five seconds: {what}")


async def test_sockets_that_say_nothing_keep_nobody_from_logging_in() -> None:
    async with serving(ProxyLimits(arrivals_max=5, connections_max=2)) as proxy:
        silent = [await connect(proxy) for _ in range(5)]
        for _, writer in silent:
            writer.write(ANONYMOUS[:5])
        await until(None, partial(lambda: len(proxy.worker.arrivals) == 5))
        await asyncio.sleep(IDLE_SECONDS)
        reader, writer = await connect(proxy)
        writer.write(PLAIN_OPENING)
        assert await reader.readexactly(8) == PLAIN_OPENING
        assert len(proxy.worker.connections) == 1 and len(proxy.worker.arrivals) == 4
        assert await silent[0][0].read() == b"", "the first of them had to go"
        for _, each in (*silent, (reader, writer)):
            each.close()


async def test_whoever_is_logged_in_is_counted_as_a_connection_and_no_more_are_let_in() -> None:
    async with serving(ProxyLimits(connections_max=1)) as proxy:
        reader, writer = await connect(proxy)
        writer.write(PLAIN_OPENING)
        assert await reader.readexactly(8) == PLAIN_OPENING
        assert len(proxy.worker.arrivals) == 0
        second, other = await connect(proxy)
        other.write(PLAIN_OPENING)
        assert await second.read() in (b"", PLAIN_OPENING)
        other.close()
        assert len(proxy.worker.connections) == 1
        writer.close()
        await until(None, partial(lambda: not proxy.worker.connections))
        third, more = await connect(proxy)
        more.write(PLAIN_OPENING)
        assert await third.readexactly(8) == PLAIN_OPENING
        more.close()


@pytest.fixture(name="files", scope="module")
def made_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder: Path = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder)
    made.authority("ca")
    made.signed("server", "/CN=proxy", "ca", "IP:127.0.0.1")
    return TlsFiles(TlsSettings(made.certificate("server"), made.key("server")))


@contextlib.asynccontextmanager
async def served_by_tls(proxy: StubProxy, files: TlsFiles) -> AsyncIterator[TlsListener]:
    listener = proxy.worker.tls_listener(await listening_sockets("127.0.0.1", 0, 100), files)
    try:
        yield listener
    finally:
        listener.close()


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def test_handshakes_are_counted_from_the_moment_a_socket_is_accepted(files: TlsFiles) -> None:
    async with serving(ProxyLimits(arrivals_max=5)) as proxy, served_by_tls(proxy, files) as server:
        host, port = server.sockets[0].getsockname()
        silent = [await asyncio.open_connection(host, port) for _ in range(5)]
        await until(None, partial(lambda: len(proxy.worker.arrivals) == 5))
        turned_away, refused = await asyncio.open_connection(host, port)
        assert await turned_away.read() == b""
        refused.close()
        await asyncio.sleep(IDLE_SECONDS)
        reader, writer = await asyncio.open_connection(host, port, ssl=trusting())
        writer.write(PLAIN_OPENING)
        assert await reader.readexactly(8) == PLAIN_OPENING
        assert len(proxy.worker.connections) == 1 and len(proxy.worker.arrivals) == 4
        for _, each in silent:
            each.close()
        await until(None, partial(lambda: len(proxy.worker.arrivals) == 0))
        writer.close()


async def test_a_handshake_that_fails_or_takes_too_long_frees_its_place_and_is_one_line(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ProxyLimits(handshake_seconds=0.3)
    async with serving(limits) as proxy, served_by_tls(proxy, files) as server:
        host, port = server.sockets[0].getsockname()
        opened = [await asyncio.open_connection(host, port) for _ in range(6)]
        for _, writer in opened[:3]:
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await until(None, partial(lambda: len(proxy.worker.arrivals) == 0))
        for reader, writer in opened:
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
    lines = [record.getMessage() for record in caplog.records if "limit=tls_handshake" in record.getMessage()]
    assert len(lines) == 1


async def test_a_client_that_says_hello_at_once_is_heard(files: TlsFiles) -> None:
    """Its first bytes are there before its socket is accepted."""
    async with serving() as proxy, served_by_tls(proxy, files) as server:
        host, port = server.sockets[0].getsockname()
        proxy.worker.has_passwords = True

        def begin() -> bytes:
            with (
                socket.create_connection((host, port), timeout=20) as plain,
                trusting().wrap_socket(plain) as secured,
            ):
                secured.sendall(PLAIN_OPENING)
                return secured.recv(8)

        for _ in range(20):
            assert await asyncio.to_thread(begin) == PLAIN_OPENING
