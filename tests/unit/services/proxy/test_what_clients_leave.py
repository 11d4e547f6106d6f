"""What a client names again and again, under other names each time, gathers nowhere."""

import asyncio

from lockstep.core.errors import Rejected
from services.proxy import engine_path_c
from services.proxy.nodes import REMEMBERED_CHARACTERS_MAX, Nodes, Target
from services.proxy.relay_targets import ADDRESSES_KEPT, RelayTargets
from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import attach_receiver, credit
from tests.amqp.stub_brokers import MISSING, StubSession, stub_nodes
from tests.unit.services.proxy.test_steps import Client

PRESETTLED = codec.ubyte(1)
ACQUIRING = codec.mapping(codec.symbol("txn-id"), codec.binary(b"transaction"))


async def test_names_of_links_that_were_refused_and_want_to_acquire() -> None:
    client = Client()
    for number in range(20):
        client.socket.data_received(
            attach_receiver(f"r{number}", MISSING, number, snd_settle_mode=PRESETTLED)
            + attach_receiver(f"s{number}", "", 100 + number, snd_settle_mode=PRESETTLED)
        )
        await client.until_done()
        for handle in number, 100 + number:
            client.socket.data_received(credit(handle, 10, properties=ACQUIRING))
            client.socket.data_received(performative("detach", handle=handle, closed=True))
        await client.until_done()
    assert client.socket.connection is not None
    assert client.socket.connection._links._acquiring == set()
    await client.leave()


async def test_names_of_links_that_are_detached_while_they_wait_for_their_turn() -> None:
    client = Client()
    for number in range(100):
        client.socket.data_received(
            attach_receiver(f"r{number}", "queue", number, snd_settle_mode=PRESETTLED)
            + credit(number, 10, properties=ACQUIRING)
            + performative("detach", handle=number)
        )
    await client.until_done()
    assert client.socket.connection is not None
    assert client.socket.connection._links._acquiring == set()
    await client.leave()


async def test_states_of_transactions_with_annotations() -> None:
    """The engine's path remembers states of all clients together."""
    client = Client()
    await client.say(attach_receiver("r", "queue") + credit(0, 200, incoming_window=1_000))
    await client.until_done()
    engine_path_c._known.clear()
    for number in range(100):
        outcome = composite(
            "modified",
            delivery_failed=True,
            message_annotations=codec.mapping(
                codec.symbol("x-opt-n"), codec.string(f"{number}" + 10_000 * "x")
            ),
        )
        state = composite("transactional_state", txn_id=codec.binary(b"none"), outcome=outcome)
        client.socket.data_received(
            performative("disposition", role=True, first=number, last=number, state=state)
        )
        await asyncio.sleep(0)
    assert sum(map(len, engine_path_c._known)) < 10_000
    await client.leave()


def relay(session: StubSession) -> tuple[Nodes, RelayTargets]:
    nodes = stub_nodes(session)
    return nodes, RelayTargets(nodes, lambda _: None)


async def test_addresses_that_are_none_or_longer_than_any_name() -> None:
    nodes, targets = relay(StubSession())
    for number in range(100):
        assert isinstance(await targets.find(f"{MISSING}{number}"), Rejected)
        assert isinstance(await targets.find(f"{number}" + REMEMBERED_CHARACTERS_MAX * "x"), Target)
    assert not targets._addresses and not nodes._targets
    assert isinstance(await targets.find("queue"), Target)
    assert targets.known("queue") is not None


async def test_addresses_of_one_connection() -> None:
    _, targets = relay(StubSession())
    for number in range(2 * ADDRESSES_KEPT + 1):
        await targets.find(f"q{number}")
    assert len(targets._addresses) == 1


async def test_capabilities_that_say_nothing_of_a_node() -> None:
    nodes = stub_nodes(StubSession())
    for number in range(100):
        await nodes.target("queue", frozenset({"queue", f"x{number}"}))
    assert list(nodes._targets) == [("queue", frozenset({"queue"}))]
