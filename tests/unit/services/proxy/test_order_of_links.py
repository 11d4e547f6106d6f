"""What a client says on several links of a connection is heard in the order in which it was said.

A discharge that is heard before what was said before it commits a transaction without its messages.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from tests.amqp import codec
from tests.amqp.codec import composite, performative
from tests.amqp.raw_client import RawClient, credit
from tests.amqp.stub_brokers import StubSession, StubTransaction
from tests.amqp.stub_proxy import serving

SENDER, COORDINATOR, RECEIVER = 0, 1, 2
MESSAGE = codec.message(b"body")


class Recorded(StubTransaction):
    """Says in the history of all what is done in it, under its number."""

    def __init__(self, history: list[str], number: int) -> None:
        super().__init__()
        self._history = history
        self._number = number

    async def publish(self, routing_key: str, messages: Sequence[Any], *, exchange: str = "") -> Confirmation:
        self._history.append(f"publish in {self._number}")
        return await super().publish(routing_key, messages, exchange=exchange)

    async def accept_deliveries(self, *given: Any) -> Confirmation:
        self._history.append(f"accept in {self._number}")
        return await super().accept_deliveries(*given)

    async def commit(self) -> None:
        self._history.append(f"commit {self._number}")
        await super().commit()


class RecordingSession(StubSession):
    """Numbers its transactions from 1 on."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[str] = []
        self._begun = 0

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> StubTransaction:
        self._begun += 1
        return Recorded(self.history, self._begun)


@pytest.fixture
def session() -> RecordingSession:
    return RecordingSession()


@pytest.fixture
async def client(session: RecordingSession) -> AsyncIterator[RawClient]:
    """With a link to send on and one to the coordinator."""
    async with serving(session=session) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", SENDER)
        await client.attach_coordinator(COORDINATOR)
        yield client


class OneWrite:
    """Frames that reach the proxy in one piece."""

    def __init__(self, client: RawClient, first_delivery: int) -> None:
        self._client = client
        self._next = first_delivery
        self._frames: list[bytes] = []

    def _transfer(self, handle: int, payload: bytes, **fields: Any) -> int:
        number = self._next
        self._next += 1
        given = {"delivery_id": number, "delivery_tag": codec.binary(b"%d" % number), "message_format": 0}
        self._frames.append(performative("transfer", 0, payload, handle=handle, **given, **fields))
        return number

    def declare(self) -> int:
        return self._transfer(COORDINATOR, codec.request(composite("declare")))

    def publish(self, transaction: bytes) -> int:
        return self._transfer(SENDER, MESSAGE, state=in_transaction(transaction))

    def accept(self, delivery: int, transaction: bytes) -> None:
        state = in_transaction(transaction, composite("accepted"))
        self._frames.append(
            performative("disposition", 0, b"", role=True, first=delivery, settled=True, state=state)
        )

    def discharge(self, transaction: bytes) -> int:
        body = composite("discharge", txn_id=codec.binary(transaction), fail=False)
        return self._transfer(COORDINATOR, codec.request(body))

    def send(self) -> None:
        self._client.send(*self._frames)


def in_transaction(transaction: bytes, outcome: bytes | None = None) -> bytes:
    return composite("transactional_state", txn_id=codec.binary(transaction), outcome=outcome)


async def test_a_discharge_behind_a_declare_and_a_transfer_is_the_last(
    client: RawClient, session: RecordingSession
) -> None:
    transaction = await client.declare(COORDINATOR)
    said = OneWrite(client, 1)
    declared, published, discharged = said.declare(), said.publish(transaction), said.discharge(transaction)
    said.send()
    assert (await client.outcome_of(published)).name == "transactional_state"
    assert (await client.outcome_of(discharged)).name == "accepted"
    assert (await client.outcome_of(declared)).name == "declared"
    assert session.history == ["publish in 1", "commit 1"]


async def test_transactions_that_are_ended_in_one_go_keep_what_was_said_in_each(
    client: RawClient, session: RecordingSession
) -> None:
    first, second = await client.declare(COORDINATOR), await client.declare(COORDINATOR)
    said = OneWrite(client, 2)
    numbers = []
    for transaction in (first, second):
        numbers += [said.publish(transaction), said.discharge(transaction)]
    said.send()
    names = [(await client.outcome_of(number)).name for number in numbers]
    assert names == ["transactional_state", "accepted"] * 2
    assert sorted(session.history) == ["commit 1", "commit 2", "publish in 1", "publish in 2"]
    for number in (1, 2):
        assert session.history.index(f"publish in {number}") < session.history.index(f"commit {number}")


async def test_an_accept_before_a_discharge_is_part_of_it(
    client: RawClient, session: RecordingSession
) -> None:
    await client.attach_receiver("receiver", "queue", RECEIVER)
    client.send(credit(RECEIVER, 1))
    delivered = (await client.expect("transfer"))["delivery_id"]
    transaction = await client.declare(COORDINATOR)
    said = OneWrite(client, 1)
    said.declare()
    said.accept(delivered, transaction)
    discharged = said.discharge(transaction)
    said.send()
    assert (await client.outcome_of(discharged)).name == "accepted"
    assert session.history == ["accept in 1", "commit 1"]
