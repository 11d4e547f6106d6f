"""Transactions with Proton's Python client, step by step: the coordinator's link, posts and retirements (AMQP 1.0, part 4)."""

from typing import Any

from proton import Delivery, Described, Link, Message, Terminus, symbol, ulong
from proton.reactor import LinkOption

from tests.conformance.amqp.proton_client import ProtonClient, Received, Sending

TRANSACTIONAL = 0x34
DECLARE, DISCHARGE = symbol("amqp:declare:list"), symbol("amqp:discharge:list")
DECLARE_CODE, DISCHARGE_CODE = ulong(0x31), ulong(0x32)


class ToCoordinator(LinkOption):
    """The target is a coordinator for local transactions."""

    def apply(self, link: Link) -> None:
        link.target.type = Terminus.COORDINATOR
        link.target.capabilities.put_object(symbol("amqp:local-transactions"))


class Coordinator:
    """A link to the coordinator."""

    def __init__(self, client: ProtonClient, *, is_symbolic: bool = True) -> None:
        self._client = client
        self._declare = DECLARE if is_symbolic else DECLARE_CODE
        self._discharge = DISCHARGE if is_symbolic else DISCHARGE_CODE
        self.sending: Sending = client.sender(None, ToCoordinator())

    def start_declare(self) -> Delivery:
        return self.sending.start(Message(body=Described(self._declare, [None])))

    def declared(self, delivery: Delivery) -> bytes:
        """The name of a transaction, from the answer to its declare."""
        assert self.sending.outcome(delivery) == 0x33
        return bytes(delivery.remote.data[0])  # type: ignore[index]

    def declare(self) -> bytes:
        return self.declared(self.start_declare())

    def start_discharge(self, transaction: bytes, *, is_failed: bool = False) -> Delivery:
        return self.sending.start(Message(body=Described(self._discharge, [transaction, is_failed])))

    def commit(self, transaction: bytes) -> None:
        """Fails if it is not committed."""
        assert self.sending.outcome(self.start_discharge(transaction)) == Delivery.ACCEPTED

    def rollback(self, transaction: bytes) -> None:
        delivery = self.start_discharge(transaction, is_failed=True)
        assert self.sending.outcome(delivery) == Delivery.ACCEPTED

    def refusal(self, delivery: Delivery) -> str:
        """The condition with which a declare or discharge is rejected."""
        assert self.sending.outcome(delivery) == Delivery.REJECTED
        condition = delivery.remote.condition
        assert condition is not None
        return condition.name


def start_post(sending: Sending, transaction: bytes, message: Message | str) -> Delivery:
    """Sends in a transaction, and waits for nothing."""
    delivery = sending.start(message)
    delivery.local.data = [transaction]  # type: ignore[list-item]
    delivery.update(TRANSACTIONAL)
    return delivery


def post(sending: Sending, transaction: bytes, *messages: Message | str) -> None:
    """Sends in a transaction; returns when all are provisionally accepted."""
    deliveries = [start_post(sending, transaction, message) for message in messages]
    for delivery in deliveries:
        assert sending.outcome(delivery) == TRANSACTIONAL
        name, outcome = delivery.remote.data  # type: ignore[misc]
        assert isinstance(outcome, Described)
        assert (bytes(name), outcome.descriptor) == (transaction, Delivery.ACCEPTED)


def refusal_of_post(sending: Sending, delivery: Delivery, transaction: bytes) -> str:
    """The condition with which a post is refused, in the state of its transaction (4.4.1)."""
    assert sending.outcome(delivery) == TRANSACTIONAL
    name, outcome = delivery.remote.data  # type: ignore[misc]
    assert isinstance(outcome, Described)
    assert (bytes(name), outcome.descriptor) == (transaction, Delivery.REJECTED)
    value: Any = outcome.value
    return str(value[0].value[0])


def retire(
    received: Received, transaction: bytes, state: int = Delivery.ACCEPTED, *, is_settled: bool = False
) -> None:
    """Says an outcome in a transaction."""
    received.delivery.local.data = [transaction, Described(ulong(state), [])]  # type: ignore[list-item]
    received.delivery.update(TRANSACTIONAL)
    if is_settled:
        received.delivery.settle()
