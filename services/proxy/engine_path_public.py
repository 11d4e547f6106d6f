"""What the proxy does once per transfer, on Proton's public API: slower than `engine_path_c.py`, and good for every Proton.

Law: the same functions with the same meaning. A handle is the Python object of a link, session or delivery.
"""

from collections.abc import Iterator

from proton import Collector, Delivery, Event, Link, Session, Transport

from services.proxy.engine_words import (
    OTHERS,
    UNREADABLE,
    EngineEvent,
    Handle,
    Happening,
    Received,
    State,
    Transactional,
    encoded_map,
)


def handle_of(endpoint: Link | Session) -> Handle:
    """The handle of a link or session."""
    return endpoint


def session_of(link: Handle) -> Handle:
    """The session that a link is in."""
    return link.session


def push(transport: Transport, data: memoryview) -> int:
    """Gives the engine input; returns how many bytes it took, negative when it takes no more at all."""
    capacity = transport.capacity()
    if capacity <= 0:
        return capacity or -1
    piece = bytes(data[:capacity])
    transport.push(piece)
    return len(piece)


def output(transport: Transport) -> list[bytes | bytearray]:
    """Takes what the engine wants written."""
    parts: list[bytes | bytearray] = []
    while (pending := transport.pending()) > 0:
        data = transport.peek(pending)
        transport.pop(pending)
        if data:
            parts.append(data)
    return parts


def events(collector: Collector) -> Iterator[Happening]:
    """What happened, in order; each is taken out when the next is asked for. Of others than `OTHERS`, and
    of what `receive` would not give, nothing is told."""
    while (event := collector.peek()) is not None:
        if event.type is Event.DELIVERY:
            link, delivery = event.link, event.delivery
            assert link is not None, "a delivery has a link"
            if link.is_sender or link.current == delivery:
                yield EngineEvent.DELIVERY, link, delivery
        elif event.type is Event.LINK_FLOW:
            yield EngineEvent.FLOW, event.link, None
        elif event.type in OTHERS:
            yield EngineEvent.OTHER, None, event
        collector.pop()


def receive(link: Handle) -> Received | None:
    """The next piece of a transfer on a receiving link; a whole one is advanced over and waits for being settled."""
    delivery = link.current
    if delivery is None:
        return None
    if delivery.aborted:
        delivery.settle()
        return Received(None, b"", False, True, False)
    is_partial, pending = delivery.partial, delivery.pending
    if is_partial and not pending:
        return None
    data = bytes(link.recv(pending) or b"")
    if is_partial:
        return Received(delivery, data, True, False, False)
    link.advance()
    return Received(delivery, data, False, False, delivery.settled)


def drop_received(link: Handle) -> None:
    """Settles what a receiving link has of transfers that nobody takes any more."""
    while (delivery := link.current) is not None:
        delivery.settle()


def has_unsent(link: Handle) -> bool:
    """Whether a sending link has a delivery that `send` has not made: all of its own are done when it returns."""
    return bool(link.is_sender) and link.current is not None


def is_sending(link: Handle) -> bool:
    """Whether a sending link has something that is not on the wire: a delivery that was made, or the beginning of one."""
    return bool(link.is_sender) and (link.queued > 0 or has_unsent(link))


def unsent(link: Handle) -> int:
    """Deliveries of a sending link that are made and not on the wire."""
    return int(link.queued)


def credit(link: Handle) -> int:
    """Of a receiving link: what the peer may send; of a sending link: what may be sent. Less than nothing: the peer has taken
    back what the engine has used."""
    return int(link.credit)


def grant(link: Handle, count: int) -> None:
    """The peer may send `count` more on a receiving link."""
    link.flow(count)


def is_draining(link: Handle) -> bool:
    """Whether the peer wants a sending link's credit used or given back."""
    return bool(link.drain_mode)


def drained(link: Handle) -> None:
    """Tells the peer that the credit of a sending link is used up. Of a credit of 0 Proton tells nothing."""
    link.drained()


def send(link: Handle, tag: bytes, data: bytes, is_settled: bool) -> Handle:
    """One transfer on a sending link."""
    delivery = link.delivery(tag.decode("ascii"))
    link.stream(data)
    link.advance()
    if is_settled:
        delivery.settle()
    return delivery


def begin(link: Handle, tag: bytes, data: bytes) -> Handle:
    """One transfer on a sending link, of which this is the beginning: nothing else is sent on the link before its end."""
    delivery = link.delivery(tag.decode("ascii"))
    link.stream(data)
    return delivery


def go_on(link: Handle, data: memoryview) -> None:
    """More of the transfer that was begun."""
    link.stream(bytes(data))


def finish(link: Handle) -> None:
    """There is no more of the transfer that was begun."""
    link.advance()


def abort(delivery: Handle) -> None:
    """A transfer that was begun has no end: its peer is told to forget it (2.6.14). Settles it.

    Not once the engine has no transport: it would let go of the delivery, and then look at it once more.
    """
    delivery.abort()


def unsettled(link: Handle) -> int:
    """Deliveries of a link that are not settled here, whoever made them."""
    return int(link.unsettled)


def unsent_bytes(session: Handle) -> int:
    """Content that the engine holds for a session: the peer's window is closed, or it was not asked for output."""
    return int(session.outgoing_bytes)


def is_settled(delivery: Handle) -> bool:
    """Whether the peer has settled it."""
    return bool(delivery.settled)


def settle(delivery: Handle) -> None:
    """Settles; the handle is no good after it."""
    delivery.settle()


def accept(delivery: Handle) -> None:
    """Accepted and settled."""
    delivery.update(Delivery.ACCEPTED)
    delivery.settle()


def update(delivery: Handle, state: State) -> None:
    """Says a state, without settling."""
    if state.fields:
        delivery.local.data = state.fields
    delivery.update(state.code)


def remote_state(delivery: Handle) -> int:
    """Descriptor of the state that the peer gave it; 0: none."""
    return int(delivery.remote_state)


def remote_modified(delivery: Handle) -> tuple[bool, bool]:
    """Of the state `modified`: (delivery-failed, undeliverable-here)."""
    return delivery.remote.failed, delivery.remote.undeliverable


def remote_annotations(delivery: Handle) -> bytes:
    """Of the state `modified`: message-annotations, encoded; empty without any, or if they cannot be said."""
    return encoded_map(delivery.remote.annotations)


def remote_transaction(delivery: Handle) -> Transactional:
    """Of a transactional state: the transaction and the outcome in it. Raises `ValueError` for one that is malformed."""
    try:
        return Transactional.from_fields(delivery.remote.data)
    except UNREADABLE as error:
        raise ValueError(f"a malformed transactional state: {error}") from error


def wrapped(delivery: Handle) -> Delivery:
    """The delivery for the public API."""
    assert isinstance(delivery, Delivery)
    return delivery
