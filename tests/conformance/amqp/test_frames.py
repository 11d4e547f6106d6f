"""Frames that engines do not send: headers, sizes, orders, channels and handles (AMQP 1.0, part 2).

Where the proxy decides, the standard condition; where the engine under it does, only that this connection ends and others go on.
"""

import asyncio
import uuid

import pytest

from tests.amqp import codec
from tests.amqp.codec import AMQP_HEADER, SASL_HEADER, frame, performative
from tests.amqp.raw_client import RawClient, attach_receiver, attach_sender, begin, credit
from tests.conformance.amqp.cluster import AmqpCluster

OPEN = performative("open", container_id="frames")


@pytest.fixture
def address(amqp: AmqpCluster) -> str:
    return f"127.0.0.1:{amqp.port}"


@pytest.fixture
def queue() -> str:
    return f"frames-{uuid.uuid4()}"


@pytest.fixture
def strict(amqp: AmqpCluster) -> str:
    return f"127.0.0.1:{amqp.strict_port}"


async def _goes_on(address: str) -> None:
    """Another connection is served."""
    async with await RawClient.begun(address) as other:
        other.say("close")
        await other.expect("close")


async def _end_of(address: str, *data: bytes) -> str | None:
    """The condition with which a connection ends, on which this is sent."""
    async with await RawClient.connected(address) as client:
        client.send(*data)
        try:
            await client.expect_header()
        except asyncio.IncompleteReadError:
            return None
        condition = await client.expect_end()
    await _goes_on(address)
    return condition


async def test_everything_up_to_the_attach_in_one_write(address: str, queue: str) -> None:
    async with await RawClient.connected(address) as client:
        client.send(
            AMQP_HEADER,
            OPEN,
            begin(),
            attach_sender("s", queue),
            attach_receiver("r", queue, 1),
            credit(1, 5),
        )
        await client.expect_header()
        for name in ("open", "begin", "attach", "attach"):
            await client.expect(name)
        number = client.transfer(codec.message(b"one write"))
        assert (await client.outcome_of(number)).name == "accepted"
        assert (await client.expect("transfer")).payload.endswith(b"one write")


async def test_sasl_and_amqp_in_one_write(address: str, queue: str) -> None:
    async with await RawClient.connected(address) as client:
        init = performative("sasl_init", mechanism=codec.Symbol("ANONYMOUS"))
        client.send(SASL_HEADER, init, AMQP_HEADER, OPEN, begin(), attach_sender("s", queue))
        await client.expect_header(SASL_HEADER)
        await client.expect("sasl_mechanisms")
        assert (await client.expect("sasl_outcome"))["code"] == 0
        await client.expect_header()
        for name in ("open", "begin", "attach", "flow"):
            await client.expect(name)


async def test_a_byte_at_a_time(address: str, queue: str) -> None:
    async with await RawClient.connected(address) as client:
        stream = AMQP_HEADER + OPEN + begin() + attach_sender("s", queue)
        for place in range(len(stream)):
            client.send(stream[place : place + 1])
            await asyncio.sleep(0)
        await client.expect_header()
        for name in ("open", "begin", "attach", "flow"):
            await client.expect(name)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x01\x01\x00",
        b"AMQP\x00\x02\x00\x00",
        b"AMQP\x02\x01\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
    ],
)
async def test_other_headers_are_answered_with_the_one_that_is_served(address: str, header: bytes) -> None:
    async with await RawClient.connected(address) as client:
        client.send(header)
        await client.expect_header(SASL_HEADER)
        assert await client.next_frame() is None
    await _goes_on(address)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(b"", doff=1), id="doff 1"),
        pytest.param(frame(b"", doff=0), id="doff 0"),
        pytest.param(frame(b"", doff=9), id="doff beyond the frame"),
        pytest.param(frame(b"", size=7), id="size 7"),
        pytest.param(frame(b"", size=0), id="size 0"),
        pytest.param(frame(b"", size=2**32 - 1), id="size of 4 GiB"),
    ],
)
async def test_malformed_frames_are_framing_errors(address: str, data: bytes) -> None:
    assert await _end_of(address, AMQP_HEADER, OPEN, data) == "amqp:connection:framing-error"


async def test_an_extended_header_and_empty_frames_are_skipped(address: str) -> None:
    async with await RawClient.connected(address) as client:
        empty = frame(b"", doff=4, extended=b"\xff" * 8)
        client.send(
            AMQP_HEADER, OPEN, frame(b""), empty, frame(codec.composite("close"), doff=3, extended=bytes(4))
        )
        await client.expect_header()
        assert await client.expect_end() is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(codec.described(codec.ulong(0x19), codec.sequence())), id="unknown performative"),
        pytest.param(frame(codec.described(codec.ulong(0x10), codec.NULL)), id="no list"),
        pytest.param(frame(codec.sequence()), id="not described"),
        pytest.param(frame(b"\x00"), id="cut off"),
        pytest.param(frame(b"", kind=7) + frame(codec.composite("begin"), kind=7), id="frame type 7"),
    ],
)
async def test_what_is_no_performative_ends_the_connection(address: str, data: bytes) -> None:
    await _end_of(address, AMQP_HEADER, OPEN, data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(attach_sender("s", "q"), id="attach without begin"),
        pytest.param(performative("transfer", 3, b"", handle=0, delivery_id=0), id="transfer without begin"),
        pytest.param(credit(0, 1), id="flow without begin"),
        pytest.param(performative("end"), id="end without begin"),
        pytest.param(begin() + performative("detach", handle=4), id="detach without attach"),
        pytest.param(
            begin() + performative("transfer", 0, b"", handle=4, delivery_id=0), id="transfer without attach"
        ),
        pytest.param(begin() + credit(5, 1), id="flow of no link"),
        pytest.param(begin() + performative("end") + performative("end"), id="two ends"),
        pytest.param(begin() + begin(0, remote_channel=codec.ushort(77)), id="begin that answers nothing"),
    ],
)
async def test_wrong_orders_end_the_connection_with_a_reason(address: str, data: bytes) -> None:
    assert await _end_of(address, AMQP_HEADER, OPEN, data) in (
        *("amqp:not-allowed", "amqp:invalid-field", "amqp:session:window-violation"),
    )


async def test_a_begin_before_the_open(address: str) -> None:
    assert await _end_of(address, AMQP_HEADER, begin() + OPEN) == "amqp:illegal-state"


async def test_a_second_open(address: str) -> None:
    async with await RawClient.opened(address) as client:
        client.send(OPEN)
        assert await client.expect_end() == "amqp:illegal-state"
    await _goes_on(address)


async def test_one_session_on_two_channels(address: str) -> None:
    async with await RawClient.begun(address) as client:
        client.send(begin(1, remote_channel=codec.ushort(0)), performative("end", 1), performative("end"))
        assert await client.expect_end() == "amqp:illegal-state"
    await _goes_on(address)


async def test_a_frame_above_max_frame_size(address: str) -> None:
    """What is behind the size is not read, so the reason may be lost with the connection."""
    data = frame(b"\0" * (128 * 1024 + 1))
    assert await _end_of(address, AMQP_HEADER, OPEN, data) in (None, "amqp:connection:framing-error")


async def test_sessions_on_one_channel_are_limited(address: str) -> None:
    assert await _end_of(address, AMQP_HEADER, OPEN, begin() * 300) == "amqp:illegal-state"


async def test_channel_beyond_channel_max(address: str) -> None:
    assert await _end_of(address, AMQP_HEADER, OPEN, begin(256)) == "amqp:connection:framing-error"


async def test_handle_beyond_handle_max(address: str) -> None:
    data = attach_sender("s", "q", 2**31)
    assert await _end_of(address, AMQP_HEADER, OPEN, begin(), data) == "amqp:connection:framing-error"


async def test_a_transfer_on_a_link_on_which_the_client_receives(address: str, queue: str) -> None:
    async with await RawClient.begun(address) as client:
        await client.attach_receiver("r", queue)
        for number in range(3):
            client.say(
                "transfer",
                0,
                b"x",
                handle=0,
                delivery_id=number,
                delivery_tag=codec.binary(b"t"),
                settled=True,
            )
        client.say("disposition", role=False, first=0, last=2, settled=True)
        assert await client.expect_end() == "amqp:not-allowed"
    await _goes_on(address)


async def test_attach_without_a_name(address: str) -> None:
    data = performative("attach", handle=0, role=False, target=codec.composite("target", address="q"))
    assert await _end_of(address, AMQP_HEADER, OPEN, begin(), data) == "amqp:decode-error"


@pytest.mark.parametrize("name", [b"\xa1\x01\xff", codec.ulong(3), codec.sequence()])
async def test_names_that_are_none(address: str, name: bytes) -> None:
    data = performative(
        "attach", name=name, handle=0, role=False, target=codec.composite("target", address="q")
    )
    await _end_of(address, AMQP_HEADER, OPEN, begin(), data)


async def test_capabilities_of_another_type_are_a_decode_error(address: str) -> None:
    wrong = performative("open", container_id="c", desired_capabilities=codec.ulong(7))
    assert await _end_of(address, AMQP_HEADER, wrong) == "amqp:decode-error"


async def test_links_that_are_refused_and_never_detached_are_limited(address: str) -> None:
    async with await RawClient.begun(address) as client:
        for number in range(8_300):
            client.send(attach_receiver(f"r{number}", "", number))
        assert await client.expect_end(60) == "amqp:resource-limit-exceeded"
    await _goes_on(address)


async def test_frames_after_the_close_are_not_heard(address: str) -> None:
    async with await RawClient.begun(address) as client:
        client.send(performative("close"), begin(1), attach_sender("s", "q", 0, 1))
        await client.expect_end()
    await _goes_on(address)


async def test_end_with_links_attached(address: str, queue: str) -> None:
    async with await RawClient.begun(address) as client:
        await client.attach_receiver("r", queue)
        client.send(attach_sender("s", queue, 1), performative("end"))
        await client.expect("end")
        await client.begin()
        await client.attach_sender("s", queue)


async def test_two_detaches_of_one_link(address: str, queue: str) -> None:
    async with await RawClient.begun(address) as client:
        await client.attach_receiver("r", queue)
        client.send(
            performative("detach", handle=0, closed=True), performative("detach", handle=0, closed=True)
        )
        assert await client.expect_end() == "amqp:invalid-field"
    await _goes_on(address)


@pytest.mark.parametrize(("first", "last"), [(7, 9), (0, 2**31 - 2), (2**32 - 1, 2**32 - 1)])
async def test_dispositions_of_unknown_deliveries_change_nothing(
    address: str, queue: str, first: int, last: int
) -> None:
    async with await RawClient.begun(address) as client:
        client.say(
            "disposition", role=True, first=first, last=last, settled=True, state=codec.composite("accepted")
        )
        await client.attach_sender("s", queue)
        assert (await client.outcome_of(client.transfer(codec.message(b"x")))).name == "accepted"


async def test_a_disposition_of_all_there_could_be(address: str) -> None:
    data = performative("disposition", role=True, first=0, last=2**32 - 1, settled=True)
    await _end_of(address, AMQP_HEADER, OPEN, begin(), data)


async def test_a_client_that_says_nothing_is_dropped(strict: str) -> None:
    async with await RawClient.opened(strict) as client:
        assert await client.expect_end() == "amqp:resource-limit-exceeded"


async def test_a_client_hears_something_as_often_as_it_wants(address: str) -> None:
    async with await RawClient.opened(address, idle_time_out=2000) as client:
        for _ in range(3):
            heard = await client.next_frame(2.0)
            assert heard is not None and heard.name == "empty"
