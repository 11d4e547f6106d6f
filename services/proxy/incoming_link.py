"""A link on which a client sends: transfers become publishes, and their confirmations outcomes (AMQP 1.0, 2.6.7, 2.6.12).

Law: a message is accepted when it is durable at every in-sync member, and not before; rejected only if it did not happen.
What nobody could tell ends the connection without an outcome, and so does the end of the session behind it. What comes in one
turn of the event loop for one target is one batch, or several if a set may not take so much at once, and all that a link sends
keeps its order: of a batch that a full queue refuses each message is tried alone, unless something was published behind it, and
then all of it is refused.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from proton import Link, Receiver

from lockstep.client.command_batches import Confirmation, RefusedTogether
from lockstep.core.amqp.sections import (
    Incoming,
    address_of,
    split,
    split_beginning,
    split_parts,
    time_to_live,
)
from lockstep.core.commands import OutgoingMessage
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.big_bytes import BIG_BYTES, joined
from lockstep.runtime.turns import LeftToThread
from services.proxy.amqp_transaction import AmqpTransaction
from services.proxy.core.conditions import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    RESOURCE_LIMIT,
    TRANSFER_LIMIT,
    Condition,
    condition_of,
    ends_connection,
)
from services.proxy.delivery_states import reject
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle, StateCode, transactional
from services.proxy.input_room import InputRoom
from services.proxy.nodes import Target
from services.proxy.partial_room import PartialRoom
from services.proxy.settings import MESSAGE_BYTES
from services.proxy.steps import Work
from services.proxy.traffic import End, Traffic, end_of

_SHARED_REFUSALS = {ErrorCode.QUEUE_FULL, ErrorCode.TOO_LARGE, ErrorCode.INVALID_ARGUMENT}
"""Refusals of a batch that may be due to one of its messages."""
PART_BYTES = 64
"""What a part of an unfinished message takes beside its own bytes: it may have two."""
OVERHEAD_BYTES = 64 * 1024
"""Of sections that are not counted as the message's own."""


class Owner(Protocol):
    """What a sending client's link needs of its connection."""

    traffic: Traffic
    input_room: InputRoom
    partials: PartialRoom

    def transaction(self, name: bytes) -> AmqpTransaction | None: ...
    def known_target(self, text: str) -> Target | None: ...
    def find_target(self, text: str, found: Callable[[Target | Rejected], None]) -> None: ...
    def forget_target(self, target: Target) -> None: ...
    def refused(self, limit: str, text: str) -> None: ...
    def wrote(self) -> None: ...
    def give_up(self, error: LockstepError) -> None: ...
    def end_link(self, link: Link, condition: Condition) -> None: ...


@dataclass(slots=True, eq=False)
class _Posts:
    """Messages that go to one target, in one transaction or none."""

    target: Target
    transaction: AmqpTransaction | None
    messages: list[OutgoingMessage] = field(default_factory=list)
    deliveries: list[Handle] = field(default_factory=list)
    """Of each message; None: its sender expects no outcome."""
    bytes: int = 0
    """Of all messages as they came."""

    @property
    def held(self) -> int:
        """What they take of the input room."""
        return self.bytes + MESSAGE_BYTES * len(self.messages)

    def parts(self, count: int) -> Iterator["_Posts"]:
        """The same in parts of so many messages at most."""
        for begin in range(0, len(self.messages), count):
            messages = self.messages[begin : begin + count]
            size = sum([len(each.properties) + len(each.body) for each in messages])
            yield _Posts(
                self.target, self.transaction, messages, self.deliveries[begin : begin + count], size
            )


class _Unrouted(NamedTuple):
    """A message whose address is being looked for, or stands behind such a one."""

    delivery: Handle
    message: OutgoingMessage
    bytes: int
    address: str
    transaction: AmqpTransaction | None
    posted: asyncio.Event | None
    """It is, or never will be: its transaction does not end before. None: it is in none."""


class IncomingLink:
    """Lives from its attach to its end; driven by its connection."""

    def __init__(
        self, owner: Owner, link: Receiver, target: Target | None, window: int, message_bytes_max: int
    ) -> None:
        """`target` None: the anonymous relay, each message names its own. `window`: messages unanswered at most."""
        self._owner = owner
        self._link = link
        self._handle = path.handle_of(link)
        self._target = target
        self._window = window
        self._message_bytes_max = message_bytes_max
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._posts: list[_Posts] = []
        """Of this turn, in order."""
        self._last_posts: _Posts | None = None
        """What was published last, if it is not answered."""
        self._waiting: deque[_Unrouted] = deque()
        self._unanswered = 0
        self._is_ending = False
        """What its client has said and was not taken does not happen."""
        self._is_over = False

    def open(self) -> None:
        """Gives its first credit."""
        path.grant(self._handle, self._window)

    def expect_end(self) -> None:
        """Its connection ends, by what its client has not said: `end` follows."""
        self._is_ending = True

    def end(self, *, is_lost: bool) -> None:
        """The link is gone: what is under way happens, and nobody hears of it. `is_lost`: its client has not ended it, and sends
        again what had no outcome: what waits for an address does not happen. Nor does that of transactions, which fail.
        """
        self._is_over = True
        path.drop_received(self._handle)
        self._drop_parts()
        for waiting in self._waiting:
            if waiting.transaction is not None:
                waiting.transaction.fail(
                    Rejected(ErrorCode.ILLEGAL_STATE, f"a message to {waiting.address!r} lost its link")
                )
            if waiting.posted is not None:
                waiting.posted.set()
        if is_lost:
            self._drop_waiting()

    # --- what comes ---

    def receive(self) -> Work | None:
        """Takes what came of the one transfer that the engine has told of, and nothing that came behind it. Answers what is left
        to do for it before that.
        """
        got = None if self._is_over else path.receive(self._handle)
        if got is None:
            return None
        if got.is_aborted:
            self._drop_parts()
            self._refill()
            return None
        if got.is_partial or self._parts:
            if not self._collect(got.data) or got.is_partial:
                return None
            if self._parts_bytes >= BIG_BYTES:
                return self._take_big(got.delivery, got.is_settled)
            data, *rest = self._parts
            self._drop_parts()
            self._take(got.delivery, data, got.is_settled, rest)
        else:
            self._take(got.delivery, got.data, got.is_settled)
        self._check_credit()
        return None

    def _check_credit(self) -> None:
        if self._unanswered > self._window:
            text = f"more than the {self._window} transfers that there was credit for"
            self._owner.end_link(self._link, Condition(TRANSFER_LIMIT, text))

    def _take_big(self, delivery: Handle, is_settled: bool) -> Work:
        """All of a message that it takes long to put together: its link may end meanwhile, by what its client has not said."""
        parts, transaction = self._parts, self._open_transaction_of(delivery)
        incoming: Incoming | None = None
        refusal: Condition | None = None
        try:
            incoming = yield from _split_big(parts)
        except Rejected as error:
            refusal = Condition(DECODE_ERROR, error.message)
        if self._is_over or self._is_ending:
            if transaction is not None:
                transaction.fail(Rejected(ErrorCode.ILLEGAL_STATE, "a message lost its link"))
            return
        self._drop_parts()
        if refusal is not None:
            self._refuse(delivery, is_settled, transaction, refusal)
            return
        data, *rest = parts
        self._take(delivery, data, is_settled, rest, incoming)
        # Not with the turn in which it came.
        self.flush()
        self._check_credit()

    def _open_transaction_of(self, delivery: Handle) -> AmqpTransaction | None:
        """None also for what is none, or not known."""
        if path.remote_state(delivery) != StateCode.TRANSACTIONAL:
            return None
        try:
            return self._transaction_of(delivery)
        except Rejected:
            return None

    def _collect(self, data: bytes) -> bool:
        self._parts.append(data)
        self._parts_bytes += len(data)
        room = self._owner.partials
        room.take(len(data) + PART_BYTES)
        if exceeded := room.exceeded:
            self._owner.refused(exceeded, f"{room.held} bytes of unfinished messages")
            where = "one connection" if exceeded == "partial_bytes_max" else "all connections together"
            condition = Condition(RESOURCE_LIMIT, f"too many bytes of unfinished messages on {where}")
        elif self._parts_bytes <= self._message_bytes_max + OVERHEAD_BYTES:
            return True
        else:
            text = f"a message of more than {self._message_bytes_max} bytes"
            self._owner.refused("message_bytes_max", text)
            condition = Condition(MESSAGE_SIZE_EXCEEDED, text)
        self._owner.end_link(self._link, condition)
        return False

    def _drop_parts(self) -> None:
        if self._parts:
            self._owner.partials.give_back(self._parts_bytes + PART_BYTES * len(self._parts))
        self._parts = []
        self._parts_bytes = 0

    def _take(
        self,
        delivery: Handle,
        data: bytes,
        is_settled: bool,
        rest: Sequence[bytes] = (),
        incoming: Incoming | None = None,
    ) -> None:
        """`data` is all of it, or its beginning; `incoming`: what it is, if that is known."""
        transaction, address = None, ""
        try:
            if path.remote_state(delivery) == StateCode.TRANSACTIONAL:
                transaction = self._transaction_of(delivery)
            if incoming is None:
                incoming = split_parts((data, *rest)) if rest else split(data)
            properties, body, is_durable, ttl_ms, absolute_expiry_ms, priority = incoming
            if self._target is None:
                address = address_of(properties) or ""
        except Rejected as error:
            is_unknown = error.code is ErrorCode.UNKNOWN_TRANSACTION
            condition = condition_of(error) if is_unknown else Condition(DECODE_ERROR, error.message)
            self._refuse(delivery, is_settled, transaction, condition)
            return
        if absolute_expiry_ms:
            ttl_ms = time_to_live(incoming, int(time.time() * 1000))
        message = OutgoingMessage(properties, body, is_durable, ttl_ms, (), priority)
        if is_settled:
            path.settle(delivery)
            delivery = None
        size = len(data) + sum(map(len, rest)) if rest else len(data)
        target = self._target
        if target is None:
            if not address:
                self._refuse(delivery, False, transaction, Condition(INVALID_FIELD, "`to` names no node"))
                return
            target = self._owner.known_target(address)
            if self._waiting or target is None:
                posted = asyncio.Event() if transaction is not None else None
                self._wait(_Unrouted(delivery, message, size, address, transaction, posted))
                return
        self._unanswered += 1
        self._post(target, transaction, message, size, delivery)

    def _transaction_of(self, delivery: Handle) -> AmqpTransaction:
        try:
            name = path.remote_transaction(delivery).transaction
        except ValueError as error:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, str(error)) from error
        found = self._owner.transaction(name)
        if found is None:
            raise Rejected(ErrorCode.UNKNOWN_TRANSACTION, "no such transaction")
        return found

    def _post(
        self,
        target: Target,
        transaction: AmqpTransaction | None,
        message: OutgoingMessage,
        size: int,
        delivery: Handle,
    ) -> None:
        posts = self._posts[-1] if self._posts else None
        if posts is None or posts.target is not target or posts.transaction is not transaction:
            posts = _Posts(target, transaction)
            self._posts.append(posts)
        posts.bytes += size
        posts.messages.append(message)
        posts.deliveries.append(delivery)

    def _refuse(
        self, delivery: Handle, is_settled: bool, transaction: AmqpTransaction | None, condition: Condition
    ) -> None:
        """It did not happen, and its transaction will not (4.4.1)."""
        self._owner.traffic.messages_in[End.REFUSED] += 1
        if transaction is not None:
            transaction.fail(Rejected(ErrorCode.INVALID_ARGUMENT, condition.description))
        if delivery is not None:
            if is_settled:
                path.settle(delivery)
            else:
                reject(delivery, condition, transaction.name if transaction is not None else None)
            self._owner.wrote()
        self._refill()

    # --- addresses of the anonymous relay ---

    def _wait(self, unrouted: _Unrouted) -> None:
        self._unanswered += 1
        self._owner.input_room.take(unrouted.bytes + MESSAGE_BYTES)
        if unrouted.transaction is not None and unrouted.posted is not None:
            unrouted.transaction.wait_for(unrouted.posted)
        self._waiting.append(unrouted)
        if len(self._waiting) == 1:
            self._owner.find_target(unrouted.address, self._found)

    def _found(self, target: Target | Rejected) -> None:
        """The address of the first that waits is known now, or is none."""
        if isinstance(target, Rejected) and ends_connection(target):
            if not self._is_over:
                self._owner.give_up(target)
            self._drop_waiting()
            return
        posted: list[asyncio.Event] = []
        while self._waiting:
            delivery, message, size, _, transaction, event = self._waiting.popleft()
            self._owner.input_room.give_back(size + MESSAGE_BYTES)
            if event is not None:
                posted.append(event)
            if self._is_over:
                delivery = None
            if isinstance(target, Rejected):
                self._unanswered -= 1
                self._refuse(delivery, False, transaction, condition_of(target))
            elif not self._is_over or transaction is None:
                self._post(target, transaction, message, size, delivery)
            if not self._waiting:
                break
            address = self._waiting[0].address
            known = self._owner.known_target(address)
            if known is None:
                self._owner.find_target(address, self._found)
                break
            target = known
        self.flush()
        for event in posted:
            event.set()

    def _drop_waiting(self) -> None:
        self._owner.input_room.give_back(sum(one.bytes + MESSAGE_BYTES for one in self._waiting))
        self._waiting.clear()

    # --- publishing ---

    def flush(self) -> None:
        """Publishes what came in this turn."""
        if not self._posts:
            return
        all_posts, self._posts = self._posts, []
        for posts in all_posts:
            together = posts.target.batches.together(posts.target.exchange, posts.target.routing_key)
            # What is of a transaction happens as a whole anyway.
            if len(posts.messages) <= together or posts.transaction is not None:
                self._publish(posts)
            else:
                for part in posts.parts(together):
                    self._publish(part)

    def _publish(self, posts: _Posts) -> None:
        target, transaction = posts.target, posts.transaction
        self._owner.input_room.take(posts.held)
        self._last_posts = posts
        if transaction is None:
            confirmation = target.batches.publish(target.exchange, target.routing_key, posts.messages, None)
            confirmation.add_done_callback(partial(self._confirmed, posts))
            return
        transaction.publish(target, posts.messages, lambda error: self._answer(posts, error))

    def _confirmed(self, posts: _Posts, done: Confirmation) -> None:
        error = done.exception()
        is_shared = len(posts.messages) > 1 or isinstance(error, RefusedTogether)
        if (
            isinstance(error, Rejected)
            and error.code in _SHARED_REFUSALS
            and is_shared
            and self._last_posts is posts
        ):
            self._publish_each(posts)
        else:
            self._answer(posts, error)

    def _publish_each(self, posts: _Posts) -> None:
        """Tries each message alone; what is published from now on comes behind them."""
        target, room = posts.target, self._owner.input_room
        self._last_posts = None
        room.give_back(posts.held)
        for alone in posts.parts(1):
            room.take(alone.held)
            confirmation = target.batches.publish_alone(target.exchange, target.routing_key, alone.messages)
            confirmation.add_done_callback(partial(self._confirmed_alone, alone))

    def _confirmed_alone(self, posts: _Posts, done: Confirmation) -> None:
        self._answer(posts, done.exception())

    def _answer(self, posts: _Posts, error: BaseException | None) -> None:
        """All of these are there, or none."""
        self._owner.traffic.messages_in[end_of(error)] += len(posts.messages)
        self._owner.input_room.give_back(posts.held)
        if self._last_posts is posts:
            self._last_posts = None
        if isinstance(error, Rejected) and error.code is ErrorCode.NOT_FOUND:
            self._owner.forget_target(posts.target)
        if self._is_over:
            return
        if isinstance(error, LockstepError) and ends_connection(error):
            self._owner.give_up(error)
            return
        self._unanswered -= len(posts.messages)
        deliveries = [delivery for delivery in posts.deliveries if delivery is not None]
        if isinstance(error, Rejected):
            condition = condition_of(error)
            name = posts.transaction.name if posts.transaction is not None else None
            for delivery in deliveries:
                reject(delivery, condition, name)
        elif posts.transaction is not None:
            state = transactional(posts.transaction.name, StateCode.ACCEPTED)
            for delivery in deliveries:
                path.update(delivery, state)
                path.settle(delivery)
        else:
            for delivery in deliveries:
                path.accept(delivery)
        self._refill()
        self._owner.wrote()

    def _refill(self) -> None:
        """More credit, once half of it is used; none for what is not answered."""
        if self._is_over:
            return
        missing = self._window - self._unanswered - path.credit(self._handle)
        if 2 * missing >= self._window:
            # A client that says that it has used more credit than it had gets no more for it.
            path.grant(self._handle, min(missing, self._window))
            self._owner.wrote()


def _split_big(parts: Sequence[bytes]) -> Generator[LeftToThread, None, Incoming]:
    """As `split_parts`, in steps."""
    first, *rest = parts
    incoming = split_beginning(first, sum(map(len, parts)))
    if incoming is None:
        whole = yield from joined(parts)
        return split(whole)
    body = yield from joined((incoming.body, *rest))
    return incoming._replace(body=body)
