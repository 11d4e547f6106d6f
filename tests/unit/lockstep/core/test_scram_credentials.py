"""Credentials of a password, and the form of names and passwords."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.saslprep import saslprep
from lockstep.core.scram_credentials import (
    ScramCredentials,
    credentials_of,
    is_password,
    prepared_name,
    read_user_line,
    user_line,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("", ""),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_saslprep_is_that_of_rfc_4013(text: str, prepared: str) -> None:
    """The examples of its section 3, and others."""
    assert saslprep(text) == prepared


@pytest.mark.parametrize(
    "text", ["\u0007", "\u0627\u0031", "a\u0627", "\u0627a\u0627", "\ue000", "\ufffd", "\u2028"]
)
def test_saslprep_refuses_what_rfc_4013_prohibits(text: str) -> None:
    with pytest.raises(ValueError):
        saslprep(text)


def test_characters_newer_than_unicode_3_2_are_not_stored() -> None:
    assert saslprep("\U0001f600") == "\U0001f600"
    with pytest.raises(ValueError, match="too new"):
        saslprep("\U0001f600", is_stored=True)


@given(st.text(max_size=30))
def test_prepared_once_is_prepared(text: str) -> None:
    try:
        prepared = saslprep(text)
    except ValueError:
        return
    assert saslprep(prepared) == prepared


def test_a_line_is_that_of_postgresql() -> None:
    """Its keys are those behind the proof and the signature of RFC 7677, 3."""
    line = user_line("user", credentials_of("pencil", SALT, 4096))
    name, method, keys = line.split("$")[0], *line.split("$")[1:]
    assert name == "user:SCRAM-SHA-256" and method == "4096:W22ZaJ0SNY7soEsUEjb6gQ=="
    assert keys == "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert read_user_line(line) == ("user", credentials_of("pencil", SALT, 4096))


def test_a_password_is_recognised_in_its_prepared_form() -> None:
    credentials = credentials_of("se\u00adcret\u2168", SALT, 4096)
    assert is_password(credentials, "secretIX")
    assert not is_password(credentials, "secretix")
    assert not is_password(credentials, "secret\u0007")


def test_nothing_is_the_password_of_nobody() -> None:
    """Not even where somebody stored the hash of an empty one by other means."""
    client_key = hmac.digest(hashlib.pbkdf2_hmac("sha256", b"", SALT, 4096), b"Client Key", "sha256")
    emptied = ScramCredentials(4096, SALT, hashlib.sha256(client_key).digest(), bytes(32))
    for empty in ("", "\u00ad", "\u0007"):
        assert not is_password(emptied, empty)
    for empty in ("", "\u00ad"):
        with pytest.raises(ValueError, match="empty"):
            credentials_of(empty, SALT)


@pytest.mark.parametrize("iterations", [0, 4095, 1_000_001])
def test_iterations_have_limits(iterations: int) -> None:
    keys = bytes(32)
    with pytest.raises(ValueError, match="iterations"):
        ScramCredentials(iterations, SALT, keys, keys).check()


@pytest.mark.parametrize("name", ["", " ", "a:b", "#a", " a", "a ", "\u0007", "x" * 256])
def test_names_that_no_line_can_hold_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        prepared_name(name)


@given(st.text(max_size=40), st.binary(min_size=1, max_size=64))
def test_a_line_gives_back_what_it_was_made_of(name: str, salt: bytes) -> None:
    credentials = ScramCredentials(4096, salt, b"a" * 32, b"b" * 32)
    try:
        line = user_line(name, credentials)
    except ValueError:
        return
    assert "\n" not in line
    assert read_user_line(line) == (prepared_name(name), credentials)


@given(st.text("aS:$CRAM-SHA256=0\n", max_size=60))
def test_a_line_that_is_none_is_refused_by_valueerror(line: str) -> None:
    with pytest.raises(ValueError):
        read_user_line(line)
