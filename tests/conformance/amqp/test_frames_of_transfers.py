"""Transfers that engines do not send, and transactions in every wrong way (AMQP 1.0, 2.7.5 and part 4)."""

import struct
import uuid

import pytest

from tests.amqp import codec, hostile
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import RawClient, attach_sender, begin, credit
from tests.conformance.amqp.cluster import STRICT_CREDIT, AmqpCluster

COORDINATOR = 9


@pytest.fixture
def address(amqp: AmqpCluster) -> str:
    return f"127.0.0.1:{amqp.port}"


@pytest.fixture
def queue() -> str:
    return f"frames-{uuid.uuid4()}"


def _piece(number: int, payload: bytes, **fields: object) -> bytes:
    given = {"handle": 0, "delivery_id": number, "delivery_tag": codec.binary(b"%d" % number)}
    return performative("transfer", 0, payload, **{**given, **fields})


async def _sender(address: str, queue: str) -> RawClient:
    client = await RawClient.begun(address)
    await client.attach_sender("s", queue)
    return client


async def test_a_message_in_many_frames_behind_an_aborted_one(address: str, queue: str) -> None:
    whole = codec.message(b"0123456789" * 20)
    async with await _sender(address, queue) as client:
        client.send(_piece(0, b"to be", more=True), performative("transfer", handle=0, aborted=True))
        client.send(_piece(1, b"", more=True))
        for place in range(0, len(whole), 3):
            client.say("transfer", 0, whole[place : place + 3], handle=0, more=True)
        client.say("transfer", handle=0)
        assert (await client.outcome_of(1)).name == "accepted"
        await client.attach_receiver("r", queue, 1)
        client.send(credit(1, 10))
        got = (await client.expect("transfer")).payload
        assert got.endswith(b"0123456789")
        assert got.count(b"0123456789") == 20


async def test_more_transfers_than_credit(amqp: AmqpCluster, queue: str) -> None:
    amqp.run(amqp.session.declare_queue(queue, set_name="east"))
    async with await _sender(f"127.0.0.1:{amqp.strict_port}", queue) as client:
        client.send(*(_piece(number, codec.message(b"x")) for number in range(10 * STRICT_CREDIT)))
        assert (await client.expect("detach")).condition == "amqp:link:transfer-limit-exceeded"
        client.say("close")
        await client.expect("close")


async def test_a_transfer_before_the_link_is_attached(address: str, queue: str) -> None:
    async with await RawClient.begun(address) as client:
        client.send(attach_sender("s", queue), _piece(0, codec.message(b"early")))
        assert (await client.expect("attach"))["target"] is None
        assert (await client.expect("detach")).condition == "amqp:link:transfer-limit-exceeded"
        await client.begin(1)


async def test_session_window_is_kept(address: str, queue: str) -> None:
    async with await _sender(address, queue) as client:
        wrong = [_piece(number, b"", more=True) for number in (0, 5)]
        client.send(*wrong)
        assert await client.expect_end() is not None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"\x00\x53\x75",
        b"\x00\x53\x99\x45",
        codec.sequence(),
        hostile.nested_lists(2000),
        b"\xff" * 100,
    ],
)
async def test_payloads_that_are_no_message_are_rejected(address: str, queue: str, payload: bytes) -> None:
    async with await _sender(address, queue) as client:
        client.send(_piece(0, payload))
        state = await client.outcome_of(0)
        assert state.name == "rejected"
        assert codec.named(state["error"])["condition"] == "amqp:decode-error"


# --- transactions ---


async def _coordinated(address: str, queue: str) -> RawClient:
    client = await _sender(address, queue)
    await client.attach_coordinator(COORDINATOR)
    return client


def _condition(state: codec.Composite) -> str:
    assert state.name == "rejected", state
    return str(codec.named(state["error"])["condition"])


@pytest.mark.parametrize("is_symbolic", [False, True])
async def test_descriptors_of_requests_and_states_by_number_and_by_symbol(
    address: str, queue: str, is_symbolic: bool
) -> None:
    def made(name: str, **fields: object) -> bytes:
        return composite(name, descriptor=codec.symbolic(name) if is_symbolic else None, **fields)

    async with await _coordinated(address, queue) as client:
        number = client.transfer(codec.request(made("declare")), COORDINATOR)
        name = codec.binary((await client.outcome_of(number))["txn_id"])
        state = composite("transactional_state", txn_id=name, outcome=made("accepted"))
        number = client.transfer(codec.message(b"posted"), state=state)
        assert (await client.outcome_of(number)).name == "transactional_state"
        number = client.transfer(codec.request(made("discharge", txn_id=name, fail=False)), COORDINATOR)
        assert (await client.outcome_of(number)).name == "accepted"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00\x53\x77",
        codec.request(codec.NULL),
        codec.request(codec.string("declare")),
        codec.request(composite("accepted")),
        codec.request(codec.described(codec.ulong(0x31), codec.mapping())),
        codec.request(codec.described(codec.ulong(0x33), codec.sequence())),
        codec.request(codec.described(codec.double(float("inf")), codec.sequence())),
        codec.request(composite("declare", global_id=codec.ulong(1))),
        codec.request(composite("declare", global_id=codec.sequence(codec.NULL))),
        codec.request(composite("discharge")),
        codec.request(composite("discharge", txn_id="a string", fail=False)),
        codec.request(composite("discharge", txn_id=codec.ulong(1), fail=True)),
        codec.request(hostile.nested_lists(300)),
        codec.request(b"\x00\x44" * 1_500 + b"\x40"),
        codec.request(struct.pack(">BIIB", 0xF0, 5, 2**32 - 1, 0x40)),
        codec.message(b"no request"),
    ],
)
async def test_malformed_requests_are_rejected(address: str, queue: str, payload: bytes) -> None:
    async with await _coordinated(address, queue) as client:
        number = client.transfer(payload, COORDINATOR)
        assert _condition(await client.outcome_of(number)) == "amqp:decode-error"
        await client.declare(COORDINATOR)


async def test_a_request_in_pieces(address: str, queue: str) -> None:
    request = codec.request(composite("declare"))
    async with await _coordinated(address, queue) as client:
        client.send(_piece(0, request[:2], handle=COORDINATOR, more=True))
        for place in range(2, len(request)):
            client.say("transfer", 0, request[place : place + 1], handle=COORDINATOR, more=True)
        client.say("transfer", handle=COORDINATOR)
        assert (await client.outcome_of(0)).name == "declared"


async def test_a_request_without_end(address: str, queue: str) -> None:
    async with await _coordinated(address, queue) as client:
        client.send(_piece(0, b"x" * 3_000, handle=COORDINATOR, more=True))
        client.send(_piece(0, b"x" * 3_000, handle=COORDINATOR, more=True))
        assert (await client.expect("detach")).condition == "amqp:decode-error"


@pytest.mark.parametrize(
    "name",
    [codec.binary(b""), codec.binary(bytes(8)), codec.binary(b"x" * 5_000), codec.NULL, codec.ulong(1)],
)
async def test_posts_in_unknown_transactions_are_rejected(address: str, queue: str, name: bytes) -> None:
    async with await _coordinated(address, queue) as client:
        # Encoded by hand: a null id is a field that is there.
        state = codec.described(codec.ulong(0x34), codec.sequence(name, codec.NULL))
        number = client.transfer(codec.message(b"x"), state=state)
        assert _condition(await client.outcome_of(number)) in (
            "amqp:transaction:unknown-id",
            "amqp:decode-error",
        )
        await client.declare(COORDINATOR)


async def test_a_discharge_twice(address: str, queue: str) -> None:
    async with await _coordinated(address, queue) as client:
        name = await client.declare(COORDINATOR)
        assert (await client.discharge(name, COORDINATOR)).name == "accepted"
        assert _condition(await client.discharge(name, COORDINATOR)) == "amqp:transaction:unknown-id"


async def test_a_settled_declare_ends_its_link_and_begins_nothing(address: str, queue: str) -> None:
    async with await _coordinated(address, queue) as client:
        for _ in range(16):
            client.transfer(codec.request(composite("declare")), COORDINATOR, settled=True)
        assert (await client.expect("detach")).condition == "amqp:not-allowed"


async def test_retiring_in_an_unknown_transaction_frees_the_message(address: str, queue: str) -> None:
    async with await _sender(address, queue) as client:
        await client.outcome_of(client.transfer(codec.message(b"x")))
        await client.attach_receiver("r", queue, 1)
        client.send(credit(1, 1))
        first = await client.expect("transfer")
        state = composite("transactional_state", txn_id=codec.binary(b"?"), outcome=composite("accepted"))
        client.say("disposition", role=True, first=first["delivery_id"], settled=True, state=state)
        client.send(credit(1, 1, 1))
        assert (await client.expect("transfer")).payload == first.payload


async def test_an_outcome_said_twice_before_it_is_confirmed(address: str, queue: str) -> None:
    """The second one must not settle what the first one's confirmation settles."""
    async with await _sender(address, queue) as client:
        for _ in range(50):
            client.transfer(codec.message(b"x"))
        await client.outcome_of(49)
        await client.attach_receiver("r", queue, 1)
        client.send(credit(1, 50))
        numbers = [(await client.expect("transfer"))["delivery_id"] for _ in range(50)]
        accepted = composite("accepted")
        for number in numbers:
            client.say("disposition", role=True, first=number, settled=False, state=accepted)
            client.say("disposition", role=True, first=number, settled=True, state=accepted)
        await client.attach_coordinator(COORDINATOR)
        await client.outcome_of(client.transfer(codec.message(b"and on")))


async def test_attach_with_what_is_not_resumed(address: str, queue: str) -> None:
    unsettled = codec.mapping(codec.binary(b"t"), composite("accepted"))
    async with await RawClient.begun(address) as client:
        client.send(attach_sender("s", queue, unsettled=unsettled, incomplete_unsettled=True))
        await client.expect("attach")
        await client.expect("flow")


async def test_attach_without_source_and_target(address: str) -> None:
    async with await RawClient.begun(address) as client:
        client.send(attach_sender("s", None, source=codec.NULL, target=codec.NULL))
        assert (await client.expect("attach"))["target"] is None
        assert (await client.expect("detach")).condition is not None
        client.say("attach", name="r", handle=1, role=True)
        assert (await client.expect("attach"))["source"] is None
        client.send(begin(1))
        await client.expect("begin")
