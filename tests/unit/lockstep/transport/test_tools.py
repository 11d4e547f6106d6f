"""Programs without an event loop, tools, and clients that compress: grpcio's own, against a server of ours."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from lockstep.runtime.channels import make_server, open_blocking_channel
from lockstep.runtime.health import Health
from lockstep.runtime.health_check import ask
from lockstep.runtime.reflection import add_services
from lockstep.runtime.request_limits import MESSAGE_BYTES_MAX
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import COUNT, Probe, numbered, path


@pytest.fixture
async def address(probe: Probe) -> AsyncIterator[str]:
    """Of a server as every service of ours has it."""
    server = make_server(lambda _: MESSAGE_BYTES_MAX)
    add_services(server, (probe.handlers(),), Health({"ready": lambda: False}))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def converse(channel: Any) -> list[bytes]:
    def requests() -> Iterator[bytes]:
        for number in range(50):
            yield numbered(number, 1_000)

    return list(channel.stream_stream(path("Converse"))(requests(), timeout=20))


@within(40)
async def test_a_blocking_client_makes_calls_of_each_kind(address: str) -> None:
    def play() -> None:
        channel: Any
        with open_blocking_channel(address) as channel:
            assert channel.unary_unary(path("Echo"))(b"blocking", timeout=20) == b"blocking"
            assert channel.unary_unary(path("Echo"))(bytes(2**23), timeout=20) == bytes(2**23)
            counted = list(channel.unary_stream(path("Count"))(COUNT.pack(30, 1_000), timeout=20))
            assert counted == [numbered(number, 1_000) for number in range(30)]
            assert channel.stream_unary(path("Sum"))(iter((b"a", b"bc")), timeout=20) == COUNT.pack(2, 3)
            assert converse(channel) == [numbered(number, 1_000) for number in range(50)]

    await asyncio.to_thread(play)


@within(40)
async def test_a_blocking_client_is_told_of_deadlines_and_cancels(address: str, probe: Probe) -> None:
    def play() -> None:
        channel: Any
        with open_blocking_channel(address) as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(path("Wait"))(b"", timeout=0.3)
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            waiting = channel.unary_unary(path("Wait")).future(b"")
            asyncio.run_coroutine_threadsafe(probe.begun.get(), loop).result(20)
            waiting.cancel()

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(play)
    for _ in range(2):
        assert await probe.ended.get() == "cancelled"


@pytest.mark.parametrize("size", [0, 10, 10_000, 3 << 20])
@within(40)
async def test_a_client_that_compresses_by_gzip_is_understood(address: str, size: int) -> None:
    def play() -> None:
        channel: Any
        with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
            assert channel.unary_unary(path("Echo"))(b"x" * size, timeout=20) == b"x" * size
            said = [numbered(number, 4 + size) for number in range(3)]
            assert list(channel.stream_stream(path("Converse"))(iter(said), timeout=20)) == said

    await asyncio.to_thread(play)


@within(40)
async def test_a_client_that_compresses_otherwise_is_told(address: str) -> None:
    def play() -> None:
        channel: Any
        with grpc.insecure_channel(address, compression=grpc.Compression.Deflate) as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(path("Echo"))(b"x" * 10_000, timeout=20)
            call: Any = error.value
            assert call.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "gzip" in call.details()

    await asyncio.to_thread(play)


@within(40)
async def test_a_server_does_not_compress_for_who_could_not_read_it(our_ends: Ends, address: str) -> None:
    echo = our_ends.open_channel(address).unary_unary(path("Echo"))
    assert await echo(b"x" * 10_000, timeout=20) == b"x" * 10_000


@within(40)
async def test_health_is_told(address: str) -> None:
    assert await asyncio.to_thread(ask, address) == "SERVING"
    assert await asyncio.to_thread(ask, address, "ready") == "NOT_SERVING"
    assert (await asyncio.to_thread(ask, address, "nobody")).startswith("NOT_FOUND")


@within(40)
async def test_whoever_watches_health_is_told_by_our_channel(our_ends: Ends, address: str) -> None:
    watch = our_ends.open_channel(address).unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    told = watch(HealthCheckRequest(service="ready"))
    assert (await told.read()).status == HealthCheckResponse.NOT_SERVING
    told.cancel()


@within(40)
async def test_reflection_tells_services_and_messages(address: str) -> None:
    def play() -> tuple[set[str], list[str]]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            found = DescriptorPool(database).FindServiceByName("grpc.health.v1.Health")
            return set(database.get_services()), [method.name for method in found.methods]

    names, methods = await asyncio.to_thread(play)
    versions = {f"grpc.reflection.{version}.ServerReflection" for version in ("v1", "v1alpha")}
    assert names == {"test.Probe", "grpc.health.v1.Health", *versions}
    assert {"Check", "Watch"} <= set(methods)
