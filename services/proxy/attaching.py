"""Attaching links: from what a client's source or target says to a link of ours (AMQP 1.0, 2.6.3, 3.5).

Law: a link is answered when its node is known and made if need be; what cannot be is refused with a reason, and nothing that
was made for it stays.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

from proton import Link, Receiver, Sender, Terminus

from lockstep.core.errors import ErrorCode, Rejected
from services.proxy import outgoing_link
from services.proxy.client_deliveries import Source
from services.proxy.core.addresses import (
    TEMPORARY_QUEUE,
    TEMPORARY_TOPICS_EXCHANGE,
    Address,
    NodeKind,
    parse_address,
    subscription_queue,
)
from services.proxy.incoming_link import IncomingLink
from services.proxy.incoming_link import Owner as IncomingOwner
from services.proxy.nodes import Nodes
from services.proxy.outgoing_link import OutgoingLink
from services.proxy.security.users import Action
from services.proxy.settings import ProxyLimits
from services.proxy.subscriptions import Wanted, find, subscribe, subscribe_durably, unsubscribe
from services.proxy.termini import answer_source, answer_target, capabilities_of, filters_of, say_back

_ALL_KEYS = "#"
TEMPORARY = "temporary"
"""What permission to create is asked for where a client wants a dynamic node."""


def asks_for_subscription(link: Link) -> bool:
    """Whether a client's link may be a durable subscription, which ends when that is closed, whoever made it."""
    source = link.remote_source
    return isinstance(link, Sender) and (
        source.type != Terminus.SOURCE or source.durability != Terminus.NONDURABLE
    )


class Owner(IncomingOwner, outgoing_link.Owner, Protocol):
    """What attaching needs of the connection."""

    temporary: dict[str, None]

    @property
    def container(self) -> str: ...
    def check(self, action: Action, resource: str) -> None: ...


class Attaching:
    """Lives as long as its connection."""

    def __init__(self, owner: Owner, nodes: Nodes, limits: ProxyLimits) -> None:
        self._owner = owner
        self._nodes = nodes
        self._limits = limits
        self._own_nodes: dict[Link, str] = {}
        """Nodes that end with their link: dynamic ones, and the queues of subscriptions."""
        self._durable: dict[Link, str] = {}
        """Links of durable subscriptions, by the subscription's name."""

    async def attach(self, link: Link) -> IncomingLink | OutgoingLink:
        """Makes the link's node ready and says its termini back, for the caller to open it. Raises `Rejected`, `InDoubt`."""
        link.max_message_size = self._limits.message_bytes_max
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        if isinstance(link, Receiver):
            return await self._attach_incoming(link)
        assert isinstance(link, Sender), "a link has one of two roles"
        return await self._attach_outgoing(link)

    def detached(self, link: Link, is_closed: bool) -> Coroutine[Any, Any, None] | None:
        """The link ended; answers what ends with it, to be run. `is_closed`: for good, which ends a durable subscription."""
        name = self._own_nodes.pop(link, None)
        if name is not None:
            self._owner.temporary.pop(name, None)
            return self._nodes.delete_temporary(name)
        subscription = self._durable.pop(link, None)
        if subscription is not None and is_closed:
            return self._unsubscribe(subscription)
        return None

    async def _unsubscribe(self, subscription: str) -> None:
        """Behind what its link has left: until then that is in use."""
        container = self._owner.container
        await self._owner.returning.over(subscription_queue(container, subscription))
        await unsubscribe(self._nodes, container, subscription)

    # --- the client sends ---

    async def _attach_incoming(self, link: Receiver) -> IncomingLink:
        wanted = link.remote_target
        if wanted.type != Terminus.TARGET:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "an attach without a target")
        capabilities = capabilities_of(wanted)
        address = wanted.address
        target = None
        if address and not wanted.dynamic:
            self._owner.check(Action.PUBLISH, address)
        if wanted.dynamic:
            made = await self._make_temporary(link, capabilities)
            target = await self._nodes.target(made)
            answer_target(link, made)
        else:
            if address:
                target = await self._nodes.target(address, capabilities)
            answer_target(link)
        return IncomingLink(
            self._owner, link, target, self._limits.link_credit, self._limits.message_bytes_max
        )

    async def _make_temporary(self, link: Link, capabilities: frozenset[str]) -> str:
        self._owner.check(Action.CREATE, TEMPORARY)
        name = await self._nodes.create_temporary(capabilities)
        self._own_nodes[link] = name
        self._owner.temporary[name] = None
        return name

    # --- the client receives ---

    async def _attach_outgoing(self, link: Sender) -> OutgoingLink:
        wanted = link.remote_source
        if wanted.type != Terminus.SOURCE:
            return await self._look_up(link)
        capabilities = capabilities_of(wanted)
        if "shared" in capabilities:
            raise Rejected(ErrorCode.NOT_IMPLEMENTED, "shared subscriptions")
        filters = filters_of(wanted)
        if filters.selector:
            await self._nodes.selectors.check(filters.selector)
        is_browser = wanted.distribution_mode == Terminus.DIST_MODE_COPY
        if wanted.dynamic:
            made = await self._make_temporary(link, capabilities)
            answer_source(link, filters.applied, made)
            return await self._consume(link, made, filters.selector, is_browser)
        if not wanted.address:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "a source without an address")
        self._owner.check(Action.BROWSE if is_browser else Action.CONSUME, wanted.address)
        address = await self._nodes.source(parse_address(wanted.address, capabilities))
        answer_source(link, filters.applied)
        if address.kind is NodeKind.QUEUE:
            self._check_owner(address.name)
            return await self._consume(link, address.name, filters.selector, is_browser)
        return await self._subscribe(link, address, filters.key, filters.selector)

    def _check_owner(self, queue: str) -> None:
        """A temporary queue is consumed by the connection that made it: the broker knows only whose proxy that is."""
        if queue.startswith(TEMPORARY_QUEUE) and queue not in self._owner.temporary:
            raise Rejected(ErrorCode.LOCKED, f"{queue} belongs to another connection")

    async def _subscribe(self, link: Sender, topic: Address, key: str | None, selector: str) -> OutgoingLink:
        is_temporary = topic.name == TEMPORARY_TOPICS_EXCHANGE
        wanted = Wanted(topic, key if key is not None else topic.key or _ALL_KEYS, selector)
        if link.remote_source.durability != Terminus.NONDURABLE and not is_temporary:
            queue = await subscribe_durably(self._nodes, wanted, self._owner.container, link.name)
            self._durable[link] = link.name
            link.source.durability = link.remote_source.durability
            # It ends when it is closed, whatever policy was asked for.
            link.source.expiry_policy = Terminus.EXPIRE_NEVER
            return await self._consume(link, queue, "", is_browser=False, is_exclusive=True)
        queue = await subscribe(self._nodes, wanted)
        self._own_nodes[link] = queue
        self._owner.temporary[queue] = None
        return await self._consume(link, queue, "", is_browser=False)

    async def _look_up(self, link: Sender) -> OutgoingLink:
        """An attach without a source asks for the durable subscription of its name, as unsubscribing does."""
        queue = subscription_queue(self._owner.container, link.name)
        found = await find(self._nodes, queue)
        if found is None:
            raise Rejected(ErrorCode.NOT_FOUND, f"no subscription {link.name!r} of {self._owner.container!r}")
        say_back(link.target, link.remote_target)
        link.source.type = Terminus.SOURCE
        link.source.address = found.bindings[0][0] if found.bindings else queue
        link.source.durability = Terminus.DELIVERIES
        link.source.expiry_policy = Terminus.EXPIRE_NEVER
        self._durable[link] = link.name
        return await self._consume(link, queue, "", is_browser=True)

    async def _consume(
        self, link: Sender, queue: str, selector: str, is_browser: bool, is_exclusive: bool = False
    ) -> OutgoingLink:
        session, batches = await self._nodes.place_of_queue(queue)
        await self._owner.returning.over(queue)
        source = Source(queue, session, batches, selector, is_browser, is_exclusive)
        is_presettled = link.remote_snd_settle_mode == Link.SND_SETTLED
        return OutgoingLink(self._owner, link, source, self._limits, is_presettled=is_presettled)
