"""Both ways into the engine do the same: what one test says of one, it says of the other."""

from types import ModuleType
from typing import Any

import pytest
from proton import Collector, Connection, Delivery, Link, Transport, symbol

from lockstep.core.amqp.annotations import pairs_of
from services.proxy import engine_path_c, engine_path_public
from services.proxy.engine_path import EnginePath
from services.proxy.engine_words import EngineEvent, StateCode, declared, transactional

PATHS: list[ModuleType] = [engine_path_c, engine_path_public]


class Engine:
    """One side of a connection, without I/O."""

    def __init__(self, path: EnginePath, mode: int | None) -> None:
        self.path = path
        self.connection = Connection()
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.transport = Transport(mode)
        self.transport.bind(self.connection)
        self.seen: list[tuple[EngineEvent, Any, Any]] = []


class Pair:
    """A client and a server that hear each other at once; both go by one path."""

    def __init__(self, path: EnginePath) -> None:
        self.path = path
        self.client, self.server = Engine(path, None), Engine(path, Transport.SERVER)
        self.client.connection.open()
        session = self.client.connection.session()
        session.open()
        self.sender = session.sender("s")
        self.sender.target.address = "q"
        self.sender.open()
        self.receiver = session.receiver("r")
        self.receiver.source.address = "q"
        self.receiver.open()
        self.exchange()
        self.links: dict[str, Link] = {}
        for _, _, event in self.server.seen:
            if event is not None and event.link is not None:
                self.links[event.link.name] = event.link
        self.server.connection.open()
        for link in self.links.values():
            if link.state & Link.LOCAL_UNINIT:
                link.session.open()
                link.open()
        self.exchange()

    def exchange(self) -> None:
        """Carries bytes until none are left."""
        moved = True
        while moved:
            moved = False
            for one, other in ((self.client, self.server), (self.server, self.client)):
                one.seen += list(self.path.events(one.collector))
                for data in self.path.output(one.transport):
                    moved = True
                    view = memoryview(bytes(data))
                    while view:
                        taken = self.path.push(other.transport, view)
                        assert taken > 0
                        view = view[taken:]
                        other.seen += list(self.path.events(other.collector))


@pytest.fixture(params=PATHS, ids=["c", "public"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


def incoming(pair: Pair) -> Any:
    return pair.path.handle_of(pair.links["s"])


def outgoing(pair: Pair) -> Any:
    return pair.path.handle_of(pair.links["r"])


def test_a_transfer_is_received_and_accepted(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 10)
    pair.exchange()
    sent = pair.sender.delivery("1")
    pair.sender.stream(b"hello")
    pair.sender.advance()
    pair.exchange()
    got = path.receive(link)
    assert got is not None
    assert (got.data, got.is_partial, got.is_aborted, bool(got.is_settled)) == (b"hello", False, False, False)
    assert path.credit(link) == 9
    assert path.receive(link) is None
    path.accept(got.delivery)
    pair.exchange()
    assert sent.remote_state == Delivery.ACCEPTED
    assert sent.settled


def test_a_large_transfer_comes_in_pieces(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 1)
    pair.exchange()
    body = bytes(range(256)) * 1000
    pair.sender.delivery("1")
    pair.sender.stream(body[:100_000])
    pair.exchange()
    pieces = [path.receive(link)]
    assert pieces[0] is not None
    assert pieces[0].is_partial
    assert path.receive(link) is None
    pair.sender.stream(body[100_000:])
    pair.sender.advance()
    pair.exchange()
    while (got := path.receive(link)) is not None:
        pieces.append(got)
    assert b"".join(piece.data for piece in pieces if piece) == body
    assert not pieces[-1].is_partial  # type: ignore[union-attr]


def test_an_aborted_transfer_is_told(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 2)
    pair.exchange()
    aborted = pair.sender.delivery("1")
    pair.sender.stream(b"x" * 100)
    pair.exchange()
    got = path.receive(link)
    assert got is not None
    assert got.is_partial
    aborted.abort()
    pair.exchange()
    got = path.receive(link)
    assert got is not None
    assert got.is_aborted


def test_a_settled_transfer_expects_nothing(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 1)
    pair.exchange()
    sent = pair.sender.delivery("1")
    pair.sender.stream(b"hello")
    pair.sender.advance()
    sent.settle()
    pair.exchange()
    got = path.receive(link)
    assert got is not None
    assert got.is_settled


def test_a_transfer_in_a_transaction_names_it(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 1)
    pair.exchange()
    sent = pair.sender.delivery("1")
    pair.sender.stream(b"hello")
    sent.local.data = [b"\x00\xfftx"]  # type: ignore[list-item]
    sent.update(StateCode.TRANSACTIONAL)
    pair.sender.advance()
    pair.exchange()
    got = path.receive(link)
    assert got is not None
    assert path.remote_state(got.delivery) == StateCode.TRANSACTIONAL
    said = path.remote_transaction(got.delivery)
    assert (said.transaction, said.outcome) == (b"\x00\xfftx", 0)
    path.update(got.delivery, transactional(said.transaction, StateCode.ACCEPTED))
    path.settle(got.delivery)
    pair.exchange()
    assert sent.remote_state == StateCode.TRANSACTIONAL
    data = sent.remote.data
    assert data is not None
    assert bytes(data[0]) == b"\x00\xfftx"
    assert int(data[1].descriptor) == StateCode.ACCEPTED  # type: ignore[attr-defined]


def test_a_declared_state_is_heard(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 1)
    pair.exchange()
    sent = pair.sender.delivery("1")
    pair.sender.stream(b"declare")
    pair.sender.advance()
    pair.exchange()
    got = path.receive(link)
    assert got is not None
    path.update(got.delivery, declared(b"\x01\x02"))
    path.settle(got.delivery)
    pair.exchange()
    assert sent.remote_state == StateCode.DECLARED
    assert bytes(sent.remote.data[0]) == b"\x01\x02"  # type: ignore[index]


def test_what_is_sent_is_heard_of(pair: Pair) -> None:
    path, link = pair.path, outgoing(pair)
    pair.receiver.flow(3)
    pair.exchange()
    assert path.credit(link) == 3
    first = path.send(link, b"1", b"one", False)
    second = path.send(link, b"2", b"two", False)
    third = path.send(link, b"3", b"three", True)
    pair.exchange()
    assert path.credit(link) == 0
    got = []
    while (delivery := pair.receiver.current) is not None:
        got.append((delivery.tag, bytes(pair.receiver.recv(100) or b""), bool(delivery.settled)))
        pair.receiver.advance()
        if delivery.tag == "1":
            delivery.local.failed = True
            delivery.local.undeliverable = True
            delivery.local.annotations = {symbol("a"): True}
            delivery.update(Delivery.MODIFIED)
        elif delivery.tag == "2":
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
    assert got == [("1", b"one", False), ("2", b"two", False), ("3", b"three", True)]
    pair.server.seen.clear()
    pair.exchange()
    told = [what for kind, _, what in pair.server.seen if kind is EngineEvent.DELIVERY]
    assert told == [first, second]
    assert path.remote_state(first) == StateCode.MODIFIED
    assert tuple(map(bool, path.remote_modified(first))) == (True, True)
    assert pairs_of(path.remote_annotations(first)) == b"\xa3\x01a\x41"
    assert path.remote_annotations(second) == b""
    assert not path.is_settled(first)
    assert path.remote_state(second) == StateCode.ACCEPTED
    assert path.is_settled(second)
    path.settle(first)
    path.settle(second)
    del third


def test_what_is_sent_in_pieces_is_one_transfer_and_what_is_aborted_is_none(pair: Pair) -> None:
    path, link = pair.path, outgoing(pair)
    pair.receiver.flow(2)
    pair.exchange()
    body = bytes(range(256)) * 1000
    first = path.begin(link, b"1", b"begin")
    path.go_on(link, memoryview(body))
    pair.exchange()
    assert path.has_unsent(link) and path.unsettled(link) == 1 and path.credit(link) == 2
    assert path.is_sending(link)
    got = pair.receiver.current
    assert got is not None
    was_partial = got.partial
    path.finish(link)
    pair.exchange()
    assert (was_partial, got.partial) == (True, False)
    assert not path.is_sending(link)
    assert pair.receiver.recv(1 << 20) == b"begin" + body
    pair.receiver.advance()
    path.settle(first)
    second = path.begin(link, b"2", b"half")
    pair.exchange()
    path.abort(second)
    pair.exchange()
    got = pair.receiver.current
    assert got is not None and got.tag == "2" and got.aborted
    assert not path.has_unsent(link) and path.unsettled(link) == 0 and path.credit(link) == 0


def test_a_link_is_sending_what_its_peer_has_no_credit_for(pair: Pair) -> None:
    path, link = pair.path, outgoing(pair)
    path.send(link, b"1", b"data", True)
    pair.exchange()
    assert path.is_sending(link) and not path.has_unsent(link)
    pair.receiver.flow(1)
    pair.exchange()
    assert not path.is_sending(link)
    assert not path.is_sending(incoming(pair))


def test_what_is_aborted_before_it_was_sent_is_let_go_of(pair: Pair) -> None:
    path, link = pair.path, outgoing(pair)
    pair.receiver.flow(1)
    pair.exchange()
    sent = path.send(link, b"1", b"sent", False)
    pair.exchange()
    unsent = path.send(link, b"2", b"unsent", False)
    assert path.unsent_bytes(path.session_of(link)) == len(b"unsent")
    path.abort(sent)
    path.abort(unsent)
    assert path.unsent_bytes(path.session_of(link)) == 0
    pair.exchange()
    got = pair.receiver.current
    assert got is not None and pair.receiver.recv(10) == b"sent"
    pair.receiver.advance()
    assert got.settled and pair.receiver.current is None
    assert path.unsettled(link) == 0


def test_a_drain_is_answered(pair: Pair) -> None:
    path, link = pair.path, outgoing(pair)
    pair.receiver.drain(5)
    pair.exchange()
    assert path.is_draining(link)
    path.drained(link)
    pair.exchange()
    assert path.credit(link) == 0
    assert pair.receiver.credit == 0


def test_a_delivery_is_found_again_by_its_handle(pair: Pair) -> None:
    path, link = pair.path, outgoing(pair)
    pair.receiver.flow(1)
    pair.exchange()
    sent = {path.send(link, b"1", b"one", False): "one"}
    pair.exchange()
    delivery = pair.receiver.current
    assert delivery is not None
    delivery.update(Delivery.RELEASED)
    delivery.settle()
    pair.server.seen.clear()
    pair.exchange()
    found = [what for kind, _, what in pair.server.seen if kind is EngineEvent.DELIVERY]
    assert [sent[what] for what in found] == ["one"]
    assert isinstance(path.wrapped(found[0]), Delivery)


@pytest.mark.parametrize("fields", [None, [], ["text"], [b"tx", 3], [b"tx", "accepted"], {}, [None]])
def test_what_is_no_transactional_state_is_refused(fields: Any) -> None:
    from services.proxy.engine_words import Transactional

    with pytest.raises(ValueError):
        Transactional.from_fields(fields)


def test_what_nobody_takes_is_dropped(pair: Pair) -> None:
    path, link = pair.path, incoming(pair)
    path.grant(link, 3)
    pair.exchange()
    for number in (1, 2):
        pair.sender.delivery(str(number))
        pair.sender.stream(b"whole")
        pair.sender.advance()
    pair.sender.delivery("3")
    pair.sender.stream(b"part")
    pair.exchange()
    path.drop_received(link)
    assert path.receive(link) is None


def test_a_drain_without_credit_is_answered_and_nothing_is_counted() -> None:
    pair = Pair(engine_path_c)
    link = outgoing(pair)
    for credit in (0, 2, 0):
        pair.receiver.flow(credit)
        pair.receiver.drain(0)
        pair.exchange()
        assert engine_path_c.is_draining(link)
        seen = len(pair.client.seen)
        engine_path_c.drained(link)
        pair.exchange()
        assert EngineEvent.FLOW in [kind for kind, _, _ in pair.client.seen[seen:]]
        assert engine_path_c.credit(link) == 0 and pair.receiver.credit == 0
    pair.receiver.drain_mode = False
    pair.receiver.flow(3)
    pair.exchange()
    assert engine_path_c.credit(link) == 3
