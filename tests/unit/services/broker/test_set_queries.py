"""Set queries over the reigns of one broker: each ends, and none is left to a reign that is over."""

import asyncio

import pytest

from lockstep.core.clock import Now
from lockstep.core.effects import AnyEffect, CloseClientStream, TellClient
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.inputs import AnyInput, ClientSaid, ClientStreamClosed, Tick
from lockstep.core.server_messages import Description
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.driver import Driver
from lockstep.runtime.serving import ServingRights
from services.broker.set_queries import SetQueries
from services.primary.sessions import SessionsService
from tests.unit.services.primary.primary_rig import SET, Rig

_SAID = TellClient | CloseClientStream


class Reign(Rig):
    """What it says is said by the test's driver."""

    def __init__(self, *, holds_store: bool = False) -> None:
        self.said: list[AnyEffect] = []
        super().__init__(holds_store=holds_store)

    def perform(self, effects: list[AnyEffect]) -> None:
        self.said += [effect for effect in effects if isinstance(effect, _SAID)]
        super().perform([effect for effect in effects if not isinstance(effect, _SAID)])


class Reigns:
    """A replica that always leads: the first reign never serves, `Tick` ends it, and the next one serves."""

    def __init__(self) -> None:
        self._reign = Reign(holds_store=True)

    def handle(self, given: AnyInput, _: Now, more_follow: bool = False) -> list[AnyEffect]:
        if isinstance(given, Tick):
            effects = self._reign.core.stop("the next epoch began")
            self._reign = Reign()
            return [effect for effect in effects if isinstance(effect, _SAID)]
        if isinstance(given, ClientSaid | ClientStreamClosed):
            self._reign.feed(given)
        said, self._reign.said = self._reign.said, []
        return said


async def test_a_query_of_a_reign_that_never_served_ends_with_it_and_the_next_one_answers() -> None:
    driver, rights = Driver(), ServingRights()
    rights.extend(boottime_ms() + 60_000, boottime_ms())
    driver.host(SET, Reigns())
    queries = SetQueries(SessionsService(driver, rights, lambda set_name: ()))
    asked = asyncio.ensure_future(queries.description(SET))
    await asyncio.sleep(0.01)
    assert not asked.done()
    driver.feed(Tick(SET))
    with pytest.raises(Rejected) as raised:
        await asyncio.wait_for(asked, 1)
    assert raised.value.code is ErrorCode.NOT_PRIMARY
    assert isinstance(await asyncio.wait_for(queries.description(SET), 1), Description)
