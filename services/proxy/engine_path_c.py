"""What the proxy does once per transfer, on the functions of Proton's C library.

Law: everything that touches `cproton_ffi` is here, and looked up at import. A handle is a pointer.
"""

from collections.abc import Iterator
from pathlib import Path

import cproton_ffi
from cproton_ffi import ffi, lib
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
)

_DELIVERY = lib.PN_DELIVERY
_FLOW = lib.PN_LINK_FLOW
_OTHERS = frozenset(other.number for other in OTHERS)
_NULL = ffi.NULL
_CHUNK_BYTES = 64 * 1024
_chunk = ffi.new("char[]", _CHUNK_BYTES)
_view = ffi.buffer(_chunk)
_EMPTY = b""
_NEEDED = (
    "pn_collector_peek",
    "pn_collector_pop",
    "pn_data_clear",
    "pn_data_decode",
    "pn_data_encode",
    "pn_delivery",
    "pn_delivery_abort",
    "pn_delivery_aborted",
    "pn_delivery_link",
    "pn_delivery_local",
    "pn_delivery_partial",
    "pn_delivery_pending",
    "pn_delivery_remote",
    "pn_delivery_remote_state",
    "pn_delivery_settle",
    "pn_delivery_settled",
    "pn_delivery_update",
    "pn_disposition_data",
    "pn_disposition_is_failed",
    "pn_disposition_is_undeliverable",
    "pn_event_delivery",
    "pn_event_link",
    "pn_event_type",
    "pn_link_advance",
    "pn_link_credit",
    "pn_link_current",
    "pn_link_drained",
    "pn_link_flow",
    "pn_link_get_drain",
    "pn_link_is_sender",
    "pn_link_queued",
    "pn_link_recv",
    "pn_link_send",
    "pn_link_session",
    "pn_link_unsettled",
    "pn_session_outgoing_bytes",
    "pn_transport_capacity",
    "pn_transport_peek",
    "pn_transport_pending",
    "pn_transport_pop",
    "pn_transport_push",
)
"""What is called here: an `AttributeError` at import says that this Proton has not got one of them."""
for _name in _NEEDED:
    getattr(lib, _name)


def _may_add_credit() -> bool:
    """Whether `pn_link_flow` may be called for a sending link: with assertions, which distributions' libraries may have, that
    would end the process."""
    image = Path(cproton_ffi.__file__).read_bytes()
    return b"__assert_fail" not in image and b"libqpid-proton" not in image


_MAY_ADD_CREDIT = _may_add_credit()


def handle_of(endpoint: Link | Session) -> Handle:
    """The handle of a link or session."""
    return endpoint._impl


def session_of(link: Handle) -> Handle:
    """The session that a link is in."""
    return lib.pn_link_session(link)


def push(transport: Transport, data: memoryview) -> int:
    """Gives the engine input; returns how many bytes it took, negative when it takes no more at all."""
    impl = transport._impl
    capacity = lib.pn_transport_capacity(impl)
    if capacity <= 0:
        return capacity or -1
    count = min(capacity, len(data))
    return lib.pn_transport_push(impl, ffi.from_buffer(data), count)  # type: ignore[no-any-return]


def output(transport: Transport) -> list[bytes | bytearray]:
    """Takes what the engine wants written."""
    impl = transport._impl
    parts: list[bytes | bytearray] = []
    while (pending := lib.pn_transport_pending(impl)) > 0:
        data = bytearray(pending)
        lib.pn_transport_peek(impl, ffi.from_buffer(data), pending)
        lib.pn_transport_pop(impl, pending)
        parts.append(data)
    return parts


def events(collector: Collector) -> Iterator[Happening]:
    """What happened, in order; each is taken out when the next is asked for. Of others than `OTHERS`, and
    of what `receive` would not give, nothing is told."""
    impl = collector._impl
    while (event := lib.pn_collector_peek(impl)) != _NULL:
        kind = lib.pn_event_type(event)
        if kind == _DELIVERY:
            delivery = lib.pn_event_delivery(event)
            link = lib.pn_delivery_link(delivery)
            if lib.pn_link_is_sender(link) or lib.pn_link_current(link) == delivery:
                yield EngineEvent.DELIVERY, link, delivery
        elif kind == _FLOW:
            yield EngineEvent.FLOW, lib.pn_event_link(event), None
        elif kind in _OTHERS:
            yield EngineEvent.OTHER, None, Event.wrap(event)  # type: ignore[no-untyped-call]
        lib.pn_collector_pop(impl)


def receive(link: Handle) -> Received | None:
    """The next piece of a transfer on a receiving link; a whole one is advanced over and waits for being settled."""
    delivery = lib.pn_link_current(link)
    if delivery == _NULL:
        return None
    is_partial = lib.pn_delivery_partial(delivery)
    pending = lib.pn_delivery_pending(delivery)
    if pending <= 1:  # Proton gives an aborted one a byte, so that nobody waits for more of it.
        if lib.pn_delivery_aborted(delivery):
            lib.pn_delivery_settle(delivery)
            return Received(_NULL, _EMPTY, False, True, False)
        if is_partial and not pending:
            return None
    if pending <= _CHUNK_BYTES:
        count = lib.pn_link_recv(link, _chunk, pending)
        data = _view[:count] if count > 0 else _EMPTY
    else:
        large = bytearray(pending)
        count = lib.pn_link_recv(link, ffi.from_buffer(large), pending)
        data = bytes(large[: max(count, 0)])
    if is_partial:
        return Received(delivery, data, True, False, False)
    lib.pn_link_advance(link)
    return Received(delivery, data, False, False, lib.pn_delivery_settled(delivery))


def drop_received(link: Handle) -> None:
    """Settles what a receiving link has of transfers that nobody takes any more."""
    while (delivery := lib.pn_link_current(link)) != _NULL:
        lib.pn_delivery_settle(delivery)


def has_unsent(link: Handle) -> bool:
    """Whether a sending link has a delivery that `send` has not made: all of its own are done when it returns."""
    return lib.pn_link_is_sender(link) and lib.pn_link_current(link) != _NULL  # type: ignore[no-any-return]


def is_sending(link: Handle) -> bool:
    """Whether a sending link has something that is not on the wire: a delivery that was made, or the beginning of one."""
    return lib.pn_link_is_sender(link) and (lib.pn_link_queued(link) > 0 or has_unsent(link))


def unsent(link: Handle) -> int:
    """Deliveries of a sending link that are made and not on the wire."""
    return lib.pn_link_queued(link)  # type: ignore[no-any-return]


def credit(link: Handle) -> int:
    """Of a receiving link: what the peer may send; of a sending link: what may be sent. Less than nothing: the peer has taken
    back what the engine has used."""
    return lib.pn_link_credit(link)  # type: ignore[no-any-return]


def grant(link: Handle, count: int) -> None:
    """The peer may send `count` more on a receiving link."""
    lib.pn_link_flow(link, count)


def is_draining(link: Handle) -> bool:
    """Whether the peer wants a sending link's credit used or given back."""
    return lib.pn_link_get_drain(link)  # type: ignore[no-any-return]


def drained(link: Handle) -> None:
    """Tells the peer that the credit of a sending link is used up, also where there was none (2.6.7)."""
    if _MAY_ADD_CREDIT and lib.pn_link_credit(link) == 0:
        # The engine says nothing of a credit of 0. What is added here is known to nobody else and taken off by the next call,
        # and the delivery count that the peer is told grows by the credit that the peer gave: by none.
        lib.pn_link_flow(link, 1)
    lib.pn_link_drained(link)


def send(link: Handle, tag: bytes, data: bytes, is_settled: bool) -> Handle:
    """One transfer on a sending link."""
    delivery = lib.pn_delivery(link, (len(tag), ffi.from_buffer(tag)))
    lib.pn_link_send(link, data, len(data))
    lib.pn_link_advance(link)
    if is_settled:
        lib.pn_delivery_settle(delivery)
    return delivery


def begin(link: Handle, tag: bytes, data: bytes) -> Handle:
    """One transfer on a sending link, of which this is the beginning: nothing else is sent on the link before its end."""
    delivery = lib.pn_delivery(link, (len(tag), ffi.from_buffer(tag)))
    lib.pn_link_send(link, data, len(data))
    return delivery


def go_on(link: Handle, data: memoryview) -> None:
    """More of the transfer that was begun."""
    lib.pn_link_send(link, ffi.from_buffer(data), len(data))


def finish(link: Handle) -> None:
    """There is no more of the transfer that was begun."""
    lib.pn_link_advance(link)


def abort(delivery: Handle) -> None:
    """A transfer that was begun has no end: its peer is told to forget it (2.6.14). Settles it.

    Not once the engine has no transport: it would let go of the delivery, and then look at it once more.
    """
    lib.pn_delivery_abort(delivery)


def unsettled(link: Handle) -> int:
    """Deliveries of a link that are not settled here, whoever made them."""
    return lib.pn_link_unsettled(link)  # type: ignore[no-any-return]


def unsent_bytes(session: Handle) -> int:
    """Content that the engine holds for a session: the peer's window is closed, or it was not asked for output."""
    return lib.pn_session_outgoing_bytes(session)  # type: ignore[no-any-return]


def is_settled(delivery: Handle) -> bool:
    """Whether the peer has settled it."""
    return lib.pn_delivery_settled(delivery)  # type: ignore[no-any-return]


def settle(delivery: Handle) -> None:
    """Settles; the handle is no good after it."""
    lib.pn_delivery_settle(delivery)


def accept(delivery: Handle) -> None:
    """Accepted and settled."""
    lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
    lib.pn_delivery_settle(delivery)


def update(delivery: Handle, state: State) -> None:
    """Says a state that was encoded beforehand, without settling."""
    if state.encoded:
        data = lib.pn_disposition_data(lib.pn_delivery_local(delivery))
        lib.pn_data_clear(data)
        lib.pn_data_decode(data, state.encoded, len(state.encoded))
    lib.pn_delivery_update(delivery, state.code)


def remote_state(delivery: Handle) -> int:
    """Descriptor of the state that the peer gave it; 0: none."""
    return lib.pn_delivery_remote_state(delivery)  # type: ignore[no-any-return]


def remote_modified(delivery: Handle) -> tuple[bool, bool]:
    """Of the state `modified`: (delivery-failed, undeliverable-here)."""
    remote = lib.pn_delivery_remote(delivery)
    return lib.pn_disposition_is_failed(remote), lib.pn_disposition_is_undeliverable(remote)


def remote_annotations(delivery: Handle) -> bytes:
    """Of the state `modified`: message-annotations, encoded; empty without any, or if they have more than 64 KiB."""
    data = lib.pn_disposition_annotations(lib.pn_delivery_remote(delivery))
    count = lib.pn_data_encode(data, _chunk, _CHUNK_BYTES)
    return _view[:count] if count > 0 else b""


_known: dict[bytes, Transactional] = {}
_KNOWN_MAX, _KNOWN_BYTES_MAX = 4096, 256
"""How many are remembered, of all clients together, and of what size: one with annotations comes once."""


def remote_transaction(delivery: Handle) -> Transactional:
    """Of a transactional state: the transaction and the outcome in it. Raises `ValueError` for one that is malformed."""
    data = lib.pn_disposition_data(lib.pn_delivery_remote(delivery))
    count = lib.pn_data_encode(data, _chunk, _CHUNK_BYTES)
    if count < 0:
        raise ValueError("a transactional state of more than 64 KiB")
    encoded = _view[:count]
    found = _known.get(encoded)
    if found is None:
        try:
            found = Transactional.from_fields(wrapped(delivery).remote.data)
        except UNREADABLE as error:
            raise ValueError(f"a malformed transactional state: {error}") from error
        if count <= _KNOWN_BYTES_MAX:
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[encoded] = found
    return found


def wrapped(delivery: Handle) -> Delivery:
    """The delivery for the public API: what is rare is said there."""
    return Delivery.wrap(delivery)  # type: ignore[no-untyped-call,no-any-return]
