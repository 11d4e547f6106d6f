"""The layer from its first byte to the AMQP layer's, by frames made by hand: whatever the pieces, and whatever the bytes."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.proxy.security.identity import ANONYMOUS_IDENTITY, UNKNOWN_PEER, Identity, PeerIdentity
from services.proxy.security.mechanisms import sasl_layer
from services.proxy.security.sasl_layer import FRAME_BYTES_MAX, SaslLayer, SaslState
from services.proxy.security.sasl_login import Challenge, Step
from services.proxy.security.settings import MECHANISMS, SecuritySettings
from tests.unit.services.proxy.security.client import (
    AMQP,
    SASL,
    ScramClient,
    SomeUsers,
    binary,
    frame,
    hear,
    init,
    listed,
    plain,
    response,
    symbol,
)

USERS = SomeUsers(ada="lovelace")
TLS = PeerIdentity(is_encrypted=True)
CERTIFIED = PeerIdentity(is_encrypted=True, certificate_user="grace")
ADA = plain("ada", "lovelace")
OPEN = AMQP + b"\0\0\0\x10\x02\0\0\0whatever"


def layer(*mechanisms: str, peer: PeerIdentity = TLS) -> SaslLayer:
    return sasl_layer(SecuritySettings(mechanisms or MECHANISMS), USERS, peer)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 1000])
def test_a_pipelining_client_is_let_in_whatever_the_pieces(size: int) -> None:
    tested = layer()
    rest = b"".join(tested.receive(piece) for piece in pieces(SASL + init("PLAIN", ADA) + OPEN, size))
    assert (tested.state, tested.identity) == (SaslState.DONE, Identity("ada", "PLAIN"))
    assert rest == OPEN
    heard = hear(tested.outgoing())
    assert (heard.headers, heard.code) == ([SASL], 0)
    assert tested.outgoing() == b""


def test_the_strongest_mechanism_is_offered_first_whatever_the_settings_order() -> None:
    tested = layer("ANONYMOUS", "PLAIN", "SCRAM-SHA-256", "EXTERNAL", peer=CERTIFIED)
    tested.receive(SASL)
    assert hear(tested.outgoing()).mechanisms == ["EXTERNAL", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS"]


def test_plain_is_not_offered_without_tls_and_external_not_without_a_certificate() -> None:
    users = SomeUsers(ada="lovelace")
    tested = sasl_layer(SecuritySettings(MECHANISMS), users, UNKNOWN_PEER)
    tested.receive(SASL + init("PLAIN", ADA))
    heard = hear(tested.outgoing())
    assert heard.mechanisms == ["SCRAM-SHA-256", "ANONYMOUS"]
    assert (tested.state, heard.code, users.asked) == (SaslState.FAILED, 1, [])
    allowed = SecuritySettings(MECHANISMS, is_plain_without_tls=True)
    tested = sasl_layer(allowed, USERS, UNKNOWN_PEER)
    tested.receive(SASL + init("PLAIN", ADA))
    assert tested.state is SaslState.DONE


def test_no_user_means_no_mechanism_with_passwords() -> None:
    tested = sasl_layer(SecuritySettings(MECHANISMS), None, TLS)
    tested.receive(SASL)
    assert hear(tested.outgoing()).mechanisms == ["ANONYMOUS"]


def test_where_nothing_can_be_offered_the_connection_fails() -> None:
    tested = layer("PLAIN", peer=UNKNOWN_PEER)
    tested.receive(SASL + init("PLAIN", ADA))
    assert tested.state is SaslState.FAILED
    assert tested.outgoing() == SASL


def test_wrong_credentials_are_code_1_and_what_follows_is_dropped() -> None:
    tested = layer()
    assert tested.receive(SASL + init("PLAIN", plain("ada", "byron")) + OPEN) == b""
    assert (tested.state, tested.identity) == (SaslState.FAILED, None)
    assert hear(tested.outgoing()).code == 1
    assert tested.receive(OPEN) == b"" and tested.outgoing() == b""


@pytest.mark.parametrize("wrong", [("ada", "byron"), ("nobody", "lovelace")])
def test_a_failure_tells_neither_the_log_nor_the_client_which_part_was_wrong(wrong: tuple[str, str]) -> None:
    tested = layer()
    tested.receive(SASL + init("PLAIN", plain(*wrong)))
    assert tested.failure == "wrong name or password"


def test_an_unknown_mechanism_is_code_1() -> None:
    tested = layer()
    tested.receive(SASL + init("SCRAM-SHA-1", b"n,,n=ada,r=x"))
    assert (hear(tested.outgoing()).code, tested.state) == (1, SaslState.FAILED)


def test_amqp_without_sasl_is_anonymous_where_that_is_allowed() -> None:
    tested = layer()
    assert b"".join(tested.receive(piece) for piece in pieces(OPEN, 3)) == OPEN
    assert (tested.state, tested.identity, tested.outgoing()) == (SaslState.DONE, ANONYMOUS_IDENTITY, b"")


def test_amqp_without_sasl_speaks_for_the_certificate() -> None:
    tested = layer(peer=CERTIFIED)
    assert tested.receive(OPEN) == OPEN
    assert tested.identity == Identity("grace", "EXTERNAL")


def test_a_certificate_is_no_identity_where_external_is_not_allowed() -> None:
    tested = layer("PLAIN", peer=CERTIFIED)
    assert tested.receive(OPEN) == b""
    assert tested.state is SaslState.FAILED


def test_amqp_without_sasl_is_answered_with_the_header_that_is_served() -> None:
    tested = layer("PLAIN")
    assert tested.receive(OPEN) == b""
    assert (tested.state, tested.outgoing()) == (SaslState.FAILED, SASL)


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x03\x01\x01\x00",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x00\x0a",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_every_other_header_is_answered_with_the_one_that_is_served(header: bytes, size: int) -> None:
    tested = layer()
    for piece in pieces(header, size):
        tested.receive(piece)
    assert (tested.state, tested.outgoing()) == (SaslState.FAILED, SASL)


def test_a_part_of_a_header_is_waited_for() -> None:
    tested = layer()
    tested.receive(SASL[:7])
    assert (tested.state, tested.outgoing()) == (SaslState.NEGOTIATING, b"")


def test_descriptors_may_be_symbols_or_long_numbers_and_frames_may_have_extended_headers() -> None:
    name = b"amqp:sasl-init:list"
    for descriptor in (
        b"\xa3" + bytes([len(name)]) + name,
        b"\xb3\0\0\0" + bytes([len(name)]) + name,
        b"\x80" + bytes(7) + b"\x41",
    ):
        tested = layer()
        body = listed(descriptor, symbol("PLAIN"), binary(ADA), b"\xa1\x04host")
        tested.receive(SASL + frame(body, offset=4))
        assert tested.state is SaslState.DONE


def test_an_initial_response_may_be_left_out() -> None:
    tested = layer()
    tested.receive(SASL + frame(listed(b"\x53\x41", symbol("PLAIN"))))
    assert hear(tested.outgoing()).challenges == [b""]
    tested.receive(frame(listed(b"\xa3\x17amqp:sasl-response:list", binary(ADA))))
    assert tested.identity == Identity("ada", "PLAIN")


def test_scram_proves_both_sides_to_each_other() -> None:
    tested, client = layer(), ScramClient("ada", "lovelace")
    tested.receive(SASL + init("SCRAM-SHA-256", client.first()))
    (server_first,) = hear(tested.outgoing()).challenges
    assert tested.receive(response(client.final(server_first)) + OPEN) == OPEN
    heard = hear(tested.outgoing())
    assert heard.code == 0 and client.is_server(heard.additional_data)
    assert tested.identity == Identity("ada", "SCRAM-SHA-256")


def test_a_long_password_fits_although_its_frame_is_above_512_bytes() -> None:
    tested = sasl_layer(SecuritySettings(("PLAIN",)), SomeUsers(ada="x" * 3000), TLS)
    tested.receive(SASL + init("PLAIN", plain("ada", "x" * 3000)))
    assert tested.state is SaslState.DONE


GOOD = listed(b"\x53\x41", symbol("PLAIN"), binary(ADA))


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x05",
        b"\x00\x00\x00\x07",
        b"\xff\xff\xff\xff",
        (FRAME_BYTES_MAX + 1).to_bytes(4),
        frame(GOOD, kind=0),
        frame(b""),
        frame(GOOD)[:4] + b"\x01" + frame(GOOD)[5:],
        frame(GOOD)[:4] + b"\xff" + frame(GOOD)[5:],
        frame(GOOD + b"\x40"),
        frame(GOOD[:-1]),
        frame(b"\x45"),
        frame(b"\x00\x53\x41\x45"),
        frame(b"\x00\x53\x41\x40"),
        frame(b"\x00\x53\x40\x45"),
        frame(b"\x00\x44\x45"),
        frame(b"\x00\x40\x45"),
        frame(b"\x00\xa3\x04what\x45"),
        frame(b"\x00" * 200),
        frame(listed(b"\x53\x41", binary(None))),
        frame(listed(b"\x53\x41", binary(b"PLAIN"))),
        frame(listed(b"\x53\x41", b"\xa3\x01\xff")),
        frame(listed(b"\x53\x41", symbol("PLAIN"), symbol("x"))),
        frame(listed(b"\x53\x41", symbol("PLAIN"), binary(ADA), b"\xa1\x01\xff")),
        frame(listed(b"\x53\x41", symbol("PLAIN"), binary(ADA), b"\x40", b"\x40")),
        frame(b"\x00\x53\x41\xd0\xff\xff\xff\xff\xff\xff\xff\xff"),
        frame(b"\x00\x53\x41\xd0\x00\x00\x00\x09\xff\xff\xff\xff\xb3\xff\xff\xff\xff"),
        frame(b"\x00\x53\x41\xc0\x0a\x01" + symbol("PLAIN") + binary(b"")),
        frame(b"\x00\x53\x41\xc0\x09\x01" + symbol("PLAIN")),
        frame(b"\x00\x53\x41\xc0\x04\x01\xa3\x09AB"),
        frame(listed(b"\x53\x43", binary(b"x"))),
        init("PLAIN") + init("PLAIN", ADA),
        init("PLAIN") + frame(listed(b"\x53\x43", binary(None))),
    ],
)
def test_what_is_no_frame_fails_and_lets_nobody_in(bad: bytes) -> None:
    tested = layer()
    assert tested.receive(SASL + bad) == b""
    assert tested.state is SaslState.FAILED and tested.failure.startswith("malformed frame")


def test_rounds_are_limited() -> None:
    """A mechanism that would ask for ever is stopped by the layer."""

    class Endless:
        def step(self, response: bytes | None) -> Step:
            return Challenge(b"again")

    tested = SaslLayer({"ENDLESS": Endless}, None)
    tested.receive(SASL + init("ENDLESS") + 100 * response(b""))
    heard = hear(tested.outgoing())
    assert (len(heard.challenges), heard.code, tested.state) == (4, 1, SaslState.FAILED)


def test_two_connections_share_nothing() -> None:
    one, other = layer(), layer()
    one.receive(SASL + init("SCRAM-SHA-256", ScramClient("ada", "lovelace").first()))
    other.receive(SASL + init("PLAIN", ADA))
    assert (one.state, other.state) == (SaslState.NEGOTIATING, SaslState.DONE)


_frames = st.one_of(
    st.sampled_from([SASL, AMQP, init("ANONYMOUS"), init("PLAIN"), init("PLAIN", ADA), response(ADA)]),
    st.builds(init, st.sampled_from(MECHANISMS), st.one_of(st.none(), st.binary(max_size=300))),
    st.builds(response, st.binary(max_size=300)),
    st.builds(frame, st.binary(max_size=100), kind=st.integers(0, 3), offset=st.integers(2, 9)),
    st.builds(response, st.text("nyacrpim=,biws", max_size=40).map(str.encode)),
    st.binary(max_size=100),
)


def _play(inputs: list[bytes], peer: PeerIdentity) -> SaslLayer:
    tested = sasl_layer(SecuritySettings(MECHANISMS), USERS, peer)
    for data in inputs:
        before = tested.state
        rest = tested.receive(data)
        assert len(rest) <= FRAME_BYTES_MAX + sum(map(len, inputs))
        assert (tested.identity is not None) == (tested.state is SaslState.DONE)
        assert bool(tested.failure) == (tested.state is SaslState.FAILED)
        assert len(tested._buffer) < FRAME_BYTES_MAX
        assert before in (SaslState.NEGOTIATING, tested.state), "no state is left that ends the layer"
        if tested.state is not SaslState.DONE:
            assert rest == b""
    assert len(tested._outgoing) <= 8 * 512
    return tested


@pytest.mark.fuzz
@given(st.lists(_frames, max_size=8), st.sampled_from([UNKNOWN_PEER, TLS, CERTIFIED]))
def test_nothing_that_a_client_sends_raises(inputs: list[bytes], peer: PeerIdentity) -> None:
    _play(inputs, peer)


@pytest.mark.fuzz
@given(st.lists(_frames, max_size=8), st.sampled_from([UNKNOWN_PEER, TLS, CERTIFIED]), st.integers(1, 40))
def test_the_pieces_that_bytes_come_in_change_nothing(
    inputs: list[bytes], peer: PeerIdentity, size: int
) -> None:
    stream = SASL + b"".join(inputs)
    whole, pieced = _play([stream], peer), _play(pieces(stream, size), peer)
    assert (whole.state, whole.identity, whole.failure) == (pieced.state, pieced.identity, pieced.failure)
    assert len(whole.outgoing()) == len(pieced.outgoing())


@pytest.mark.fuzz
@given(
    st.sampled_from(
        [init("PLAIN", ADA), init("ANONYMOUS", b"x"), init("SCRAM-SHA-256", ScramClient("ada", "").first())]
    ),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
)
def test_a_frame_with_changed_bytes_raises_nothing(good: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(good)
    for place, byte in changes:
        changed[place % len(changed)] = byte
    _play([SASL, bytes(changed), OPEN], TLS)


def test_a_flood_stays_within_bounded_memory() -> None:
    tested = layer()
    flood = bytes(64 * 1024)
    tracemalloc.start()
    try:
        tested.receive(SASL + FRAME_BYTES_MAX.to_bytes(4))
        for _ in range(FRAME_BYTES_MAX - 5):
            tested.receive(b"\0")
        is_waiting = tested.failure == ""
        for _ in range(200):
            tested.receive(flood)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert is_waiting and tested.failure.startswith("malformed frame")
    assert peak < 500_000
