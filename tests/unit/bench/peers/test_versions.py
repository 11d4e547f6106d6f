"""Peers are asked for their versions where they are, and nothing breaks where they are not."""

from collections.abc import Callable

import pytest

from bench.database import database_versions
from bench.peers import artemis, rabbitmq


@pytest.mark.parametrize("versions", [artemis.versions, database_versions, rabbitmq.versions])
def test_a_peer_says_versions_or_none(versions: Callable[[], dict[str, str]]) -> None:
    assert all(version == "" or version[0].isdigit() for version in versions().values())
