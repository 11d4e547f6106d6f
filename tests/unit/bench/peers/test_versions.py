"""Peers are asked for their versions where they are, and nothing breaks where they are not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.database import database_versions
from bench.environment import Refused
from bench.peers import artemis, rabbitmq
from tests.integration.postgres_process import find_postgres


def has_artemis() -> bool:
    try:
        artemis.find_home()
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("versions", "programs", "is_there"),
    [
        (artemis.versions, {"Artemis", "Java"}, has_artemis()),
        (rabbitmq.versions, {"RabbitMQ", "Erlang"}, (rabbitmq.PROGRAMS / "rabbitmqctl").exists()),
        (database_versions, {"PostgreSQL"} if find_postgres() else set(), find_postgres() is not None),
    ],
    ids=["Artemis", "RabbitMQ", "PostgreSQL"],
)
def test_a_peer_says_its_versions_where_it_is(
    versions: Callable[[], dict[str, str]], programs: set[str], is_there: bool
) -> None:
    found = versions()
    assert set(found) == programs
    assert all(version[:1].isdigit() for version in found.values()) or not is_there
    assert all(version == "" or version[0].isdigit() for version in found.values())


@pytest.mark.parametrize("versions", [artemis.versions, rabbitmq.versions])
def test_a_peer_that_is_not_there_has_no_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, versions: Callable[[], dict[str, str]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(artemis, "HOMES", tmp_path)
    monkeypatch.setattr(rabbitmq, "PROGRAMS", tmp_path)
    assert set(versions().values()) == {""}
