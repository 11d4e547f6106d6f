"""How big requests may be, by method."""

import importlib
import pkgutil
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

import lockstep.wire.v1
from lockstep.runtime.channels import make_server, open_channel
from lockstep.runtime.request_limits import (
    LIMITS,
    LIST_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    request_bytes_max,
)
from lockstep.runtime.rpc import service


def methods_on_the_wire() -> set[str]:
    """Paths of all methods of all services."""
    paths = set[str]()
    for module in pkgutil.iter_modules(lockstep.wire.v1.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"lockstep.wire.v1.{module.name}").DESCRIPTOR
            for one in file.services_by_name.values():
                paths |= {f"/{one.full_name}/{method.name}" for method in one.methods}
    return paths


def test_every_method_of_the_table_is_on_the_wire() -> None:
    assert set(LIMITS) <= methods_on_the_wire()


def test_what_carries_messages_is_big_and_what_asks_is_small() -> None:
    big = {path for path in methods_on_the_wire() if request_bytes_max(path) == MESSAGE_BYTES_MAX}
    assert big == {
        f"/lockstep.wire.v1.{name}" for name in ("Sessions/Open", "Store/Append", "Transactions/Publish")
    }
    assert request_bytes_max("/lockstep.wire.v1.Cluster/GetStatus") == REQUEST_BYTES_MAX
    assert request_bytes_max("/grpc.health.v1.Health/Check") == REQUEST_BYTES_MAX
    assert request_bytes_max("/nobody/Knows") == REQUEST_BYTES_MAX


async def echo(data: bytes, _context: Any) -> bytes:
    return data


@pytest.fixture
async def channel() -> AsyncIterator[Any]:
    server = make_server()
    method: Any = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (
            service("Cluster", {"GetStatus": method}),
            service("Transactions", {"Publish": method, "Accept": method}),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made = open_channel(f"127.0.0.1:{port}")
    yield made
    await made.close()
    await server.stop(None)


@pytest.mark.parametrize(
    ("method", "limit"),
    [("Cluster/GetStatus", REQUEST_BYTES_MAX), ("Transactions/Accept", LIST_BYTES_MAX)],
)
async def test_a_request_beyond_its_method_s_limit_is_refused_and_logged(
    channel: Any, caplog: pytest.LogCaptureFixture, method: str, limit: int
) -> None:
    call = channel.unary_unary(f"/lockstep.wire.v1.{method}")
    assert len(await call(bytes(limit), timeout=20)) == limit
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(bytes(limit + 1), timeout=20)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.value.details() == f"a message has {limit + 1} bytes, {limit} are allowed"
    assert [text for text in caplog.messages if "limit=message_bytes_max" in text]


async def test_what_carries_messages_takes_big_ones(channel: Any) -> None:
    publish = channel.unary_unary("/lockstep.wire.v1.Transactions/Publish")
    assert len(await publish(bytes(2 * LIST_BYTES_MAX), timeout=20)) == 2 * LIST_BYTES_MAX
