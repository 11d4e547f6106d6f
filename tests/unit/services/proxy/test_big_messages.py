"""A big message of a client is put together while others have their turn, and nothing that its client says overtakes it."""

import asyncio
from time import thread_time

import pytest

from lockstep.runtime.big_bytes import BIG_BYTES
from services.proxy.settings import ProxyLimits
from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import RawClient, attach_sender
from tests.amqp.stub_proxy import serving
from tests.unit.services.proxy.test_order_of_links import RecordingSession, in_transaction
from tests.unit.services.proxy.test_steps import Client, having

MIB = 1 << 20
PART_BYTES = 100_000
BIG = bytes(range(251)) * (BIG_BYTES // 251 + 1)
STEP_SECONDS = 0.02
"""Of processor time."""


def transfer(message: bytes, number: int = 0, handle: int = 0, **fields: object) -> bytes:
    """Of one delivery, in as many frames as it takes."""
    frames = []
    for at in range(0, len(message), PART_BYTES):
        given = {"handle": handle, "more": at + PART_BYTES < len(message), **fields}
        if not at:
            given |= {"delivery_id": number, "delivery_tag": codec.binary(b"%d" % number)}
        frames.append(performative("transfer", 0, message[at : at + PART_BYTES], **given))
    return b"".join(frames)


SECTIONS = {
    "data": codec.message(BIG),
    "text": codec.described(codec.ulong(0x77), codec.string("x" * len(BIG))),
    "behind much else": codec.message(
        BIG,
        codec.described(
            codec.ulong(0x74), codec.mapping(codec.string("key"), codec.string("y" * 2 * PART_BYTES))
        ),
    ),
    "of two": codec.message(BIG[:-1]) + codec.message(b"z"),
}


@pytest.mark.parametrize("name", SECTIONS)
async def test_a_big_message_keeps_its_place_and_is_whole(name: str) -> None:
    client = await having(attach_sender("sender", "q"))
    small, last = codec.message(b"before"), codec.message(b"behind")
    await client.say(transfer(small, 0) + transfer(SECTIONS[name], 1) + transfer(last, 2))
    await client.until_done()
    before, big, behind = client.session.batches.published
    assert (before, behind) == (b"before", b"behind")
    expected = {"data": BIG, "text": b"x" * len(BIG), "behind much else": BIG, "of two": SECTIONS["of two"]}
    assert big == expected[name]
    await client.leave()


async def test_no_step_is_long_by_it() -> None:
    client = await having(attach_sender("sender", "q"))
    size = ProxyLimits().message_bytes_max - MIB
    said = transfer(codec.message(bytes(size)))
    saying = asyncio.ensure_future(client.say(said))
    longest = 0.0
    while not saying.done() or not client.transport.is_read:
        before = thread_time()
        await asyncio.sleep(0)
        longest = max(longest, thread_time() - before)
    await client.until_done()
    assert [len(body) for body in client.session.batches.published] == [size]
    assert longest < STEP_SECONDS
    await client.leave()


async def amid(client: Client) -> None:
    """All of a big message has come, and it is not put together."""
    await client.say(transfer(codec.message(BIG))[:-PART_BYTES])
    await client.until_done()
    client.socket.data_received(transfer(codec.message(BIG))[-PART_BYTES:])
    assert not client.transport.is_read and not client.session.batches.published


async def test_a_wire_that_is_lost_meanwhile_takes_nothing_back() -> None:
    client = await having(attach_sender("sender", "q"))
    await amid(client)
    await client.leave()
    assert client.session.batches.published == [BIG]


async def test_a_connection_that_the_proxy_ends_meanwhile_publishes_nothing_more() -> None:
    client = await having(attach_sender("sender", "q"))
    await amid(client)
    assert client.socket.connection is not None
    client.socket.connection.close(None)
    await client.leave()
    assert client.session.batches.published == []


async def test_what_is_malformed_is_refused() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue")
        client.send(transfer(b"\xff" * BIG_BYTES))
        assert (await client.outcome_of(0)).name == "rejected"
        client.send(transfer(codec.message(b"next"), 1))
        assert (await client.outcome_of(1)).name == "accepted"


async def test_a_discharge_behind_it_is_the_last() -> None:
    session = RecordingSession()
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue")
        await client.attach_coordinator(1)
        transaction = await client.declare(1)
        discharge = composite("discharge", txn_id=codec.binary(transaction), fail=False)
        client.send(
            transfer(codec.message(BIG), 1, state=in_transaction(transaction))
            + transfer(codec.request(discharge), 2, handle=1)
        )
        assert (await client.outcome_of(1)).name == "transactional_state"
        assert (await client.outcome_of(2)).name == "accepted"
        assert session.history == ["publish in 1", "commit 1"]
