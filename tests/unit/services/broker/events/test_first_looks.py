"""Groups that begin far back: each call goes on where the last one was, however much is committed behind their floors."""

import asyncio
import time
from dataclasses import replace

import pytest

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import LogView, Offset
from services.broker.events.first_looks import FirstLook
from services.broker.events.sources import NOTHING, offset_of
from tests.unit.services.broker.core.events.planning_world import at
from tests.unit.services.broker.events.planner_rig import ONE, TWO, Rig

RECORDS = 60
END = at(2 + 2 * RECORDS)
"""Of both logs."""
PART = 2
"""Records in one description of a log."""


class LongLogs:
    """Those of a rig, of which each description has a few records, and takes its time."""

    def __init__(self, rig: Rig) -> None:
        self.looked_at: list[tuple[SetName, LogIndex]] = []
        """From where on, each time."""
        self.refusal: Rejected | None = None
        self._original = rig.sources.log_of
        self._rig = rig
        rig.sources.log_of = self.log_of  # type: ignore[method-assign]

    async def log_of(
        self, set_name: SetName, start: Offset, max_events: int, at_least: LogIndex = NOTHING.index
    ) -> LogView:
        if self.refusal is not None:
            raise self.refusal
        self.looked_at.append((set_name, start.index))
        await asyncio.sleep(0.01)
        log = self._rig.world.logs[set_name]
        lag = max(len(log) - start.index - PART, 0)
        return replace(self._rig.world.view(set_name, start, max_events, lag), is_end=not lag)


def far_back() -> Rig:
    """Two sets with much that was committed in both behind the floors of a group, and one half of a transaction before that."""
    rig = Rig(call_seconds=0.1)
    early = rig.prepared(ONE, TWO)
    rig.commit(early, ONE)
    for name in (ONE, TWO):
        rig.sources.groups[name]["spark"] = at(len(rig.world.logs[name])), False
    for _ in range(RECORDS):
        joint = rig.prepared(ONE, TWO)
        rig.commit(joint, ONE)
        rig.commit(joint, TWO)
    rig.commit(early, TWO)
    return rig


async def opened(rig: Rig, calls_max: int) -> tuple[dict[str, Offset], int]:
    """Where it begins, and how many calls that took."""
    request = pb.OpenSubscriptionRequest(group="spark", asks_again=True)
    for calls in range(1, calls_max + 1):
        async with asyncio.timeout(5):
            answer = await rig.groups.open(request)
        if not answer.is_looking:
            return {one.resource_set: offset_of(one) for one in answer.offsets}, calls
        assert not answer.offsets
    raise AssertionError("it never begins")


async def test_a_group_that_begins_far_back_is_opened_by_calls_that_each_go_on() -> None:
    rig, whole = far_back(), far_back()
    logs = LongLogs(rig)
    begun, calls = await opened(rig, 100)
    assert calls > 3
    again = {one for one in logs.looked_at if logs.looked_at.count(one) > 1}
    assert again <= {(ONE, END.index), (TWO, END.index)}, (
        "nothing but whether there is more is looked at twice"
    )
    assert begun == await whole.open() == {ONE: END, TWO: END}


async def test_who_does_not_ask_again_waits_for_the_end() -> None:
    rig = far_back()
    LongLogs(rig)
    assert await rig.open() == {ONE: END, TWO: END}


@pytest.mark.parametrize("taking_seconds", [0, 0.03])
async def test_a_call_that_is_cut_off_loses_nothing_that_was_looked_at(
    taking_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`taking_seconds`: of the thread that goes through what was described; mostly a call is cut off amid that."""

    def take(look: FirstLook, name: SetName, log: LogView) -> None:
        time.sleep(taking_seconds)
        original(look, name, log)

    original = FirstLook._take
    monkeypatch.setattr(FirstLook, "_take", take)
    rig = far_back()
    logs = LongLogs(rig)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await rig.open()
    assert await rig.open() == {ONE: END, TWO: END}
    again = len(logs.looked_at) - len(set(logs.looked_at))
    assert again <= 3, "but what each was waiting for"


async def test_what_a_log_does_not_have_any_more_is_looked_at_anew() -> None:
    """Its end was lost, and accepted as lost, between two calls."""
    rig = far_back()
    logs = LongLogs(rig)
    request = pb.OpenSubscriptionRequest(group="spark", asks_again=True)
    assert (await rig.groups.open(request)).is_looking
    logs.refusal = Rejected(ErrorCode.WRONG_EPOCH, "another log")
    with pytest.raises(Rejected):
        await rig.groups.open(request)
    logs.refusal = None
    logs.looked_at.clear()
    await opened(rig, 100)
    assert (ONE, 2) in logs.looked_at
