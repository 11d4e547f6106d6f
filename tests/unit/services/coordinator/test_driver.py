"""What a coordinator's process does around its core."""

import asyncio
from typing import cast

import pytest

from lockstep.core.clock import Now
from lockstep.core.errors import ErrorCode, Rejected
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import (
    Effect,
    HeldAnswer,
    HoldAsked,
    Input,
    Refusal,
    RequestDropped,
    RequestId,
    Tick,
)
from services.coordinator.driver import CoordinatorDriver
from services.coordinator.log_port import LogPort
from services.coordinator.participant_ports import ParticipantPorts


class Core:
    """Answers a hold with the next tick."""

    def __init__(self) -> None:
        self.asked: list[RequestId] = []
        self.dropped: list[RequestId] = []

    def handle(self, given: Input, _: Now) -> list[Effect]:
        match given:
            case HoldAsked(request):
                self.asked.append(request)
            case RequestDropped(request):
                self.dropped.append(request)
            case Tick():
                return [HeldAnswer(request, 500) for request in self.asked]
            case _:
                pass
        return []


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_request_whose_caller_is_gone_is_dropped_also_if_its_answer_came_in_the_same_turn(
    is_answered: bool,
) -> None:
    core = Core()
    driver = CoordinatorDriver(
        cast(Coordinator, core), cast(LogPort, None), cast(ParticipantPorts, None), 1.0
    )
    asking = asyncio.ensure_future(driver.ask(HoldAsked))
    await asyncio.sleep(0)
    if is_answered:
        driver.feed(Tick())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert core.dropped == core.asked != []


class Busy:
    """Takes nothing up."""

    def handle(self, given: Input, _: Now) -> list[Effect]:
        if not isinstance(given, HoldAsked):
            return []
        return [Refusal(given.request, ErrorCode.UNAVAILABLE, "busy", "transactions_max")]


async def test_however_often_a_limit_refuses_it_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    driver = CoordinatorDriver(
        cast(Coordinator, Busy()), cast(LogPort, None), cast(ParticipantPorts, None), 1.0
    )
    for _ in range(3):
        with pytest.raises(Rejected, match="busy"):
            await driver.ask(HoldAsked)
    assert caplog.messages == ["event=limit_reached limit=transactions_max refusals=1 busy"]
