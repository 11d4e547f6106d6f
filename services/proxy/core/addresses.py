"""Addresses: what a client writes into a source, a target or `to`, and which node of Lockstep that is.

Law: the same text and capabilities always name the same node; nothing here asks anybody.

    orders                     the queue, or else the exchange, of that name
    prices/eu.paris            the queue of that name, or else the exchange `prices` with the routing key `eu.paris`
    queue://orders             the queue (or with the capability `queue`)
    topic://prices/eu.*        the exchange and key (or with the capability `topic`)
    temporary-queue:..., temporary-topic:...    what a dynamic source or target was given
"""

import re
from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from lockstep.core.errors import ErrorCode, Rejected

QUEUE_PREFIX = "queue://"
TOPIC_PREFIX = "topic://"
TEMPORARY_QUEUE = "temporary-queue:"
TEMPORARY_TOPIC = "temporary-topic:"
TEMPORARY_TOPICS_EXCHANGE = "lockstep.temporary-topics"
"""All temporary topics are keys of this exchange, so that nothing is left behind when their proxy dies."""
SUBSCRIPTION_QUEUE = "subscription:"
SUBSCRIPTIONS_EXCHANGE = "lockstep.subscriptions."
"""With the name of a resource set: an exchange there that nothing is published to. Bindings of durable subscriptions to it say
what these are of, though their topics were deleted."""
CONTAINER_CLAIM = "container:"
"""Exclusive queues whose names say which containers are connected: names are unique in the cluster (DESIGN 2)."""
_QUEUES_OF_PROXIES = TEMPORARY_QUEUE, SUBSCRIPTION_QUEUE, CONTAINER_CLAIM

QUEUE_CAPABILITIES = frozenset({"queue", "temporary-queue"})
TOPIC_CAPABILITIES = frozenset({"topic", "temporary-topic"})
NODE_CAPABILITIES = QUEUE_CAPABILITIES | TOPIC_CAPABILITIES


class NodeKind(Enum):
    """What an address says of its node."""

    ANY = "any"
    QUEUE = "queue"
    TOPIC = "topic"


class Address(NamedTuple):
    """A node. `key` "" and kind TOPIC: everything of the exchange for a subscriber, no key for a publisher."""

    kind: NodeKind
    name: str
    key: str = ""

    @property
    def is_temporary_topic(self) -> bool:
        """It was made for a dynamic source or target, if it is there."""
        return self.key.startswith(TEMPORARY_TOPIC)

    @property
    def is_of_proxies(self) -> bool:
        """Proxies make it for what a client asks for, and not because a client names it."""
        return self.name.startswith(_QUEUES_OF_PROXIES)


_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def has_control_characters(text: str | None) -> bool:
    """Whether it can be no name, address or key."""
    return text is not None and _CONTROL_CHARACTERS.search(text) is not None


def parse_address(text: str, capabilities: Collection[str] = ()) -> Address:
    """The node that `text` names, for a terminus with these capabilities. Raises `Rejected` (INVALID_ARGUMENT) for no address."""
    if has_control_characters(text):
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"a control character in the address {text[:80]!r}")
    if text.startswith(QUEUE_PREFIX):
        return _prefixed(NodeKind.QUEUE, text.removeprefix(QUEUE_PREFIX))
    if text.startswith(TOPIC_PREFIX):
        return _prefixed(NodeKind.TOPIC, text.removeprefix(TOPIC_PREFIX))
    if text.startswith(_QUEUES_OF_PROXIES):
        return Address(NodeKind.QUEUE, text)
    if text.startswith(TEMPORARY_TOPIC):
        return Address(NodeKind.TOPIC, TEMPORARY_TOPICS_EXCHANGE, text)
    if not QUEUE_CAPABILITIES.isdisjoint(capabilities):
        return Address(NodeKind.QUEUE, text)
    if not TOPIC_CAPABILITIES.isdisjoint(capabilities):
        return _topic(text)
    return Address(NodeKind.ANY, text)


def _prefixed(kind: NodeKind, text: str) -> Address:
    """A client that puts our prefixes before names puts them before the names of temporary nodes, too."""
    if text.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC)):
        return parse_address(text)
    return _topic(text) if kind is NodeKind.TOPIC else Address(kind, text)


def _topic(text: str) -> Address:
    name, _, key = text.partition("/")
    return Address(NodeKind.TOPIC, name, key)


def as_topic(address: Address) -> Address:
    """What an address of any kind names if there is no such queue."""
    return _topic(address.name)


def subscription_queue(container: str, subscription: str) -> str:
    """Name of the queue of a durable subscription: of one container, or shared by all ("")."""
    return f"{SUBSCRIPTION_QUEUE}{_escaped(container)}:{_escaped(subscription)}"


def container_claim(container: str) -> str:
    """Name of the queue that whoever connects as the only connection of a container has to own."""
    return CONTAINER_CLAIM + container


def _escaped(text: str) -> str:
    """No colon but in the escapes of colons and backslashes: two pairs never make one name."""
    return text.replace("\\", "\\\\").replace(":", "\\c")
