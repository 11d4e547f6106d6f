"""What a request says of its messages: of which kind they are, and whether they are compressed."""

import gzip
from collections.abc import AsyncIterator

import pytest
from hpack import Decoder

from lockstep.transport.inflating import AT_ONCE_BYTES_MAX, INFLATED_BYTES_MAX
from tests.unit.lockstep.transport import raw_http2 as h
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import COUNT, Probe, path

GZIP = (b"grpc-encoding", b"gzip")
OK, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = b"0", b"8", b"12", b"13"


class Client:
    """Begins one call after the other; understands what it is told of them."""

    def __init__(self, raw: h.RawClient) -> None:
        self.raw = raw
        self._fields = Decoder()
        self._seen = 0
        self.said: dict[int, dict[bytes, bytes]] = {}
        """By stream: all headers and trailers."""
        self._number = -1

    async def ask(
        self, method: str, data: bytes, *more: tuple[bytes, bytes], kind: bytes = b""
    ) -> dict[bytes, bytes]:
        """Headers and trailers of the answer. `data`: messages with their prefixes; `kind`: content type; "": that of gRPC."""
        self._number += 2
        fields = h.request_fields(path(method), *more)
        if kind:
            fields = fields.replace(
                h.field(b"content-type", b"application/grpc"), h.field(b"content-type", kind)
            )
        self.raw.send(h.frame(h.HEADERS, h.END_HEADERS, self._number, fields))
        self.raw.send(h.frame(h.DATA, h.END_STREAM, self._number, data))
        await self.raw.end_of(self._number)
        for one in self.raw.frames[self._seen :]:
            if one.kind == h.HEADERS:
                self.said.setdefault(one.stream, {}).update(self._fields.decode(one.payload, raw=True))
        self._seen = len(self.raw.frames)
        return self.said.get(self._number, {})

    @property
    def answer(self) -> bytes:
        """To the last call."""
        return self.raw.data_of(self._number)


@pytest.fixture
async def client(our_ends: Ends, probe: Probe) -> AsyncIterator[Client]:
    served = await our_ends.serve(probe.handlers())
    raw = await h.RawClient.connect(int(served.address.rpartition(":")[2]))
    yield Client(raw)
    await raw.close()


@pytest.mark.parametrize(
    "kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"]
)
@within(30)
async def test_protobuf_is_what_messages_are(client: Client, kind: bytes) -> None:
    assert (await client.ask("Echo", h.message(b"x"), kind=kind))[b"grpc-status"] == OK
    assert client.answer == h.message(b"x")


@within(30)
async def test_another_content_subtype_is_refused_as_such(client: Client) -> None:
    """Its bytes would be taken for protobuf."""
    said = await client.ask("Echo", h.message(b"{}"), kind=b"application/grpc+json")
    assert (said[b":status"], said[b"grpc-status"]) == (b"200", UNIMPLEMENTED)


@pytest.mark.parametrize("kind", [b"application/grpc-web", b"application/grpcx", b"application/json"])
@within(30)
async def test_what_is_not_grpc_is_told_so_in_words_of_http(client: Client, kind: bytes) -> None:
    assert await client.ask("Echo", h.message(b"x"), kind=kind) == {b":status": b"415"}


@pytest.mark.parametrize("size", [0, 100, AT_ONCE_BYTES_MAX, AT_ONCE_BYTES_MAX + 1, INFLATED_BYTES_MAX])
@within(30)
async def test_gzip_is_understood(client: Client, size: int) -> None:
    messages = h.message(gzip.compress(bytes(size)), is_compressed=True) + h.message(b"as it is")
    assert (await client.ask("Sum", messages, GZIP))[b"grpc-status"] == OK
    assert client.answer == h.message(COUNT.pack(2, size + 8))


@within(30)
async def test_what_is_understood_is_told_with_each_answer(client: Client) -> None:
    assert (await client.ask("Echo", h.message(b"x")))[b"grpc-accept-encoding"] == b"identity,gzip"
    said = await client.ask("Echo", h.message(b"x"), (b"grpc-encoding", b"snappy"))
    assert said[b"grpc-status"] == UNIMPLEMENTED
    assert said[b"grpc-accept-encoding"] == b"identity,gzip"


@within(30)
async def test_a_message_that_says_it_is_compressed_needs_a_call_that_says_how(client: Client) -> None:
    said = await client.ask("Echo", h.message(gzip.compress(b"x"), is_compressed=True))
    assert said[b"grpc-status"] == UNIMPLEMENTED


@within(60)
async def test_a_message_that_grows_beyond_measure_ends_its_call(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """What was sent is a thousandth of it."""
    bomb = gzip.compress(bytes(64 << 20))
    said = await client.ask("Echo", h.message(bomb, is_compressed=True), GZIP)
    assert said[b"grpc-status"] == RESOURCE_EXHAUSTED
    assert [text for text in caplog.messages if "limit=inflated_bytes_max" in text]
    assert (await client.ask("Echo", h.message(b"next")))[b"grpc-status"] == OK


WRONG = {
    "noise": b"noise",
    "cut": gzip.compress(bytes(range(200)))[:-9],
    "cut, and long": gzip.compress(bytes(1 << 20))[:-9],
    "two": gzip.compress(b"one") + gzip.compress(b"two"),
    "more": gzip.compress(b"one") + b"more",
    "nothing": b"",
}


@pytest.mark.parametrize("name", WRONG)
@within(30)
async def test_what_is_no_gzip_ends_its_call(client: Client, name: str) -> None:
    said = await client.ask("Echo", h.message(WRONG[name], is_compressed=True), GZIP)
    assert said[b"grpc-status"] == INTERNAL
    assert (await client.ask("Echo", h.message(b"next")))[b"grpc-status"] == OK
