"""Nodes: which set an address leads to, and making what is not there yet.

Law: names decide (the directory). What was found is remembered until its set says that it is gone; what a policy allows is
made once, whoever asks for it at the same time.
"""

import asyncio
import uuid
import zlib
from collections.abc import Collection
from typing import NamedTuple

from lockstep.client.client import Client
from lockstep.client.command_batches import CommandBatches
from lockstep.client.session import Session
from lockstep.client.set_session import SetSession
from lockstep.core.commands import QueueOptions
from lockstep.core.errors import ErrorCode, Rejected
from services.proxy.core.addresses import (
    NODE_CAPABILITIES,
    TEMPORARY_QUEUE,
    TEMPORARY_TOPIC,
    TEMPORARY_TOPICS_EXCHANGE,
    TOPIC_CAPABILITIES,
    Address,
    NodeKind,
    as_topic,
    parse_address,
)
from services.proxy.selector_turns import SelectorTurns

SETS_SECONDS = 5.0
"""How old the list of sets may be by which a new node's set is chosen."""
TARGETS_KEPT = 10_000
"""Addresses whose targets are remembered: a client may name any number."""
REMEMBERED_CHARACTERS_MAX = 1_000
"""Of an address that is remembered: with names and keys of 255 bytes none is longer that can be published to."""


class Target(NamedTuple):
    """Where messages go: an exchange ("": the default one) and key, in a set."""

    exchange: str
    routing_key: str
    session: SetSession
    batches: CommandBatches


class Nodes:
    """Lives as long as its worker."""

    def __init__(
        self, client: Client, session: Session, *, may_create_queues: bool, may_create_topics: bool
    ) -> None:
        self._client = client
        self.session = session
        self._may_create_queues = may_create_queues
        self._may_create_topics = may_create_topics
        self.selectors = SelectorTurns()
        self._targets: dict[tuple[str, frozenset[str]], Target] = {}
        self._ended: dict[str, None] = {}
        """Temporary nodes that were deleted, or are being: the directory may have them for a moment longer. None comes again."""
        self._sets: tuple[str, ...] = ()
        self._sets_at = -SETS_SECONDS

    # --- where messages go ---

    def known_target(self, text: str, capabilities: frozenset[str] = frozenset()) -> Target | None:
        """The target of an address that was asked for before."""
        return self._targets.get((text, capabilities))

    async def target(self, text: str, capabilities: frozenset[str] = frozenset()) -> Target:
        """Where messages to an address go. Raises `Rejected`: NOT_FOUND, UNAVAILABLE."""
        capabilities &= NODE_CAPABILITIES
        known = self._targets.get((text, capabilities))
        if known is None:
            address = parse_address(text, capabilities)
            known = await self._find_target(address)
            # It may have been deleted meanwhile, and is not remembered then.
            self._check_not_ended(address)
            if len(text) <= REMEMBERED_CHARACTERS_MAX:
                if len(self._targets) >= TARGETS_KEPT:
                    self._targets.clear()
                self._targets[text, capabilities] = known
        return known

    def forget_target(self, target: Target) -> None:
        """Its set says that it is not there."""
        self.session.forget_target(target.exchange, target.routing_key)
        self._targets = {key: found for key, found in self._targets.items() if found != target}

    def _check_not_ended(self, address: Address) -> None:
        """Raises `Rejected` for a temporary node that was deleted."""
        if address.name in self._ended or address.key in self._ended:
            raise Rejected(ErrorCode.NOT_FOUND, f"{address.key or address.name} is deleted")

    async def _find_target(self, address: Address) -> Target:
        self._check_not_ended(address)
        if address.kind is not NodeKind.TOPIC:
            try:
                place = await self.session.of_target("", address.name)
                return Target("", address.name, *place)
            except Rejected as rejected:
                if rejected.code is not ErrorCode.NOT_FOUND:
                    raise
                if address.kind is NodeKind.QUEUE:
                    if address.is_of_proxies:
                        raise
                    await self.create_queue(address.name, rejected)
                    return Target("", address.name, *await self.session.of_target("", address.name))
        topic = address if address.kind is NodeKind.TOPIC else as_topic(address)
        if topic.is_temporary_topic:
            # A queue of its name, which nothing is published to, says that it is there.
            await self.session.of_target("", topic.key)
        try:
            if not topic.name:
                # To the brokers that is the default exchange, whose keys are queues.
                raise Rejected(
                    ErrorCode.NOT_FOUND, f"{address.name or topic.key!r} is no topic: it has no name"
                )
            place = await self.session.of_target(topic.name, topic.key)
        except Rejected as rejected:
            if rejected.code is not ErrorCode.NOT_FOUND:
                raise
            if address.kind is NodeKind.ANY:
                await self.create_queue(address.name, rejected)
                return Target("", address.name, *await self.session.of_target("", address.name))
            await self.create_topic(topic.name, rejected)
            place = await self.session.of_target(topic.name, topic.key)
        return Target(topic.name, topic.key, *place)

    # --- where messages come from ---

    async def source(self, address: Address) -> Address:
        """The queue (kind QUEUE) or exchange (kind TOPIC) that an address names, made if need be. Raises `Rejected`."""
        target = await self._find_target(address)
        if target.exchange:
            return Address(NodeKind.TOPIC, target.exchange, target.routing_key)
        return Address(NodeKind.QUEUE, target.routing_key)

    async def place_of_queue(self, name: str) -> tuple[SetSession, CommandBatches]:
        """The session in the set of a queue. Raises `Rejected`."""
        return await self.session.of_target("", name)

    # --- making nodes ---

    async def create_queue(self, name: str, missing: Rejected) -> None:
        """Declares a durable queue where the policy allows it; raises `missing` where it does not."""
        if not self._may_create_queues or not name:
            raise missing
        await self.declare_queue(name, QueueOptions())

    async def create_topic(self, name: str, missing: Rejected) -> None:
        """Declares a durable topic exchange where the policy allows it; raises `missing` where it does not."""
        is_ours = name == TEMPORARY_TOPICS_EXCHANGE
        if not (self._may_create_topics or is_ours) or not name:
            raise missing
        try:
            kind = "direct" if is_ours else "topic"
            await self.session.declare_exchange(name, kind, set_name=await self._set_for(name))
        except Rejected as rejected:
            if rejected.code is not ErrorCode.ALREADY_EXISTS:
                raise

    async def declare_queue(self, name: str, options: QueueOptions, set_name: str = "") -> None:
        """Declares a queue, in a set that its name decides unless told otherwise; somebody else may do so at the same time."""
        try:
            await self.session.declare_queue(name, options, set_name=set_name or await self._set_for(name))
        except Rejected as rejected:
            if rejected.code is not ErrorCode.ALREADY_EXISTS:
                raise

    async def declare_own_queue(self, name: str, set_name: str = "") -> None:
        """Declares a queue that ends with this worker's session at the latest, in a set that its name decides unless told
        otherwise. Raises `Rejected` if another session has it."""
        options = QueueOptions(is_durable=False, is_exclusive=True)
        try:
            await self.session.declare_queue(name, options, set_name=set_name or await self._set_for(name))
        except Rejected as rejected:
            if rejected.code is ErrorCode.ALREADY_EXISTS:
                self.session.forget_target("", name)
            raise

    async def delete_queue(self, name: str) -> None:
        """Deletes a queue; one that is not there is deleted. Raises `Rejected`."""
        try:
            await self.session.delete_queue(name)
        except Rejected as rejected:
            if rejected.code is not ErrorCode.NOT_FOUND:
                raise

    async def create_temporary(self, capabilities: Collection[str]) -> str:
        """Makes a temporary node of the kind that the capabilities name; returns its address."""
        kind = TEMPORARY_QUEUE if TOPIC_CAPABILITIES.isdisjoint(capabilities) else TEMPORARY_TOPIC
        name = f"{kind}{uuid.uuid4()}"
        await self.declare_own_queue(name)
        return name

    async def delete_temporary(self, name: str) -> None:
        """Deletes a temporary node."""
        self._targets = {key: found for key, found in self._targets.items() if name not in (*key, *found[:2])}
        if len(self._ended) >= TARGETS_KEPT:
            del self._ended[next(iter(self._ended))]
        self._ended[name] = None
        await self.delete_queue(name)

    async def _set_for(self, name: str) -> str:
        """One of the sets, by the name alone; they have to be asked for now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._sets_at > SETS_SECONDS:
            status = await self._client.administration.status()
            self._sets = tuple(sorted(one.name for one in status.view.sets))
            self._sets_at = now
        if not self._sets:
            raise Rejected(ErrorCode.UNKNOWN_SET, "the cluster has no resource set yet")
        return self._sets[zlib.crc32(name.encode()) % len(self._sets)]
