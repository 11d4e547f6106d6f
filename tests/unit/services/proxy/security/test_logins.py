"""Each mechanism by itself, against the vectors of its RFC and against clients that do it wrong."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.scram_credentials import credentials_of
from services.proxy.security.anonymous import AnonymousLogin
from services.proxy.security.external import ExternalLogin
from services.proxy.security.identity import ANONYMOUS_IDENTITY, Identity
from services.proxy.security.plain import PlainLogin
from services.proxy.security.sasl_frames import SENT_FRAME_BYTES_MAX, challenge_frame
from services.proxy.security.sasl_login import WRONG_CREDENTIALS, Accepted, Challenge, Refused, Step
from services.proxy.security.scram import CLIENT_NONCE_CHARACTERS_MAX, ScramLogin
from tests.unit.services.proxy.security.client import ScramClient, SomeUsers, plain

USERS = SomeUsers(ada="lovelace", user="pencil")
RFC_NONCE = "rOprNGfwEbeRWgbNEkqO"


def accepted(step: Step) -> Identity | None:
    return step.identity if isinstance(step, Accepted) else None


def test_anonymous_lets_everybody_in_and_forgets_the_trace() -> None:
    for trace in (None, b"", b"sirhc@example", b"\xff\x00"):
        assert AnonymousLogin().step(trace) == Accepted(ANONYMOUS_IDENTITY)


@pytest.mark.parametrize("asked", [None, b"", b"grace"])
def test_external_is_the_user_of_the_certificate(asked: bytes | None) -> None:
    assert ExternalLogin("grace").step(asked) == Accepted(Identity("grace", "EXTERNAL"))


@pytest.mark.parametrize("asked", [b"ada", b"grace\0", b"\xff", "\u0007".encode()])
def test_external_speaks_for_nobody_else(asked: bytes) -> None:
    assert isinstance(ExternalLogin("grace").step(asked), Refused)


def test_plain_takes_the_password_and_nothing_else() -> None:
    assert accepted(PlainLogin(USERS).step(plain("ada", "lovelace"))) == Identity("ada", "PLAIN")
    assert accepted(PlainLogin(USERS).step(plain("ada", "lovelace", acting="ada"))) == Identity(
        "ada", "PLAIN"
    )
    for user, password in (
        ("ada", "Lovelace"),
        ("ada", "pencil"),
        ("nobody", "lovelace"),
        ("ada", " lovelace"),
    ):
        assert PlainLogin(USERS).step(plain(user, password)) == WRONG_CREDENTIALS


def test_plain_does_not_act_for_another_user() -> None:
    assert isinstance(PlainLogin(USERS).step(plain("ada", "lovelace", acting="user")), Refused)


@pytest.mark.parametrize(
    "malformed",
    [b"", b"ada", b"\0ada", b"\0ada\0", b"\0\0lovelace", b"\0ada\0love\0lace", b"\0\xff\0x", b"\0ada\0\xff"],
)
def test_a_malformed_plain_response_is_refused_at_no_cost(malformed: bytes) -> None:
    users = SomeUsers()
    assert isinstance(PlainLogin(users).step(malformed), Refused)
    assert users.asked == []


def test_plain_prepares_names_and_passwords() -> None:
    """RFC 4013, 3: a soft hyphen is nothing, and the Roman numeral nine is IX."""
    users = SomeUsers(IX="secret\u2168")
    assert accepted(PlainLogin(users).step(plain("I\u00adX", "secretIX"))) == Identity("IX", "PLAIN")


def test_scram_is_that_of_rfc_7677() -> None:
    users = SomeUsers()
    users.known["user"] = credentials_of("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    login = ScramLogin(users, lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert login.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert login.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == Accepted(Identity("user", "SCRAM-SHA-256"), b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def scram(client: ScramClient, users: SomeUsers = USERS) -> Step:
    login = ScramLogin(users)
    challenge = login.step(client.first())
    return login.step(client.final(challenge.data)) if isinstance(challenge, Challenge) else challenge


@pytest.mark.parametrize("gs2", ["n,,", "y,,", "n,a=ada,", "y,a=ada,"])
def test_scram_without_channel_binding_in_all_its_forms(gs2: str) -> None:
    client = ScramClient("ada", "lovelace", gs2=gs2)
    step = scram(client)
    assert accepted(step) == Identity("ada", "SCRAM-SHA-256")
    assert isinstance(step, Accepted) and client.is_server(step.additional_data)


def test_scram_refuses_wrong_passwords_and_unknown_users_alike() -> None:
    assert scram(ScramClient("ada", "byron")) == WRONG_CREDENTIALS
    assert scram(ScramClient("nobody", "lovelace")) == WRONG_CREDENTIALS


@pytest.mark.parametrize("gs2", ["p=tls-unique,,", "n,a=user,", "x,,", ",,", "n,b=ada,"])
def test_scram_refuses_channel_binding_and_acting_for_others(gs2: str) -> None:
    step = scram(ScramClient("ada", "lovelace", gs2=gs2))
    assert isinstance(step, Refused) and step != WRONG_CREDENTIALS


def test_scram_names_may_have_commas_and_equals_signs() -> None:
    users = SomeUsers(**{"a=b,c": "secret", "=2C": "other"})
    assert accepted(scram(ScramClient("a=b,c", "secret"), users)) == Identity("a=b,c", "SCRAM-SHA-256")
    assert accepted(scram(ScramClient("=2C", "other"), users)) == Identity("=2C", "SCRAM-SHA-256")


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ada",
        b"n,,r=x,n=ada",
        b"n,,m=ext,n=ada,r=x",
        b"n,,n=,r=x",
        b"n,,n=ada,r=",
        b"n,,n=a=da,r=x",
        b"n,,n=a=2c,r=x",
        b"n,,n=a=3=2CD,r=x",
        b"n,,n=ada,r=x y",
        b"n,,n=ada,r=\x7f",
        b"n,,n=ada,r=\xc3\xa4",
        b"n,,n=\xff,r=x",
        b"n,,n=ada,r=" + b"x" * (CLIENT_NONCE_CHARACTERS_MAX + 1),
    ],
)
def test_a_malformed_first_message_is_refused(malformed: bytes) -> None:
    assert isinstance(ScramLogin(USERS).step(malformed), Refused)


def test_extensions_after_the_nonce_are_ignored_and_signed() -> None:
    client = ScramClient("ada", "lovelace")
    client.bare += ",x=whatever"
    assert accepted(scram(client)) == Identity("ada", "SCRAM-SHA-256")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c=!"),
        (b",r=", b",q="),
        (b",r=fyko", b",r=fykO"),
        (b",p=", b",q="),
        (b",p=", b",p=AAAA"),
        (b",p=", b",p=A"),
        (b",p=", b",x=1,p="),
    ],
)
def test_a_final_message_that_was_changed_is_refused(old: bytes, new: bytes) -> None:
    login, client = ScramLogin(USERS), ScramClient("ada", "lovelace")
    challenge = login.step(client.first())
    assert isinstance(challenge, Challenge)
    final = client.final(challenge.data)
    assert final.count(old) == 1
    assert isinstance(login.step(final.replace(old, new)), Refused)


def test_a_final_message_of_another_login_is_refused_although_it_is_signed() -> None:
    for other, reason in (
        ({"gs2": "y,,"}, "another gs2 header than at first"),
        ({"nonce": "fyko"}, "another nonce than at first"),
    ):
        login, client = ScramLogin(USERS), ScramClient("ada", "lovelace")
        challenge = login.step(client.first())
        assert isinstance(challenge, Challenge)
        assert login.step(client.final(challenge.data, **other)) == Refused(reason)


def test_a_proof_is_worth_nothing_in_another_login() -> None:
    login, client = ScramLogin(USERS), ScramClient("ada", "lovelace")
    challenge = login.step(client.first())
    assert isinstance(challenge, Challenge)
    final = client.final(challenge.data)
    again = ScramLogin(USERS)
    again.step(client.first())
    assert isinstance(again.step(final), Refused)
    assert accepted(login.step(final)) is not None


def test_the_longest_challenge_fits_into_a_frame() -> None:
    users = SomeUsers()
    users.known["ada"] = credentials_of("x", bytes(64), 1_000_000)
    challenge = ScramLogin(users).step(b"n,,n=ada,r=" + b"x" * CLIENT_NONCE_CHARACTERS_MAX)
    assert isinstance(challenge, Challenge)
    assert len(challenge_frame(challenge.data)) <= SENT_FRAME_BYTES_MAX


_texts = st.one_of(st.binary(max_size=80), st.text("nyapmrc=,x\u00adbiws/+", max_size=60).map(str.encode))


@pytest.mark.fuzz
@given(_texts, _texts)
def test_scram_raises_nothing_and_lets_nobody_in(first: bytes, final: bytes) -> None:
    login = ScramLogin(USERS)
    step = login.step(first)
    if isinstance(step, Challenge):
        assert isinstance(login.step(final), Refused)
    else:
        assert isinstance(step, Refused)


@pytest.mark.fuzz
@given(st.one_of(st.binary(max_size=200), st.text("\0ad\u00ad", max_size=8).map(str.encode)))
def test_plain_raises_nothing_and_lets_nobody_in(response: bytes) -> None:
    assert isinstance(PlainLogin(USERS).step(response), Refused)


def test_nothing_secret_is_shown() -> None:
    shown = "".join(
        map(repr, (USERS.credentials("ada"), Challenge(b"secret"), Accepted(ANONYMOUS_IDENTITY, b"secret")))
    )
    assert "secret" not in shown and "salt" not in shown and "key" not in shown
