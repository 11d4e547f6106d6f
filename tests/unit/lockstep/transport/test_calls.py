"""The four kinds of calls, with handlers that read and write and with those that iterate and yield."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from lockstep.transport.server import bind_all
from tests.unit.lockstep.transport.ends import Ends, within
from tests.unit.lockstep.transport.probe_service import COUNT, Probe, numbered, path, service, unary


@within(30)
async def test_one_request_has_one_answer(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    echo = channel.unary_unary(path("Echo"))
    assert await echo(b"once") == b"once"
    assert await echo(b"") == b""
    call = echo(b"twice", timeout=30)
    assert await call == b"twice"
    assert await call == b"twice"
    assert call.done() and await call.code() is grpc.StatusCode.OK
    assert not await call.details()


@pytest.mark.parametrize("method", ["Count", "CountYielding"])
@within(30)
async def test_one_request_has_many_answers(ends: Ends, probe: Probe, method: str) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    count = channel.unary_stream(path(method))
    call = count(COUNT.pack(3, 10))
    assert [await call.read() for _ in range(3)] == [numbered(number, 10) for number in range(3)]
    assert await call.read() is grpc.aio.EOF
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert [data async for data in count(COUNT.pack(4, 4))] == [numbered(number, 4) for number in range(4)]
    assert await count(COUNT.pack(0, 0)).read() is grpc.aio.EOF


@pytest.mark.parametrize("method", ["Sum", "SumIterating"])
@within(30)
async def test_many_requests_have_one_answer(ends: Ends, probe: Probe, method: str) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    total = channel.stream_unary(path(method))
    call = total()
    for data in (b"", b"a", b"", b"bc"):
        await call.write(data)
    await call.done_writing()
    assert await call == COUNT.pack(4, 3)
    nothing = total()
    await nothing.done_writing()
    assert await nothing == COUNT.pack(0, 0)


@pytest.mark.parametrize("method", ["Converse", "ConverseYielding"])
@within(30)
async def test_many_requests_have_many_answers(ends: Ends, probe: Probe, method: str) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path(method))()
    for data in (b"first", b"", b"second", b"", b""):
        await call.write(data)
        assert await call.read() == data
    assert not call.done()
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert call.done()


@within(30)
async def test_an_answer_may_be_read_before_anything_is_written(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    call = channel.stream_stream(path("Converse"))()
    reading = asyncio.ensure_future(call.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    await call.write(b"late")
    assert await reading == b"late"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@within(30)
async def test_messages_pass_through_serializers(ends: Ends, probe: Probe) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    named: Any = {"request_serializer": str.encode, "response_deserializer": bytes.decode}
    assert await channel.unary_unary(path("Echo"), **named)("größer") == "größer"
    call = channel.stream_stream(path("Converse"), **named)()
    await call.write("kleiner")
    assert await call.read() == "kleiner"
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


@within(30)
async def test_handlers_have_serializers_too(ends: Ends) -> None:
    async def double(number: int, _context: Any) -> int:
        return 2 * number

    handler = unary(double, request_deserializer=int, response_serializer=lambda number: b"%d" % number)
    channel = ends.open_channel((await ends.serve(service(Double=handler))).address)
    assert await channel.unary_unary(path("Double"))(b"21") == b"42"


@within(30)
async def test_one_server_listens_on_a_port_and_on_a_path(ends: Ends, probe: Probe, tmp_path: Path) -> None:
    server = ends.make_server()
    server.add_generic_rpc_handlers((probe.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(f"unix:{tmp_path}/socket")
    await server.start()
    for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"unix:{tmp_path}/socket"):
        assert await ends.open_channel(address).unary_unary(path("Echo"))(b"here", timeout=20) == b"here"


@within(30)
async def test_a_path_that_a_dead_process_left_behind_is_taken(
    ends: Ends, probe: Probe, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/socket")
        dead.listen()
    served = await ends.serve(probe.handlers(), address=f"unix:{tmp_path}/socket")
    assert await ends.open_channel(served.address).unary_unary(path("Echo"))(b"mine") == b"mine"


@within(30)
async def test_a_port_that_is_taken_is_an_error(our_ends: Ends, probe: Probe) -> None:
    served = await our_ends.serve(probe.handlers())
    with pytest.raises(RuntimeError):
        our_ends.make_server().add_insecure_port(served.address)


@within(30)
async def test_channels_end_their_calls_when_they_are_left(ends: Ends, probe: Probe) -> None:
    served = await ends.serve(probe.handlers())
    async with ends.open_channel(served.address) as channel:
        await channel.channel_ready()
        waiting = channel.unary_unary(path("Wait"))(b"")
        await probe.begun.get()
    assert await waiting.code() is grpc.StatusCode.CANCELLED
    assert await probe.ended.get() == "cancelled"
    with pytest.raises(grpc.aio.UsageError):
        await channel.unary_unary(path("Echo"))(b"late")


@within(30)
async def test_metadata_may_be_whatever_a_library_lets_its_user_say(ends: Ends, probe: Probe) -> None:
    """White space around values, a second name of the host: other calls of the connection never suffer for it."""
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    other = channel.stream_stream(path("Converse"))()
    await other.write(b"before")
    assert await other.read() == b"before"
    for pair in (("token", " secret "), ("token", " "), ("host", "elsewhere"), ("empty", "")):
        assert await channel.unary_unary(path("Echo"))(b"x", metadata=(pair,)) == b"x"
    await other.write(b"after")
    assert await other.read() == b"after"
    other.cancel()


@within(30)
async def test_a_path_is_taken_from_a_socket_and_from_no_other_file(our_ends: Ends, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(RuntimeError, match="failed to bind"):
        our_ends.make_server().add_insecure_port(f"unix:{file}")
    assert file.read_text() == "precious"


@within(30)
async def test_all_addresses_of_both_kinds_may_be_asked_for_as_one(our_ends: Ends, probe: Probe) -> None:
    """As gRPC's servers take `[::]`: also where IPv6 is off."""
    served = await our_ends.serve(probe.handlers(), address="[::]:0")
    assert await our_ends.open_channel(served.address).unary_unary(path("Echo"))(b"x") == b"x"
    beside = await our_ends.serve(probe.handlers(), address=":0")
    assert await our_ends.open_channel(beside.address).unary_unary(path("Echo"))(b"x") == b"x"


def test_an_address_that_this_machine_does_not_have_hides_no_other_one() -> None:
    """A name may have one of IPv6 where IPv6 is off."""
    missing = (socket.AF_INET6, ("2001:db8::1", 0, 0, 0))
    (bound,) = bind_all([missing, (socket.AF_INET, ("127.0.0.1", 0))], 0)
    with bound:
        port = bound.getsockname()[1]
        assert port
        with pytest.raises(OSError, match="already in use"):
            bind_all([missing, (socket.AF_INET, ("127.0.0.1", 0))], port)
    with pytest.raises(OSError):
        bind_all([missing], 0)


@within(30)
async def test_who_writes_behind_the_end_of_his_messages_harms_no_other_call(
    ends: Ends, probe: Probe
) -> None:
    channel = ends.open_channel((await ends.serve(probe.handlers())).address)
    other, call = (channel.stream_stream(path("Converse"))() for _ in range(2))
    for each in (other, call):
        await each.write(b"before")
        assert await each.read() == b"before"
    await call.done_writing()
    with pytest.raises(asyncio.InvalidStateError):
        await call.write(b"after")
    await other.write(b"after")
    assert await other.read() == b"after"
    other.cancel()
