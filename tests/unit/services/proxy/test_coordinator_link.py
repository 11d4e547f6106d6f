"""What a link to the coordinator takes and what ends it, as a client of exact frames meets it."""

from typing import Any

import pytest

from lockstep.client.command_batches import Confirmation
from lockstep.core.errors import ErrorCode, Rejected
from services.proxy.core.conditions import (
    DECODE_ERROR,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    ROLLED_BACK,
    UNKNOWN_TRANSACTION,
)
from tests.amqp import codec
from tests.amqp.codec import composite, named
from tests.amqp.raw_client import RawClient
from tests.amqp.stub_brokers import StubSession, StubTransaction
from tests.amqp.stub_proxy import serving

SENDER, COORDINATOR = 0, 1
DECLARE = codec.request(composite("declare"))


def discharge(transaction: bytes) -> bytes:
    return codec.request(composite("discharge", txn_id=codec.binary(transaction), fail=False))


class FullQueue(StubTransaction):
    """A transaction whose messages find no room."""

    async def publish(self, *_: Any, **__: Any) -> Confirmation:
        raise Rejected(ErrorCode.QUEUE_FULL, "the queue is full")


class FullSession(StubSession):
    """Its transactions are those."""

    def transaction(self, *, timeout_ms: int = 0, wide_timeout_ms: int = 0) -> StubTransaction:
        return FullQueue()


def in_transaction(transaction: bytes) -> bytes:
    return composite("transactional_state", txn_id=codec.binary(transaction))


@pytest.mark.parametrize("request_of", [lambda _: DECLARE, discharge, lambda _: b"nothing"])
async def test_a_request_that_is_sent_settled_ends_its_link_and_rolls_back(request_of: Any) -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", SENDER)
        await client.attach_coordinator(COORDINATOR)
        transaction = await client.declare(COORDINATOR)
        client.transfer(request_of(transaction), COORDINATOR, settled=True)
        assert (await client.expect("detach")).condition == NOT_ALLOWED
        posted = client.transfer(codec.message(b"x"), SENDER, state=in_transaction(transaction))
        refused = await client.outcome_of(posted)
        assert named(refused["error"])["condition"] == UNKNOWN_TRANSACTION
        client.say("detach", handle=COORDINATOR, closed=True)
        await client.attach_coordinator(COORDINATOR + 1)
        assert await client.declare(COORDINATOR + 1)


async def test_a_post_that_is_refused_is_answered_in_the_state_of_its_transaction() -> None:
    async with serving(session=FullSession()) as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", SENDER)
        await client.attach_coordinator(COORDINATOR)
        transaction = await client.declare(COORDINATOR)
        posted = client.transfer(codec.message(b"x"), SENDER, state=in_transaction(transaction))
        assert refusal_in(await client.outcome_of(posted), transaction) == (
            RESOURCE_LIMIT,
            "the queue is full",
        )
        ended = await client.discharge(transaction, COORDINATOR)
        error = named(ended["error"])
        assert error["condition"] == ROLLED_BACK and "the queue is full" in error["description"]


async def test_a_post_that_nobody_can_read_is_answered_in_the_state_of_its_transaction() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", SENDER)
        await client.attach_coordinator(COORDINATOR)
        transaction = await client.declare(COORDINATOR)
        posted = client.transfer(b"no message", SENDER, state=in_transaction(transaction))
        condition, _ = refusal_in(await client.outcome_of(posted), transaction)
        assert condition == DECODE_ERROR
        assert (await client.discharge(transaction, COORDINATOR)).name == "rejected"


async def test_a_post_in_an_unknown_transaction_is_refused_without_one() -> None:
    async with serving() as proxy, await RawClient.begun(proxy.address) as client:
        await client.attach_sender("sender", "queue", SENDER)
        posted = client.transfer(codec.message(b"x"), SENDER, state=in_transaction(b"none"))
        outcome = await client.outcome_of(posted)
        assert outcome.name == "rejected"
        assert named(outcome["error"])["condition"] == UNKNOWN_TRANSACTION


def refusal_in(state: codec.Composite, transaction: bytes) -> tuple[str, str]:
    """Condition and words of the outcome in a transactional state of this transaction."""
    assert state.name == "transactional_state"
    assert state["txn_id"] == transaction
    outcome = named(state["outcome"])
    assert outcome.name == "rejected"
    error = named(outcome["error"])
    return str(error["condition"]), error["description"]
