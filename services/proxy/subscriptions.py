"""Subscriptions of exchanges: a queue of each subscriber's own, bound with what he wants.

Law: a durable subscription is one queue, named by its container and link, that is there while nobody listens; a new selector
or topic is a new subscription (JMS 2.0, 8.3.3). Any other queue of a subscription ends with its link.
"""

import uuid
from typing import NamedTuple

from lockstep.core.commands import QueueOptions
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.routing import SELECTOR_ARGUMENT
from services.proxy.core.addresses import TEMPORARY_QUEUE, Address, subscription_queue
from services.proxy.nodes import Nodes


class Wanted(NamedTuple):
    """What a subscriber listens to."""

    topic: Address
    key: str
    """Of the binding."""
    selector: str


async def subscribe(nodes: Nodes, wanted: Wanted) -> str:
    """A queue for one subscriber, as long as he listens; returns its name. Raises `Rejected`."""
    name = f"{TEMPORARY_QUEUE}{uuid.uuid4()}"
    set_name = await nodes.session.set_of_target(wanted.topic.name, "")
    await nodes.declare_own_queue(name, set_name)
    await _bind(nodes, wanted, name)
    return name


async def subscribe_durably(nodes: Nodes, wanted: Wanted, container: str, subscription: str) -> str:
    """The queue of a durable subscription, made or found; returns its name. Raises `Rejected` (LOCKED: somebody listens)."""
    name = subscription_queue(container, subscription)
    found = await find(nodes, name)
    binding = wanted.topic.name, wanted.key, _arguments(wanted)
    if found is not None and found.consumers:
        raise Rejected(ErrorCode.LOCKED, f"subscription {subscription!r} is in use")
    if found is not None and binding not in found.bindings:
        await nodes.session.delete_queue(name)
        found = None
    if found is None:
        set_name = await nodes.session.set_of_target(wanted.topic.name, "")
        await nodes.declare_queue(name, QueueOptions(), set_name)
        await _bind(nodes, wanted, name)
    return name


async def unsubscribe(nodes: Nodes, container: str, subscription: str) -> None:
    """Ends a durable subscription. Raises `Rejected`: NOT_FOUND, IN_USE."""
    await nodes.session.delete_queue(subscription_queue(container, subscription), if_unused=True)


class Found(NamedTuple):
    """A subscription's queue as its set has it."""

    consumers: int
    bindings: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]


async def find(nodes: Nodes, queue: str) -> Found | None:
    """None: there is no such queue."""
    try:
        details = await nodes.session.describe_queue(queue)
    except Rejected as rejected:
        if rejected.code is ErrorCode.NOT_FOUND:
            return None
        raise
    return Found(details.consumers, details.bindings)


async def _bind(nodes: Nodes, wanted: Wanted, queue: str) -> None:
    await nodes.session.bind(wanted.topic.name, queue, wanted.key, _arguments(wanted))


def _arguments(wanted: Wanted) -> tuple[tuple[str, str], ...]:
    return ((SELECTOR_ARGUMENT, wanted.selector),) if wanted.selector else ()
