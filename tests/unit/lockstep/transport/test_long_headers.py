"""Headers that are too long: they end their call, as long as what comes behind them can be understood."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from hpack import Decoder, Encoder, HPACKDecodingError, OversizedHeaderListError

from lockstep.transport.http2 import FIELDS_BYTES_MAX, HEADERS_BYTES_MAX, FieldDecoder
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import Probe, path
from tests.unit.lockstep.transport.raw_server import raw_server

TOO_LONG = HEADERS_BYTES_MAX + 5_000
RESOURCE_EXHAUSTED = b"8"


@pytest.fixture
async def client(our_ends: Ends, probe: Probe) -> AsyncIterator[h.RawClient]:
    served = await our_ends.serve(probe.handlers())
    made = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    yield made
    await made.close()


def literal(size: int) -> bytes:
    """A request with a field of so many bytes."""
    return h.request_fields(path("Echo"), (b"long", b"x" * size))


def from_the_table(size: int) -> bytes:
    """The same, with a field that is said once and named again."""
    entry = b"\x40\x01b\x7f\xa1\x1e" + bytes(b"x" * 4_000)
    return h.request_fields(path("Echo")) + entry + b"\xbe" * (size // 4_000)


@pytest.mark.parametrize("fields", [literal(TOO_LONG), from_the_table(TOO_LONG)], ids=["literal", "table"])
@within(30)
async def test_headers_that_are_too_long_end_their_call_and_no_other(
    client: h.RawClient, probe: Probe, caplog: pytest.LogCaptureFixture, fields: bytes
) -> None:
    client.send(h.call(1, path("Wait"), b""))
    await probe.begun.get()
    client.send(
        h.frame(h.HEADERS, h.END_HEADERS, 3, fields), h.frame(h.DATA, h.END_STREAM, 3, h.message(b"x"))
    )
    end = await client.end_of(3)
    assert end is not None and end.kind == h.HEADERS
    assert dict(Decoder().decode(end.payload, raw=True))[b"grpc-status"] == RESOURCE_EXHAUSTED
    assert [text for text in caplog.messages if "limit=headers_bytes_max" in text]
    client.send(h.call(5, path("Echo"), b"next"))
    await client.end_of(5)
    assert client.data_of(5) == h.message(b"next")
    assert not client.is_over and not probe.ended.qsize()


@within(30)
async def test_a_field_block_without_measure_ends_the_connection(
    client: h.RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.send(
        h.request(1, path("Echo"), flags=0),
        *(h.frame(h.CONTINUATION, 0, 1, h.field(b"more", b"x" * 30_000)) for _ in range(3)),
        h.frame(h.CONTINUATION, h.END_HEADERS, 1, h.field(b"more", b"x" * 30_000)),
    )
    end = await client.end_of(1)
    assert end is not None and end.kind == h.GOAWAY
    assert [text for text in caplog.messages if "limit=fields_bytes_max" in text]


@pytest.mark.parametrize("kind", [h.HEADERS, h.PING])
@within(30)
async def test_a_frame_that_is_too_long_ends_the_connection(
    client: h.RawClient, caplog: pytest.LogCaptureFixture, kind: int
) -> None:
    client.send(h.frame(kind, 0, 1, bytes(FIELDS_BYTES_MAX + 1)))
    while not client.is_over:
        await client.receive()
    assert [text for text in caplog.messages if "limit=frame_bytes_max" in text]


@within(30)
async def test_an_answer_whose_headers_are_too_long_ends_its_call_and_no_other() -> None:
    long = Encoder().encode([(":status", "200"), ("long", "x" * TOO_LONG)], huffman=False)
    async with raw_server(h.settings()) as (server, channel):
        calls: list[Any] = [channel.stream_stream(path("Converse"))() for _ in range(2)]
        await calls[0].write(b"")
        peer = await server.peers.get()
        await peer.calls(2)
        peer.send(h.frame(h.HEADERS, h.END_HEADERS, 1, long))
        assert await calls[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await asyncio.sleep(0.05)
        assert not calls[1].done()


def test_no_more_of_a_field_block_is_read_than_it_may_have() -> None:
    with pytest.raises(OversizedHeaderListError):
        FieldDecoder().decode(b"\x00\x01x\x7f" + bytes(2) + bytes(FIELDS_BYTES_MAX))


def test_a_table_is_changed_once_or_twice_in_a_field_block() -> None:
    """Each change is one byte, and takes as long as a field."""
    fields = FieldDecoder()
    for _ in range(10):
        assert fields.decode(b"\x20\x3f\xe1\x1f" + b"\x82", raw=True) == [(b":method", b"GET")]
    with pytest.raises(HPACKDecodingError):
        fields.decode(b"\x20" * 10_000)
