"""A link on which a client receives: a consumer or browser of a queue, and its credit (AMQP 1.0, 2.6.7).

Law: what the broker was asked for, what waits here and what the client may still take are in balance: the proxy takes only
what its client has credit for, and gives back what the client does not take in time, or what its connection has no room for.
A big message goes to the engine in pieces, as there is room, and nothing else of the link before its end; one whose link ends
before that is aborted (2.6.14), and goes back as if its client had it, unless that has said otherwise than that it accepts it.
"""

import asyncio
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Protocol

from proton import Link, Sender

from lockstep.core.amqp.sections import join
from lockstep.core.commands import Disposition
from lockstep.core.errors import ErrorCode
from lockstep.core.ids import Epoch, QueuePosition
from lockstep.core.server_messages import DeliveredMessage
from services.proxy import client_deliveries
from services.proxy.client_deliveries import ClientDeliveries, DeliveryName, Settling, Source
from services.proxy.core.conditions import RESOURCE_DELETED, RESOURCE_LIMIT, Condition, condition_of_code
from services.proxy.delivery_room import DeliveryRoom
from services.proxy.engine_path import path
from services.proxy.engine_words import Handle, StateCode
from services.proxy.reclaiming import VOIDED_AT_ONCE, voided_cost
from services.proxy.settings import MESSAGE_BYTES, ProxyLimits
from services.proxy.steps import Work, go_on, in_steps
from services.proxy.traffic import Traffic

_BIG_BYTES = 256 * 1024
"""From this size on a body is not put together with what is before it, and the engine is given it in pieces of so much, each in
another step."""
_SIZE_FIRST = 512 * 1024
"""Bytes that a message is taken for before any has come: nobody knows yet, and few are enough to learn it."""
RETURNED_AT_ONCE = 2_000
"""Deliveries that a link which ends gives back between two places where a step may end: a millisecond's work."""
_NOTHING = memoryview(b"")


class Owner(client_deliveries.Owner, Protocol):
    """What a receiving client's link needs of its connection."""

    traffic: Traffic
    deliveries: DeliveryRoom
    rests: DeliveryRoom
    deliveries_sent: int

    def room(self, link: Handle) -> int: ...
    def given(self, link: "OutgoingLink", size: int) -> None: ...
    def held_up(self, link: "OutgoingLink") -> None: ...
    def touched(self, link: "OutgoingLink") -> None: ...
    def flush_links(self) -> None: ...
    def tell(self, event: str, text: str) -> None: ...
    def refused(self, limit: str, text: str) -> None: ...
    def end_link(self, link: Link, condition: Condition) -> None: ...
    def run(self, work: Coroutine[Any, Any, None]) -> None: ...


class OutgoingLink:
    """Lives from its attach to its end; a consumer's port of the session in the set, driven by it and by the connection."""

    def __init__(
        self, owner: Owner, link: Sender, source: Source, limits: ProxyLimits, *, is_presettled: bool
    ) -> None:
        self.source = source
        self._owner = owner
        self._link = link
        self._handle = path.handle_of(link)
        self._limits = limits
        self._is_presettled = is_presettled
        self._message_bytes_max: int = link.remote_max_message_size or sys.maxsize
        """As its client takes them (2.7.3)."""
        self._consumer = 0
        self._asked = 0
        """Credit that the broker has of this consumer."""
        self._waiting: deque[tuple[Epoch, DeliveredMessage]] = deque()
        """Arrived, and not yet sent: the client has no credit or room for them."""
        self._waiting_since = 0.0
        self._held = 0
        """Bytes of the connection's room that those take, about."""
        self._rest = _NOTHING
        """What the engine has not of the delivery that is begun: nothing else is sent before its end."""
        self._is_answered_early = False
        """Its client has said something of it before its end."""
        self._shown: QueuePosition | None = None
        """Of a browser: what was sent last."""
        self._is_passing_by = False
        """There was no room for something: what else is on its way would come in front of it, and goes back, too."""
        self._deliveries = ClientDeliveries(owner, source)
        self._next_tag = 0
        self._size = _SIZE_FIRST
        """Moving average of a message's bytes."""
        self._is_draining_broker = False
        self._must_drain_again = False
        """The client wants to be drained, and the drain under way was not asked for that."""
        self._owes_flow = False
        """The client waits to be told that it is drained of no credit. Where it had some, messages that used it up say so, and a
        flow behind them would be taken for the answer to the next drain."""
        self._is_over = False
        self._is_back: asyncio.Future[None] | None = None
        """Done when all is given back that the link has left; None: it has not ended."""
        self._lost_sessions = 0
        """By then when it ended."""

    @property
    def session(self) -> Handle:
        """That its link is in."""
        return path.session_of(self._handle)

    @property
    def unsent(self) -> int:
        """How many messages the engine has of it that are not on the wire."""
        return path.unsent(self._handle)

    @property
    def leaves_unsent(self) -> bool:
        """Whether the engine keeps those behind its end: they are settled."""
        return self._is_presettled

    # --- life ---

    def open(self) -> None:
        """Begins to consume, without credit."""
        source = self.source
        self._consumer = source.session.consume(
            self,
            source.queue,
            0,
            source.is_exclusive,
            selector=source.selector,
            is_browser=source.is_browser,
            after=self._shown,
        )
        self._deliveries.consumer = self._consumer

    def end(self, *, is_lost: bool) -> None:
        """The link is gone; what its client has not settled goes back: with a failed delivery more if the client is `is_lost`."""
        if self._is_over:
            return
        self._is_over = True
        self._lost_sessions = self.source.session.losses_told
        begun = self._deliveries.begun
        if self._is_answered_early and path.remote_state(begun) != StateCode.ACCEPTED:
            # Whatever else its client wants, it needs no more of it.
            self._deliveries.disposition(begun)
            self.flush()
        is_back = self._is_back = asyncio.get_running_loop().create_future()
        fails = is_lost and bool(self._deliveries.sent) and not self.source.is_browser
        self._stop_consuming(is_back if fails else None)
        self._leave(_NOTHING)
        self._deliveries.end()
        waiting = self._take_waiting()
        is_short = len(self._deliveries.left) + len(waiting) <= RETURNED_AT_ONCE
        work = self._return(waiting, is_lost)
        if is_short and go_on(work):
            is_back.set_result(None)
            return
        self._owner.returning.note(self.source.queue, is_back)
        self._owner.run(_done_later(work, is_back))

    def _stop_consuming(self, fails: "asyncio.Future[None] | None") -> None:
        """Behind what was rejected or has failed, maybe for the last time: a queue that ends with its last consumer would take
        along what becomes a dead letter by that. `fails`: done when all is told that fails by the end of the link. What an open
        transaction rejects is not waited for. Whoever waits for what goes back waits for the end of the consumer, too.
        """
        told = self._deliveries.failures_told()
        first = [each for each in (told, fails) if each is not None]
        ending = self.source.session.stop_consuming(self._consumer, first)
        if ending is not None:
            self._owner.returning.note(self.source.queue, ending)
            if told is not None:
                self._owner.run(_until_done(ending))

    def settle_left(self) -> tuple[Handle, Settling]:
        """Behind `end`: the link, and what settles its deliveries one by one."""
        return self._handle, self._settle_left

    def _settle_left(self, has_transport: bool) -> Work:
        if has_transport and self._is_back is not None and not self._is_back.done():
            # What its client says next is heard behind that: it may drain another link.
            yield self._is_back
        yield from self._deliveries.settle_left(has_transport)

    def _return(self, waiting: list[DeliveryName], is_lost: bool) -> Iterator[None]:
        """Gives back what the link has left, in steps. `waiting`: what its client has not got."""
        session = self.source.session
        for names, disposition in self._left(waiting, is_lost):
            # Once the session is lost the next one may hold it, by the same name, for another client.
            if session.lost_sessions != self._lost_sessions:
                break
            if not self.source.is_browser:
                self._give_all(_by_epoch(names), disposition)
            yield
        yield from self._deliveries.forget_void()

    def _left(
        self, waiting: list[DeliveryName], is_lost: bool
    ) -> Iterator[tuple[Sequence[DeliveryName], int]]:
        """What goes back in one go, and how, one behind the other."""
        deliveries = self._deliveries
        # First what its client has: what was released before would overtake it.
        while deliveries.left:
            names = deliveries.take_left(RETURNED_AT_ONCE)
            if not is_lost and not deliveries.left:
                names += waiting[:RETURNED_AT_ONCE]
                waiting = waiting[RETURNED_AT_ONCE:]
            yield names, Disposition.FAIL if is_lost else Disposition.RELEASE
        for first in range(0, len(waiting), RETURNED_AT_ONCE):
            yield waiting[first : first + RETURNED_AT_ONCE], Disposition.RELEASE

    def _take_waiting(self) -> list[DeliveryName]:
        taken = [(epoch, message.position) for epoch, message in self._waiting]
        self._waiting.clear()
        self._hold(0)
        return taken

    def _give_all(self, held: dict[Epoch, list[QueuePosition]], disposition: int) -> None:
        for epoch, positions in held.items():
            self._deliveries.give(epoch, positions, disposition)

    # --- credit ---

    def flow(self, *, drains_nothing: bool = False) -> None:
        """The client changed its credit, or wants it drained. `drains_nothing`: it has none, as far as it knows."""
        self._pump()
        if path.is_draining(self._handle):
            self._owes_flow = self._owes_flow or (drains_nothing and not path.credit(self._handle))
            self._drain_for_client()
        else:
            self._owes_flow = False
            self._balance()

    def _balance(self) -> None:
        """Asks the broker for what the client can take; what was asked too much is asked back."""
        if self._is_over or self._is_draining_broker:
            return
        if self._owner.deliveries.is_full:
            self._owner.held_up(self)
            return
        credit = self._credit()
        surplus = self._asked + len(self._waiting) - credit
        if surplus > 0 and self._asked:
            self._drain_broker()
            return
        missing = min(-surplus, self._most() - self._asked - len(self._waiting))
        if missing <= 0 or missing < self._asked:
            return
        if self._room() > 0:
            self._grant(missing)
        else:
            self._owner.held_up(self)

    def _drain_for_client(self) -> None:
        """Everything that the client can take and that is there, and then the rest of its credit back (2.6.7)."""
        if self._is_draining_broker:
            self._must_drain_again = True
            return
        # What its client has given back in this turn, on any link, is there before.
        self._owner.flush_links()
        missing = min(self._credit(), self._most()) - self._asked - len(self._waiting)
        if missing > 0:
            self._grant(missing)
        self._drain_broker()

    def _credit(self) -> int:
        """Messages that may be sent beside the one that is being sent."""
        return path.credit(self._handle) - (self._deliveries.begun is not None)

    def _most(self) -> int:
        """Messages that may be on their way here at once."""
        return min(self._limits.delivery_credit_max, max(1, self._limits.delivery_bytes_max // self._size))

    def _grant(self, count: int) -> None:
        self._asked += count
        self.source.session.grant(self._consumer, count)

    def _drain_broker(self) -> None:
        if not self._is_draining_broker:
            self._is_draining_broker = True
            self.source.session.drain(self._consumer)

    # --- what the session in the set says (ConsumerPort) ---

    def deliver(self, queue: str, epoch: Epoch, messages: tuple[DeliveredMessage, ...]) -> None:
        self._asked -= len(messages)
        if not self.source.is_browser:
            messages = self._owner.reclaims.take(queue, epoch, messages)
        if not self._waiting:
            self._waiting_since = time.monotonic()
        self._waiting.extend([(epoch, message) for message in messages])
        size, arrived = self._size, 0
        for message in messages:
            length = len(message.body) + len(message.properties)
            if message.aside is not None:
                length += len(message.aside.annotations)
            arrived += length
            size += (length - size) // 8
        arrived += MESSAGE_BYTES * len(messages)
        self._size = max(size, 64)
        held = self._held
        gave = 0 if self._is_passing_by else self._pump()
        if self._waiting:
            self._hold(max(held + arrived - gave, 1))
            if self._is_passing_by or self._owner.deliveries.is_over:
                self._pass_by(len(messages))
        self._balance()

    def _room(self) -> int:
        """Bytes of messages that the engine may be given now: none while its client has too much that it has not settled."""
        if not self._is_presettled and self._owner.unsettled.is_full:
            self._deliveries.count_unsettled()
            if self._owner.unsettled.is_full:
                text = f"{self._owner.unsettled.held // MESSAGE_BYTES} deliveries are not settled"
                self._owner.refused("unsettled_bytes_max", text)
                return 0
        return self._owner.room(self._handle)

    def _hold(self, size: int) -> None:
        """So many bytes of the connection's room are in use here."""
        if size > self._held:
            self._owner.deliveries.take(size - self._held)
        elif size < self._held:
            self._owner.deliveries.give_back(self._held - size)
        self._held = size

    def _pass_by(self, count: int) -> None:
        """There is no room for all that waits: the last of it is as if it had not come. `count`: as many have just come."""
        room, passed = self._owner.deliveries, deque[tuple[Epoch, DeliveredMessage]]()
        while self._waiting and (len(passed) < count if self._is_passing_by else room.is_over):
            length = _bytes_of(self._waiting[-1][1])
            if not self._is_passing_by and room.held <= length:
                break  # It is all that its connection has.
            passed.appendleft(self._waiting.pop())
            self._hold(max(self._held - length, 1) if self._waiting else 0)
        if not passed:
            return
        if self.source.is_browser:
            self._browse_again()
            return
        self._is_passing_by = True
        returned = [(epoch, message.position) for epoch, message in passed]
        self._give_all(_by_epoch(returned), Disposition.RELEASE)
        self._drain_broker()

    def _browse_again(self) -> None:
        """Behind what waits: nobody shows copies twice."""
        self.source.session.stop_consuming(self._consumer)
        if self._waiting:
            self._shown = self._waiting[-1][1].position
        self._asked, self._is_draining_broker, self._must_drain_again = 0, False, False
        self.open()
        self._owner.held_up(self)

    def void(self, epoch: Epoch, positions: tuple[QueuePosition, ...]) -> Iterator[int]:
        self._asked += len(positions)
        if self._waiting:
            self._waiting = deque(
                (its_epoch, message)
                for its_epoch, message in self._waiting
                if its_epoch != epoch or not _has(positions, message.position)
            )
        if not self._waiting:
            self._hold(0)
        begun = self._deliveries.begun
        if self._is_presettled and begun is not None and not self.source.is_browser:
            its_epoch, position = self._deliveries.sent[begun]
            if its_epoch == epoch and _has(positions, position):
                # It comes again, as another one: its client is not to have it twice.
                self._leave(_NOTHING)
                self._deliveries.abort()
                self._owner.wrote()
        gone: set[QueuePosition] = set()
        for first in range(0, len(positions), VOIDED_AT_ONCE):
            some = positions[first : first + VOIDED_AT_ONCE]
            gone.update(some)
            # Mostly a fifth of that; but a big set is copied when it grows, which takes milliseconds.
            yield voided_cost(len(some)) // 2
        yield from self._deliveries.void(epoch, gone)
        yield from self._owner.reclaims.void(self.source.queue, epoch, positions)
        if not (self._is_over or self._is_draining_broker) and path.is_draining(self._handle):
            # It may have been drained while that waited.
            self._drain_for_client()
        else:
            self._balance()

    def drained(self) -> None:
        unused, self._asked = self._asked, 0
        must_drain_again, self._must_drain_again = self._must_drain_again, False
        self._is_draining_broker = self._is_passing_by = False
        if self._is_over:
            return
        self._pump()
        credit = path.credit(self._handle)
        if not path.is_draining(self._handle):
            self._balance()
        elif self._waiting or self._deliveries.begun is not None:
            pass  # There is no room for it: `resume` goes on.
        elif credit > 0 and (must_drain_again or not unused):
            self._drain_for_client()
        elif credit > 0 or self._owes_flow:
            self._owes_flow = False
            path.drained(self._handle)
            self._owner.wrote()

    def stop(self, code: ErrorCode, message: str) -> None:
        if self._is_over:
            return
        condition = condition_of_code(code, message)
        if code is ErrorCode.NOT_FOUND:
            condition = Condition(RESOURCE_DELETED, message)
        elif code is ErrorCode.TOO_LARGE:
            # Nothing that the client has sent: there are too many consumers.
            condition = Condition(RESOURCE_LIMIT, message)
        self._owner.end_link(self._link, condition)

    # --- sending ---

    def resume(self) -> None:
        """There is room again."""
        self.flow()

    def _pump(self) -> int:
        """Sends what waits, as far as the client's credit and its socket go; but nothing that is larger than its client takes.

        Answers how many bytes it sent.
        """
        deliveries = self._deliveries
        if self._is_presettled and self._sends_void:
            return 0  # It comes again, and its client would have it twice.
        if deliveries.begun is not None:
            self._go_on_sending()
            if deliveries.begun is not None:
                return 0
        waiting = self._waiting
        if not waiting or self._is_over:
            return 0
        count = min(len(waiting), path.credit(self._handle))
        if count <= 0:
            return 0
        handle, now_ms = self._handle, int(time.time() * 1000)
        is_settled, is_browser = self._is_presettled, self.source.is_browser
        most = self._message_bytes_max
        accepted: dict[Epoch, list[QueuePosition]] = {}
        too_large: dict[Epoch, list[QueuePosition]] = {}
        room, sent, tag, gave = self._room(), deliveries.sent, self._next_tag, 0
        last: DeliveredMessage | None = None
        while count > 0 and gave < room:
            epoch, message = waiting.popleft()
            body = message.body
            is_big = len(body) >= _BIG_BYTES
            if is_big and self._owner.rests.is_full:
                waiting.appendleft((epoch, message))
                break
            data = join(
                message.properties,
                body,
                delivery_count=message.delivery_count,
                expires_ms=message.expires_ms,
                is_durable=message.is_durable,
                now_ms=now_ms,
                aside=message.aside,
                has_body=not is_big,
            )
            length = len(data) + len(body) if is_big else len(data)
            if length > most:
                too_large.setdefault(epoch, []).append(message.position)
                count = min(count, len(waiting))
                last = message
                continue
            gave += length + MESSAGE_BYTES
            tag += 1
            if is_big:
                delivery = deliveries.begun = path.begin(handle, b"%d" % tag, data)
                self._leave(memoryview(body))
                count = 1  # Nothing else comes before its end.
            else:
                delivery = path.send(handle, b"%d" % tag, data, is_settled)
            if is_big or not is_settled:
                sent[delivery] = epoch, message.position
            elif not is_browser:
                accepted.setdefault(epoch, []).append(message.position)
            count -= 1
            last = message
        if self._held:
            self._hold(max(self._held - gave, 1) if waiting else 0)
        if is_browser and last is not None:
            self._shown = last.position
        self._owner.traffic.messages_out += tag - self._next_tag
        self._owner.deliveries_sent += tag - self._next_tag
        self._next_tag = tag
        if count > 0 or deliveries.begun is not None:
            self._owner.held_up(self)
        self._give_all(accepted, Disposition.ACCEPT)
        if too_large:
            self._leave_to_others(too_large)
        if gave:
            if not is_settled:
                deliveries.count_unsettled()
            self._owner.given(self, gave - len(self._rest))
            self._owner.wrote()
        return gave

    @property
    def _sends_void(self) -> bool:
        """Whether what would be sent next is void, which the link has still to be told: `void` goes on."""
        begun, session = self._deliveries.begun, self.source.session
        if self.source.is_browser or not (self._waiting or begun is not None):
            return False
        epoch, _ = self._deliveries.sent[begun] if begun is not None else self._waiting[0]
        return session.is_telling_loss or session.is_over(epoch)

    def _go_on_sending(self) -> None:
        """The next piece of what is being sent, as far as there is room."""
        count = min(len(self._rest), _BIG_BYTES, self._owner.room(self._handle))
        if count > 0:
            path.go_on(self._handle, self._rest[:count])
            self._owner.given(self, count)
            self._leave(self._rest[count:])
            self._owner.wrote()
        if self._rest:
            self._owner.held_up(self)
            return
        path.finish(self._handle)
        if self._is_presettled:
            epoch, position = self._deliveries.finish_settled()
            if not self.source.is_browser:
                self._give_all({epoch: [position]}, Disposition.ACCEPT)
            return
        has_outcome = self._is_answered_early and self._deliveries.disposition(self._deliveries.begun)
        self._is_answered_early = False
        self._deliveries.finish()
        if has_outcome:
            # What its client has sent before, on any link, comes before that, and no end of a turn need follow.
            self._owner.touched(self)
            self._owner.flush_links()

    def _leave(self, rest: memoryview) -> None:
        """So much of what was begun the engine has not: it takes room until then."""
        self._owner.rests.give_back(len(self._rest))
        self._owner.rests.take(len(rest))
        self._rest = rest

    def _leave_to_others(self, too_large: dict[Epoch, list[QueuePosition]]) -> None:
        """Messages that its client must not be sent (2.7.3) stay in the queue, and it is not offered them again."""
        count = sum(map(len, too_large.values()))
        text = f"queue={self.source.queue} messages={count} client_takes={self._message_bytes_max}"
        self._owner.tell("too_large_for_client", text)
        if self.source.is_browser:
            return
        for epoch, positions in too_large.items():
            self._deliveries.give(epoch, positions, Disposition.RELEASE, self._consumer)

    def give_back_late(self, now: float) -> None:
        """Gives back what has waited for its client for too long."""
        if not self._waiting or now - self._waiting_since < self._limits.hold_seconds:
            return
        waiting = self._take_waiting()
        if self.source.is_browser:
            # Copies: the broker shows them again when there is room for them.
            self._browse_again()
            return
        self._give_all(_by_epoch(waiting), Disposition.RELEASE)
        self._balance()

    # --- outcomes ---

    def disposition(self, delivery: Handle) -> bool:
        """The client said something of a delivery; False: it is none of ours."""
        if delivery not in self._deliveries.sent and self._has_foreign():
            return False
        begun = self._deliveries.begun
        if begun is not None and delivery == begun:
            if self._is_presettled:
                return True  # It is settled with its end, whatever its client says of it.
            if path.remote_state(delivery) != StateCode.TRANSACTIONAL:
                self._is_answered_early = True
                return True
            # It counts now: its transaction may end before the rest is gone.
        if self._deliveries.disposition(delivery):
            self._owner.touched(self)
        return True

    def _has_foreign(self) -> bool:
        """The engine has taken a transfer of its client for a delivery of this link."""
        if self._deliveries.begun is not None:
            return path.unsettled(self._handle) > self._deliveries.unsettled
        return path.has_unsent(self._handle)

    def flush(self) -> None:
        """Tells the broker the outcomes of this turn."""
        self._deliveries.flush()


async def _until_done(ending: "asyncio.Future[Any]") -> None:
    """Whoever stops the worker waits for what it runs."""
    await asyncio.wait((ending,))


async def _done_later(work: Iterator[None], is_back: "asyncio.Future[None]") -> None:
    """Whoever attaches to the queue waits for that."""
    try:
        await in_steps(work)
    finally:
        is_back.set_result(None)


def _has(positions: Sequence[QueuePosition], position: QueuePosition) -> bool:
    """Of many in ascending order."""
    at = bisect_left(positions, position)
    return at < len(positions) and positions[at] == position


def _by_epoch(names: Sequence[DeliveryName]) -> dict[Epoch, list[QueuePosition]]:
    found: dict[Epoch, list[QueuePosition]] = {}
    for epoch, position in names:
        found.setdefault(epoch, []).append(position)
    return found


def _bytes_of(message: DeliveredMessage) -> int:
    """What it counts while it waits."""
    return MESSAGE_BYTES + len(message.body) + len(message.properties) + len(message.annotations)
