"""Health as gRPC has it: over a real server, asked as container engines and orchestrators do."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from lockstep.runtime.channels import make_server
from lockstep.runtime.health import READY, Health
from lockstep.runtime.health_check import ask, main
from lockstep.runtime.ports import choose_ports
from lockstep.runtime.reflection import add_services
from lockstep.runtime.rpc import service


class Readiness:
    is_ready = False


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
async def address(readiness: Readiness) -> AsyncIterator[str]:
    server = make_server()
    server.add_generic_rpc_handlers((Health({READY: lambda: readiness.is_ready}).handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_process_serves_while_what_it_serves_is_not_ready(address: str, readiness: Readiness) -> None:
    assert await asyncio.to_thread(ask, address) == "SERVING"
    assert await asyncio.to_thread(ask, address, READY) == "NOT_SERVING"
    readiness.is_ready = True
    assert await asyncio.to_thread(ask, address, READY) == "SERVING"


async def test_the_exit_status_says_whether_it_serves(address: str) -> None:
    assert await asyncio.to_thread(main, [address]) == 0
    assert await asyncio.to_thread(main, [address, READY]) == 1
    assert await asyncio.to_thread(main, [address, "nobody"]) == 1
    assert await asyncio.to_thread(main, []) == 2


async def test_a_service_is_served_by_its_name_when_the_process_is_ready(readiness: Readiness) -> None:
    """As clients ask that balance their calls over several brokers."""
    server = make_server()
    add_services(server, (service("Transactions", {}),), Health({READY: lambda: readiness.is_ready}))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    name = "lockstep.wire.v1.Transactions"
    try:
        assert await asyncio.to_thread(ask, f"127.0.0.1:{port}", name) == "NOT_SERVING"
        readiness.is_ready = True
        assert await asyncio.to_thread(ask, f"127.0.0.1:{port}", name) == "SERVING"
        assert await asyncio.to_thread(ask, f"127.0.0.1:{port}", "grpc.health.v1.Health") == "SERVING"
        assert (await asyncio.to_thread(ask, f"127.0.0.1:{port}", "nobody")).startswith("NOT_FOUND")
    finally:
        await server.stop(None)


async def test_where_nothing_is_said_of_readiness_what_is_hosted_is_served() -> None:
    server = make_server()
    add_services(server, (service("Coordinator", {}),), Health())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    name = "lockstep.wire.v1.Coordinator"
    assert await asyncio.to_thread(ask, f"127.0.0.1:{port}", name) == "SERVING"
    await server.stop(None)


def test_where_nobody_listens_nobody_serves() -> None:
    (port,) = choose_ports(1)
    assert ask(f"127.0.0.1:{port}").startswith("UNAVAILABLE")


async def test_whoever_watches_is_told_of_each_change(address: str, readiness: Readiness) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        watch: Any = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        told = watch(HealthCheckRequest(service=READY))
        assert (await anext(aiter(told))).status == HealthCheckResponse.NOT_SERVING
        readiness.is_ready = True
        assert (await anext(aiter(told))).status == HealthCheckResponse.SERVING
        told.cancel()
        unknown = watch(HealthCheckRequest(service="nobody"))
        assert (await anext(aiter(unknown))).status == HealthCheckResponse.SERVICE_UNKNOWN
        unknown.cancel()
