"""Clients that mean harm, against a proxy process: it stays small and alive, and others do not notice.

Another connection sends and hears its outcomes all the while; each has to come in time.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from lockstep.runtime.ports import choose_ports
from tests.amqp import codec, hostile
from tests.amqp.raw_client import RawClient, begin, credit
from tests.conformance.amqp.cluster import SETS, AmqpCluster

ANSWER_SECONDS = 8.0
"""That the well-behaved client waits at most: far more than a turn takes, on a machine that does much else."""
HOSTILE_CONNECTIONS = 300
RSS_GROWTH_MAX = 96 * 1024 * 1024
MESSAGE_BYTES = 256 * 1024
MESSAGES = 600
"""150 MB in all: more than may wait in the proxy."""


@pytest.fixture
def address(amqp: AmqpCluster) -> str:
    return f"127.0.0.1:{amqp.port}"


@pytest.fixture
def queue() -> str:
    return f"hostile-{uuid.uuid4()}"


class _Witness:
    """The connection that must not be disturbed."""

    def __init__(self) -> None:
        self.answers = 0
        self.slowest = 0.0

    async def run(self, address: str, queue: str) -> None:
        async with await RawClient.begun(address) as client:
            await client.attach_sender("witness", queue)
            while True:
                began = time.monotonic()
                state = await client.outcome_of(client.transfer(codec.message(b"well"), settled=False))
                assert state.name == "accepted"
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.answers += 1
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def _witnessed(address: str) -> AsyncIterator[_Witness]:
    """Fails if the well-behaved connection did not get its answers in time."""
    witness = _Witness()
    task = asyncio.create_task(witness.run(address, f"witness-{uuid.uuid4()}"))
    try:
        yield witness
        await asyncio.sleep(0.2)
        assert not task.done(), task.exception()
        assert witness.answers > 0
        assert witness.slowest < ANSWER_SECONDS
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def test_hostile_connections_disturb_nobody(address: str) -> None:
    random = Random(20_261_121)
    async with _witnessed(address):
        for _ in range(HOSTILE_CONNECTIONS):
            frames = hostile.beginning()
            frames += [
                hostile.hostile(random.randrange(len(hostile.KINDS)), random.randrange(2**32))
                for _ in range(8)
            ]
            client = await RawClient.connected(address)
            with contextlib.suppress(ConnectionError):
                for frame in frames:
                    client.send(frame)
                    if random.random() < 0.3:
                        await client.sent()
            if random.random() < 0.5:
                await asyncio.sleep(0.005)
            client.abort()


@pytest.mark.slow
async def test_half_open_handshakes_end(address: str) -> None:
    """Nothing, half a header, a header, SASL without end: each ends with the handshake's time."""
    async with _witnessed(address):
        clients = []
        for data in (b"", b"AMQP", codec.AMQP_HEADER, codec.SASL_HEADER) * 50:
            client = await RawClient.connected(address)
            client.send(data)
            clients.append(client)
        began = time.monotonic()
        for client in clients:
            while not client.is_at_end and time.monotonic() - began < 20:
                await client.skip()
            assert client.is_at_end
            client.abort()
        assert time.monotonic() - began > 5


@pytest.fixture
def small_proxy(amqp: AmqpCluster, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A proxy of its own, whose memory nobody else uses: (address, pid)."""
    (port,) = choose_ports(1)
    brokers = ",".join(amqp.brokers)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "services.proxy", "--listen", f"127.0.0.1:{port}", "--brokers", brokers),
            *("--hold-seconds", "1", "--port-file", str(tmp_path / "port")),
        ],
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not (tmp_path / "port").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    yield f"127.0.0.1:{port}", process.pid
    process.terminate()
    process.wait(30)


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 2**31 - 1])
async def test_a_client_that_reads_nothing(small_proxy: tuple[str, int], queue: str, window: int) -> None:
    """It grants credit for 100,000 large messages; what the proxy has of them is bounded, and goes back when it is gone."""
    address, pid = small_proxy
    async with await RawClient.begun(address) as sender:
        await sender.attach_sender("s", queue)
        body = codec.message(bytes(MESSAGE_BYTES))
        for first in range(0, MESSAGES, 20):
            for _ in range(20):
                sender.transfer_in_frames(body)
            await sender.outcome_of(first + 19)
    before = _rss(pid)
    async with _witnessed(address):
        reader = await RawClient.opened(address)
        reader.send(begin(incoming_window=window))
        await reader.expect("begin")
        await reader.attach_receiver("r", queue)
        reader.send(credit(0, 100_000, incoming_window=window))
        reader.stop_reading()
        await asyncio.sleep(4)
        grown = _rss(pid) - before
        assert grown < RSS_GROWTH_MAX
        reader.abort()
        async with await RawClient.begun(address) as other:
            await other.attach_receiver("r", queue)
            other.send(credit(0, 1))
            await other.expect("transfer")


WORST = " OR ".join(["p LIKE '%" + "a_" * 60 + "b%'"] * 28)
"""Nearly fits at every place of a value that is `ab` again and again."""
LEASE_SECONDS = 3.0


async def test_selectors_of_the_worst_kind_take_no_lease_and_hold_nobody_up(
    amqp: AmqpCluster, address: str, queue: str
) -> None:
    properties = codec.mapping(codec.string("p"), codec.string("ab" * 30_000))
    costly = codec.message(b"x", codec.described(codec.ulong(0x74), properties))
    topic = f"worst-{uuid.uuid4()}"

    async def bind() -> None:
        await amqp.session.declare_exchange(topic, "topic", set_name=SETS[0])
        for number in range(12):
            await amqp.session.declare_queue(f"{queue}-{number}", set_name=SETS[0])
            selector = f"{WORST} OR q = {number}"
            await amqp.session.bind(topic, f"{queue}-{number}", "#", (("lockstep:selector", selector),))

    async def epochs() -> list[int]:
        status = await amqp.client.administration.status()
        return [one.epoch for one in status.view.sets]

    await asyncio.to_thread(amqp.run, bind())
    before = await asyncio.to_thread(amqp.run, epochs())
    async with _witnessed(address) as witness, await RawClient.begun(address) as client:
        await client.attach_sender("to-topic", f"topic://{topic}/k")
        refused = await client.outcome_of(client.transfer_in_frames(costly, settled=False))
        assert refused.name == "rejected"
        await client.attach_sender("to-queue", queue, handle=1)
        for _ in range(5):
            taken = await client.outcome_of(client.transfer_in_frames(costly, settled=False, handle=1))
            assert taken.name == "accepted"
        selector = codec.described(codec.symbol("apache.org:selector-filter:string"), codec.string(WORST))
        source = codec.composite(
            "source", address=queue, filter=codec.mapping(codec.symbol("selector"), selector)
        )
        await client.attach_receiver("r", queue, 2, source=source)
        client.send(credit(2, 10))
        await asyncio.sleep(3)
        assert witness.slowest < LEASE_SECONDS
    assert await asyncio.to_thread(amqp.run, epochs()) == before


@pytest.mark.slow
async def test_many_browsers_of_a_client_that_reads_nothing_hold_a_limited_part_of_the_proxys_memory(
    small_proxy: tuple[str, int], queue: str
) -> None:
    address, pid = small_proxy
    async with await RawClient.begun(address) as sender:
        await sender.attach_sender("s", queue)
        body = codec.message(bytes(MESSAGE_BYTES))
        for _ in range(40):
            sender.transfer_in_frames(body)
        await sender.outcome_of(39)
    before = _rss(pid)
    async with _witnessed(address):
        reader = await RawClient.opened(address)
        reader.send(begin(incoming_window=2**31 - 1))
        await reader.expect("begin")
        for handle in range(200):
            source = codec.composite("source", address=queue, distribution_mode=codec.Symbol("copy"))
            await reader.attach_receiver(f"b{handle}", queue, handle, source=source)
        for handle in range(200):
            reader.send(credit(handle, 1000, incoming_window=2**31 - 1))
        reader.stop_reading()
        await asyncio.sleep(5)
        assert _rss(pid) - before < RSS_GROWTH_MAX
        reader.abort()
