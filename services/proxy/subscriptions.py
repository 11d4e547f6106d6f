"""Subscriptions of exchanges: a queue of each subscriber's own, bound with what he wants.

Law: a durable subscription is one queue, named by its container and link, that is there while nobody listens; a new selector
or topic is a new subscription (JMS 2.0, 8.3.3), once it is known that it can be had: whoever is refused keeps what he had. One
whose topic was deleted and made again goes on. So its fingerprint stands where no topic's end takes it away: it is the key of a
binding to an exchange of its set that nothing is published to. Any other queue of a subscription ends with its link.
"""

import asyncio
import contextlib
import hashlib
import uuid
from typing import NamedTuple

from lockstep.core.commands import QueueOptions
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.routing import SELECTOR_ARGUMENT
from services.proxy.core.addresses import (
    SUBSCRIPTIONS_EXCHANGE,
    TEMPORARY_QUEUE,
    Address,
    subscription_queue,
)
from services.proxy.nodes import Nodes

KEY_BYTES_MAX = 255
"""Of a binding, as the brokers have it."""
ARGUMENTS_BYTES_MAX = 4096
"""The same: of its selector, with the name of that argument."""
WAIT_SECONDS = 3.0
"""How long a listener's end is waited for: his proxy may have died, and its session ends after 2 seconds (`worker.SESSION`). And
how long for a name that another set gives back."""
PAUSE_SECONDS = 0.2
"""Between two looks."""


class Wanted(NamedTuple):
    """What a subscriber listens to."""

    topic: Address
    key: str
    """Of the binding."""
    selector: str

    @property
    def fingerprint(self) -> str:
        """Which subscription this is, among all that one name may have had."""
        return hashlib.sha256(repr((self.topic.name, self.key, self.selector)).encode()).hexdigest()


async def subscribe(nodes: Nodes, wanted: Wanted) -> str:
    """A queue for one subscriber, as long as he listens; returns its name. Raises `Rejected`."""
    _check(wanted)
    name = f"{TEMPORARY_QUEUE}{uuid.uuid4()}"
    set_name = await nodes.session.set_of_target(wanted.topic.name, "")
    await nodes.declare_own_queue(name, set_name)
    await _bind(nodes, wanted, name)
    return name


async def subscribe_durably(nodes: Nodes, wanted: Wanted, container: str, subscription: str) -> str:
    """The queue of a durable subscription, made or found; returns its name. Raises `Rejected` (LOCKED, IN_USE: somebody
    listens)."""
    name = subscription_queue(container, subscription)
    found = await _find_unused(nodes, name)
    if found is not None and found.consumers:
        raise Rejected(ErrorCode.LOCKED, f"subscription {subscription!r} is in use")
    if found is not None and not (found.may_be(wanted) and await _go_on(nodes, wanted, name, found)):
        # What is in it goes with it, so the brokers are asked first whether there can be such a binding.
        await nodes.delete_queue(await subscribe(nodes, wanted))
        await nodes.session.delete_queue(name, if_unused=True)
        found = None
    if found is None:
        _check(wanted)
        set_name = await nodes.session.set_of_target(wanted.topic.name, "")
        await _declare(nodes, name, set_name)
        await _bind(nodes, wanted, name, is_durable=True)
    return name


async def unsubscribe(nodes: Nodes, container: str, subscription: str) -> None:
    """Ends a durable subscription. Raises `Rejected`: NOT_FOUND, IN_USE."""
    await nodes.session.delete_queue(subscription_queue(container, subscription), if_unused=True)


class Found(NamedTuple):
    """A subscription's queue as its set has it."""

    consumers: int
    bindings: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...]
    """To topics; none: they were deleted."""
    fingerprints: frozenset[str]
    """None: an older version made it."""

    def may_be(self, wanted: Wanted) -> bool:
        """Whether it is that subscription, as far as it says."""
        is_bound = (wanted.topic.name, wanted.key, _arguments(wanted)) in self.bindings
        return (is_bound or not self.bindings) and (
            wanted.fingerprint in self.fingerprints or not self.fingerprints
        )


async def find(nodes: Nodes, queue: str) -> Found | None:
    """None: there is no such queue."""
    try:
        details = await nodes.session.describe_queue(queue)
    except Rejected as rejected:
        if rejected.code is ErrorCode.NOT_FOUND:
            return None
        raise
    fingerprints = frozenset(key for to, key, _ in details.bindings if to.startswith(SUBSCRIPTIONS_EXCHANGE))
    bindings = tuple(one for one in details.bindings if not one[0].startswith(SUBSCRIPTIONS_EXCHANGE))
    return Found(details.consumers, bindings, fingerprints)


async def _find_unused(nodes: Nodes, queue: str) -> Found | None:
    """As `find`, when nobody listens any more; with its consumers if somebody goes on listening."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        found = await find(nodes, queue)
        if found is None or not found.consumers or asyncio.get_running_loop().time() >= deadline:
            return found
        await asyncio.sleep(PAUSE_SECONDS)


async def _declare(nodes: Nodes, queue: str, set_name: str) -> None:
    """Makes a subscription's queue. Another set that had one of its name gives the name back a moment after that is deleted, and
    is waited for. Raises `Rejected`."""
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while True:
        try:
            await nodes.session.declare_queue(queue, QueueOptions(), set_name=set_name)
            return
        except Rejected as rejected:
            if rejected.code is not ErrorCode.ALREADY_EXISTS or (
                asyncio.get_running_loop().time() >= deadline
            ):
                raise
        await asyncio.sleep(PAUSE_SECONDS)


def _check(wanted: Wanted) -> None:
    """Raises `Rejected` for what no set takes, before anything is made or deleted for it."""
    arguments = [len(text.encode()) for pair in _arguments(wanted) for text in pair]
    for what, size, bytes_max in (
        ("the key of a subscription", len(wanted.key.encode()), KEY_BYTES_MAX),
        ("the selector of a subscription", sum(arguments), ARGUMENTS_BYTES_MAX),
    ):
        if size > bytes_max:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, f"{what} has at most {bytes_max} bytes, not {size}")


async def _bind(nodes: Nodes, wanted: Wanted, queue: str, *, is_durable: bool = False) -> None:
    """Binds a queue that was just made, which does not stay without. Raises `Rejected`."""
    try:
        if is_durable:
            await _leave_fingerprint(nodes, wanted, queue)
        await nodes.session.bind(wanted.topic.name, queue, wanted.key, _arguments(wanted))
    except Rejected:
        with contextlib.suppress(LockstepError):
            await nodes.delete_queue(queue)
        raise


async def _go_on(nodes: Nodes, wanted: Wanted, queue: str, found: Found) -> bool:
    """Has a queue that was found what it needs; False: it cannot be had. Raises `Rejected`."""
    if not found.bindings and not await _bind_again(nodes, wanted, queue):
        return False
    if not found.fingerprints:
        await _leave_fingerprint(nodes, wanted, queue)
    return True


async def _leave_fingerprint(nodes: Nodes, wanted: Wanted, queue: str) -> None:
    """Raises `Rejected`."""
    set_name = await nodes.session.set_of_target("", queue)
    exchange = SUBSCRIPTIONS_EXCHANGE + set_name
    try:
        await nodes.session.bind(exchange, queue, wanted.fingerprint)
    except Rejected as rejected:
        if rejected.code is not ErrorCode.NOT_FOUND:
            raise
        # The first one in its set.
        await nodes.session.declare_exchange(exchange, "direct", set_name=set_name)
        await nodes.session.bind(exchange, queue, wanted.fingerprint)


async def _bind_again(nodes: Nodes, wanted: Wanted, queue: str) -> bool:
    """Binds a queue that nothing binds any more: its topic was deleted, and made again since; or its proxy has died before it was
    bound. What is in it stays. False: that topic is in another set now. Raises `Rejected`."""
    _check(wanted)
    try:
        await nodes.session.bind(wanted.topic.name, queue, wanted.key, _arguments(wanted))
    except Rejected as rejected:
        if rejected.code is not ErrorCode.OTHER_SET:
            raise
        return False
    return True


def _arguments(wanted: Wanted) -> tuple[tuple[str, str], ...]:
    return ((SELECTOR_ARGUMENT, wanted.selector),) if wanted.selector else ()
