"""Pairs of ends, and the event loop that production runs on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import uvloop

from tests.unit.lockstep.transport.ends import OURS, PAIRS, Ends
from tests.unit.lockstep.transport.probe_service import Probe
from tests.unit.lockstep.transport.victim import Victim


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
async def ends(request: pytest.FixtureRequest) -> AsyncIterator[Ends]:
    """Each pair: a client's end and a server's."""
    made = Ends(*request.param)
    yield made
    await made.close()


@pytest.fixture
async def our_ends() -> AsyncIterator[Ends]:
    """For what is promised of ours alone."""
    made = Ends(OURS, OURS)
    yield made
    await made.close()


@pytest.fixture
async def probe() -> Probe:
    return Probe()


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    made = Victim()
    yield made
    made.close()
