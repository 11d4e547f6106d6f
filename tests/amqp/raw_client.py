"""A raw AMQP client for tests: bytes out as they are given, performatives in.

Law: it does nothing by itself: no credit, no answer, no heartbeat. Every wait has an end, also by being cancelled
(`asyncio.wait_for` of Python 3.11 swallows a cancellation that meets what it waits for).
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.amqp import codec
from tests.amqp.codec import Frame, composite, performative

SECONDS = 30.0
"""For what has to come."""
WINDOW = 2048
FRAME_BYTES = 100_000


class RawClient:
    """One connection, from `connected` or `opened` to `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed: list[Frame] = []
        """What came while something else was waited for."""
        self._reader = reader
        self._writer = writer
        self._next_delivery = 0

    @classmethod
    async def connected(cls, address: str) -> "RawClient":
        """A socket on which nothing was sent."""
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    @classmethod
    async def opened(cls, address: str, container: str = "raw", **fields: Any) -> "RawClient":
        """Past its open."""
        client = await cls.connected(address)
        client.send(codec.AMQP_HEADER, performative("open", container_id=container, **fields))
        await client.expect_header()
        await client.expect("open")
        return client

    @classmethod
    async def begun(cls, address: str, **fields: Any) -> "RawClient":
        """Past the begin of a session on channel 0."""
        client = await cls.opened(address)
        await client.begin(**fields)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """Drops the connection."""
        self._writer.transport.abort()

    # --- out ---

    def send(self, *data: bytes) -> None:
        """In one write."""
        self._writer.write(b"".join(data))

    def say(self, name: str, channel: int = 0, payload: bytes = b"", /, **fields: Any) -> None:
        """One performative."""
        self.send(performative(name, channel, payload, **fields))

    async def sent(self) -> None:
        """Waits until the kernel has all of it."""
        async with asyncio.timeout(SECONDS):
            await self._writer.drain()

    async def begin(self, channel: int = 0, **fields: Any) -> Frame:
        """Begins a session."""
        self.send(begin(channel, **fields))
        return await self.expect("begin")

    async def attach_sender(self, name: str, address: str | None, handle: int = 0, **fields: Any) -> Frame:
        """Attaches a link to send on, and waits for its credit; returns that flow."""
        self.send(attach_sender(name, address, handle, **fields))
        await self.expect("attach")
        return await self.expect("flow")

    async def attach_receiver(self, name: str, address: str, handle: int = 0, **fields: Any) -> Frame:
        """Attaches a link to receive on."""
        self.send(attach_receiver(name, address, handle, **fields))
        return await self.expect("attach")

    async def attach_coordinator(self, handle: int = 0) -> Frame:
        """Attaches a link to the coordinator, and waits for its credit."""
        self.send(attach_coordinator(handle))
        await self.expect("attach")
        return await self.expect("flow")

    def transfer(self, payload: bytes, handle: int = 0, channel: int = 0, **fields: Any) -> int:
        """Sends a whole delivery; returns its id."""
        number = self._next_delivery
        self._next_delivery += 1
        given = {"delivery_id": number, "delivery_tag": codec.binary(b"%d" % number), "message_format": 0}
        self.say("transfer", channel, payload, handle=handle, **{**given, **fields})
        return number

    def transfer_in_frames(self, payload: bytes, handle: int = 0, **fields: Any) -> int:
        """The same in frames that every proxy takes."""
        number = self._next_delivery
        self._next_delivery += 1
        for place in range(0, len(payload), FRAME_BYTES):
            self.say(
                "transfer",
                0,
                payload[place : place + FRAME_BYTES],
                handle=handle,
                delivery_id=number,
                delivery_tag=codec.binary(b"%d" % number),
                more=place + FRAME_BYTES < len(payload),
                **fields,
            )
        return number

    async def outcome_of(self, number: int) -> codec.Composite:
        """The state in the disposition of one delivery."""

        def settles(frame: Frame) -> bool:
            last = frame["last"] if frame["last"] is not None else frame["first"]
            return frame["role"] is True and frame["first"] <= number <= last

        return codec.named((await self.expect("disposition", settles))["state"])

    async def declare(self, handle: int = 0, **fields: Any) -> bytes:
        """Declares a transaction; returns its id."""
        number = self.transfer(codec.request(composite("declare", **fields)), handle)
        state = await self.outcome_of(number)
        assert state.name == "declared", state
        return bytes(state["txn_id"])

    async def discharge(self, transaction: bytes, handle: int = 0, fail: bool = False) -> codec.Composite:
        """Ends a transaction; returns the outcome."""
        body = composite("discharge", txn_id=codec.binary(transaction), fail=fail)
        return await self.outcome_of(self.transfer(codec.request(body), handle))

    def stop_reading(self) -> None:
        """From now on nothing is taken from the kernel."""
        transport = self._writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()

    @property
    def is_at_end(self) -> bool:
        """The other side has closed, and all was read."""
        return self._reader.at_eof()

    async def skip(self, seconds: float = 0.5) -> None:
        """Reads whatever there is."""
        try:
            async with asyncio.timeout(seconds):
                await self._reader.read(65536)
        except (TimeoutError, ConnectionError):
            pass

    # --- in ---

    async def expect_header(self, header: bytes = codec.AMQP_HEADER) -> None:
        """The protocol header."""
        async with asyncio.timeout(SECONDS):
            got = await self._reader.readexactly(8)
        assert got == header, got

    async def next_frame(self, seconds: float = SECONDS) -> Frame | None:
        """The next frame; None: the connection has ended."""
        try:
            async with asyncio.timeout(seconds):
                size = await self._reader.readexactly(4)
                rest = await self._reader.readexactly(int.from_bytes(size) - 4)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return codec.read_frame(size + rest)

    async def expect(
        self, name: str, holds: Callable[[Frame], bool] | None = None, seconds: float = SECONDS
    ) -> Frame:
        """The next performative of this name for which `holds`; what comes before it is in `passed`."""
        for known in self.passed:
            if known.name == name and (holds is None or holds(known)):
                self.passed.remove(known)
                return known
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            frame = await self.next_frame(max(deadline - asyncio.get_running_loop().time(), 0.01))
            assert frame is not None, f"the connection ended before {name}; came: {self.passed}"
            if frame.name == name and (holds is None or holds(frame)):
                return frame
            assert frame.name != "close", f"instead of {name}: {frame}"
            self.passed.append(frame)

    async def expect_end(self, seconds: float = SECONDS) -> str | None:
        """Reads until the connection ends; returns the condition of its close, None if none came."""
        condition: str | None = None
        while (frame := await self.next_frame(seconds)) is not None:
            if frame.name == "close":
                condition = frame.condition
        return condition


# --- frames that most tests need ---


def begin(channel: int = 0, **fields: Any) -> bytes:
    given = {"next_outgoing_id": 0, "incoming_window": WINDOW, "outgoing_window": WINDOW}
    return performative("begin", channel, **{**given, **fields})


def attach_sender(name: str, address: str | None, handle: int = 0, channel: int = 0, **fields: Any) -> bytes:
    """Of a client that sends; `address` None: the anonymous relay."""
    given = {
        "role": False,
        "source": composite("source", address="here"),
        "target": composite("target", address=address),
        "initial_delivery_count": 0,
    }
    return performative("attach", channel, name=name, handle=handle, **{**given, **fields})


def attach_receiver(name: str, address: str, handle: int = 0, channel: int = 0, **fields: Any) -> bytes:
    """Of a client that receives."""
    given = {
        "role": True,
        "source": composite("source", address=address),
        "target": composite("target", address="here"),
    }
    return performative("attach", channel, name=name, handle=handle, **{**given, **fields})


def attach_coordinator(handle: int = 0, channel: int = 0, **fields: Any) -> bytes:
    target = composite(
        "coordinator", capabilities=codec.symbols("amqp:local-transactions", "amqp:multi-txns-per-ssn")
    )
    return attach_sender(f"coordinator-{handle}", None, handle, channel, **{"target": target, **fields})


def credit(handle: int, count: int, delivery_count: int = 0, channel: int = 0, **fields: Any) -> bytes:
    """A flow that gives a link credit."""
    given = {
        "next_incoming_id": 0,
        "incoming_window": WINDOW,
        "next_outgoing_id": 0,
        "outgoing_window": WINDOW,
        "handle": handle,
        "delivery_count": delivery_count,
        "link_credit": count,
    }
    return performative("flow", channel, **{**given, **fields})
