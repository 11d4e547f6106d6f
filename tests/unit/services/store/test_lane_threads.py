"""Threads that perform jobs: rests belong to the lane that works, and to nobody else."""

import asyncio
import time

from lockstep.core.ids import SetName
from services.store.core.disk import AnyStep, Compute, Lane, StepResult, WriteSegment
from services.store.core.messages import JobDone, JobFailed, Perform
from services.store.lane_threads import LaneThreads

SET = SetName("orders")


class Computing:
    """A disk of which nothing but computations are asked."""

    def perform(self, set_name: SetName, step: AnyStep) -> StepResult:
        assert isinstance(step, Compute)
        return step.function()

    def write_and_sync(self, set_name: SetName, step: WriteSegment) -> None:
        raise AssertionError("nothing is written")


async def test_a_lane_rests_behind_its_work_and_others_go_on() -> None:
    ended: asyncio.Queue[JobDone | JobFailed] = asyncio.Queue()
    lanes = LaneThreads(Computing(), ended.put_nowait)
    try:
        begun = time.monotonic()
        lanes.perform(Perform(SET, Lane.SNAPSHOT, (Compute(lambda: time.sleep(0.1), rest=3.0),)))
        lanes.perform(Perform(SET, Lane.READ, (Compute(lambda: "read"),)))
        first, second = await ended.get(), await ended.get()
        seconds = time.monotonic() - begun
    finally:
        lanes.close()
    assert isinstance(first, JobDone) and isinstance(second, JobDone)
    assert (first.lane, first.results) == (Lane.READ, ("read",))
    assert second.lane is Lane.SNAPSHOT
    assert seconds >= 0.4
