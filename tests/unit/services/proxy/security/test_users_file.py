"""Users from a file: who is in it, what an unknown user sees, and what a change of the file does."""

import logging
import os
from pathlib import Path

import pytest

from lockstep.core.scram_credentials import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    ScramCredentials,
    credentials_of,
    is_password,
    user_line,
)
from services.proxy.security.users_file import FILE_BYTES_MAX, UsersFile

ADA = user_line("ada", credentials_of("lovelace", b"salt of ada", 4096))
GRACE = user_line("grace", credentials_of("hopper", b"salt of grace...", 5000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_users_are_known_by_their_passwords(path: Path) -> None:
    path.write_text(f"# ours\n\n{ADA}\r\n  {GRACE}\n")
    users = UsersFile(path)
    assert is_password(users.credentials("ada"), "lovelace")
    assert is_password(users.credentials("grace"), "hopper")
    assert not is_password(users.credentials("ada"), "hopper")


def test_an_unknown_user_looks_like_a_known_one_and_always_the_same(path: Path) -> None:
    path.write_text(f"{ADA}\n{GRACE}\n")
    users = UsersFile(path)
    made_up = [users.credentials(f"nobody-{number}") for number in range(50)]
    assert {(one.iterations, len(one.salt)) for one in made_up} == {(4096, 11), (5000, 16)}
    assert len({one.salt for one in made_up}) == 50
    assert made_up == [users.credentials(f"nobody-{number}") for number in range(50)]


def test_processes_with_the_same_file_make_up_the_same(path: Path) -> None:
    path.write_text(ADA)
    assert UsersFile(path).credentials("nobody") == UsersFile(path).credentials("nobody")
    assert UsersFile(path, b"one").credentials("nobody") != UsersFile(path, b"two").credentials("nobody")


def test_what_is_made_up_outlives_a_change_of_the_file(path: Path) -> None:
    path.write_text(ADA)
    users = UsersFile(path)
    before = users.credentials("nobody")
    replace(path, f"{ADA}\n{user_line('new', credentials_of('x', b'salt of new', 4096))}\n")
    assert is_password(users.credentials("new"), "x")
    assert users.credentials("nobody") == before


def test_an_empty_file_knows_nobody(path: Path) -> None:
    path.write_text("")
    made_up = UsersFile(path).credentials("ada")
    assert (made_up.iterations, len(made_up.salt)) == (ITERATIONS_DEFAULT, SALT_BYTES)


def test_a_changed_file_is_read_again(path: Path) -> None:
    path.write_text(ADA)
    users = UsersFile(path)
    replace(path, GRACE)
    assert is_password(users.credentials("grace"), "hopper")
    assert not is_password(users.credentials("ada"), "lovelace")


def test_a_file_that_is_spoilt_or_gone_changes_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(ADA)
    users = UsersFile(path)
    for spoilt in (f"{GRACE}\nsecret:secret\n", None):
        caplog.clear()
        path.unlink() if spoilt is None else replace(path, spoilt)
        for _ in range(3):
            assert is_password(users.credentials("ada"), "lovelace")
            assert not is_password(users.credentials("grace"), "hopper")
        (warning,) = caplog.records
        assert warning.levelno == logging.WARNING and "secret" not in warning.getMessage()
    replace(path, GRACE)
    assert is_password(users.credentials("grace"), "hopper")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ada", "line 1: expected"),
        (f"{ADA}\n{ADA}", "line 2: the user is there twice"),
        (f"{ADA}\n\n{ADA[:-1]}", "line 3"),
        (ADA.replace("$4096:", "$4095:"), "line 1: iterations are"),
        (ADA.replace("$4096:", "$-4096:"), "line 1: iterations are"),
        (ADA.replace("SHA-256", "SHA-1"), "line 1: expected"),
        (":" + ADA.partition(":")[2], "line 1: a name"),
        ("\udcff", "line 1: not UTF-8"),
    ],
)
def test_what_is_no_users_file_stops_the_start(path: Path, text: str, said: str) -> None:
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=said):
        UsersFile(path)


def test_a_giant_file_is_refused(path: Path) -> None:
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="at most"):
        UsersFile(path)


def test_a_missing_file_stops_the_start(path: Path) -> None:
    with pytest.raises(OSError):
        UsersFile(path)


def test_any_text_is_a_user_to_ask_for(path: Path) -> None:
    path.write_text(ADA)
    assert isinstance(UsersFile(path).credentials("\udc80\0:#"), ScramCredentials)
