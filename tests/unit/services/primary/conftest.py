"""What tests of one primary begin with, unless their file has its own."""

import pytest

from tests.unit.services.primary.primary_rig import Rig, RigClient


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> RigClient:
    """Has declared a queue, `q`."""
    client = rig.client()
    client.declare("q")
    return client
