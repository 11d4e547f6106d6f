"""What the links of a connection ask of it: its transactions, addresses and permissions, room for output, the turn's end.

Law: what links have to publish or settle waits for the end of the turn, or for what must not come before it.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from proton import Link

from lockstep.core.errors import ErrorCode, InDoubt, LimitReached, LockstepError, Rejected
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.amqp_transactions import AmqpTransactions
from services.proxy.coordinator_link import Declare
from services.proxy.core.conditions import CONNECTION_FORCED, Condition
from services.proxy.delivery_room import DeliveryRoom
from services.proxy.engine_words import Handle
from services.proxy.input_room import InputRoom
from services.proxy.nodes import Target
from services.proxy.output_room import OutputRoom, Sending
from services.proxy.partial_room import PartialRoom
from services.proxy.relay_targets import RelayTargets
from services.proxy.security.identity import Identity
from services.proxy.security.users import Action
from services.proxy.surroundings import Surroundings

UNSETTLED_ALWAYS_BYTES = 64 * 1024
"""What a connection may have of its worker's room for what is not settled in any case: whoever settles some dozens together, or
takes them in one transaction, would else wait for what others have to settle."""


class Connection(Protocol):
    """What it passes on to the connection."""

    identity: Identity
    container: str

    def wrote(self) -> None: ...
    def close(self, condition: Condition | None, *, is_our_own: bool = False) -> None: ...
    def end_link(self, link: Link, condition: Condition) -> None: ...
    def run(self, work: Coroutine[Any, Any, None]) -> None: ...


class Touched(Protocol):
    """A link with something to publish or settle at the end of the turn."""

    def flush(self) -> None: ...


class LinkOwner:
    """Lives as long as its connection."""

    def __init__(
        self, connection: Connection, worker: Surroundings, room: OutputRoom, input_room: InputRoom
    ) -> None:
        self.temporary: dict[str, None] = {}
        """Addresses of the connection's dynamic nodes."""
        self.reclaims = worker.reclaims
        self.returning = worker.returning
        self.traffic = worker.traffic
        self.deliveries_sent = 0
        """To the client, on all links that there were."""
        self.input_room = input_room
        self.partials = PartialRoom(worker.partials, worker.settings.limits.partial_bytes_max)
        waiting_bytes_max = worker.settings.limits.waiting_bytes_max
        self.deliveries = DeliveryRoom(worker.deliveries, waiting_bytes_max)
        self.rests = DeliveryRoom(worker.deliveries, waiting_bytes_max)
        """For the rest of big messages of which the client has a part."""
        unsettled_bytes_max = worker.settings.limits.unsettled_bytes_max
        self.unsettled = DeliveryRoom(worker.unsettled, unsettled_bytes_max, UNSETTLED_ALWAYS_BYTES)
        """For those that the client has and has not settled, and for outcomes that wait for the end of its transactions."""
        self.transactions = AmqpTransactions(worker.nodes.session, worker.settings.limits)
        self._connection = connection
        self._nodes = worker.nodes
        self._refusals = worker.refusals
        self._permissions = worker.permissions
        self._room = room
        self._relay = RelayTargets(worker.nodes, lambda text: self.check(Action.PUBLISH, text))
        self._touched: dict[Touched, None] = {}

    # --- the connection ---

    @property
    def container(self) -> str:
        """Of the client."""
        return self._connection.container

    def wrote(self) -> None:
        """Something is to be said."""
        self._connection.wrote()

    def end_link(self, link: Link, condition: Condition) -> None:
        """Closes a link with a reason."""
        self._connection.end_link(link, condition)

    def refused(self, limit: str, text: str) -> None:
        """A limit has refused this client something: it is in the log, too."""
        self._refusals.refused(limit, f"{text}, of container {self._connection.container!r}")

    def tell(self, event: str, text: str) -> None:
        """For the log: what any client can cause."""
        self._refusals.seldom(event, f"{text} container={self._connection.container!r}")

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something to its end, even if this connection ends before."""
        self._connection.run(work)

    def give_up(self, error: LockstepError) -> None:
        """Ends the connection: without an answer the client knows that nobody can tell the outcome, and it connects again."""
        known = "in doubt" if isinstance(error, InDoubt) else "not done"
        condition = Condition(CONNECTION_FORCED, f"{known}: {error.message}")
        self._connection.close(condition, is_our_own=True)

    # --- the end of the turn ---

    def touched(self, link: Touched) -> None:
        """It has something to publish, or outcomes to tell."""
        self._touched[link] = None

    def flush_links(self) -> None:
        """Publishes and settles what came in this turn."""
        touched, self._touched = self._touched, {}
        for link in touched:
            link.flush()

    # --- room ---

    def room(self, link: Handle) -> int:
        """Bytes of messages that the engine may be given on a link."""
        return self._room.left(link)

    def given(self, link: Sending, size: int) -> None:
        """The engine was given so many."""
        self._room.given(link, size)

    def held_up(self, link: Sending) -> None:
        """There is no room for what it has to send: it is told when there may be."""
        self._room.hold_up(link)

    # --- addresses ---

    def check(self, action: Action, resource: str) -> None:
        """Raises `Rejected` (UNAUTHORIZED) unless whom the connection speaks for may do that."""
        identity = self._connection.identity
        if not self._permissions.may(identity, action, resource):
            raise Rejected(ErrorCode.UNAUTHORIZED, f"{identity.user!r} may not {action} {resource!r}")

    def known_target(self, text: str) -> Target | None:
        """Of an address that a message on the anonymous relay has named before."""
        return self._relay.known(text)

    def find_target(self, text: str, found: Callable[[Target | Rejected], None]) -> None:
        """Tells `found` the target of an address, or why there is none."""

        async def find() -> None:
            found(await self._relay.find(text))

        self.run(find())

    def forget_target(self, target: Target) -> None:
        """Its set says that it is not there."""
        self._nodes.forget_target(target)

    # --- transactions ---

    def declare(self, declare: Declare) -> AmqpTransaction:
        """Begins a transaction, or a branch. Raises `Rejected`."""
        try:
            return self.transactions.declare(declare.global_id)
        except LimitReached as over:
            self.refused(over.limit, over.message)
            raise

    def transaction(self, name: bytes) -> AmqpTransaction | None:
        """The open one of that name."""
        return self.transactions.get(name)

    def forget(self, transaction: AmqpTransaction) -> None:
        """It is being ended."""
        self.transactions.forget(transaction)
