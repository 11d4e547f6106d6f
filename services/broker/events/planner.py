"""Plans: how far a reader may read in all resource sets (DESIGN 7).

Law: a plan never lies below what its reader knows, and it is closed. As a group begins at a closed cut (`beginnings.py`), every
range between two plans of a reader has whole transactions only. Sets come while a plan waits: each look begins with those that
came.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping

from lockstep.core.ids import LogIndex, SetName
from lockstep.runtime.clock import read_now
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Cut, Cutting, LogView, Offset, split_points
from services.broker.events.beginnings import Beginnings
from services.broker.events.branch_stands import ask_stands
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.sources import NOTHING, EventSources, offset_of, wire_offset

WAIT_MS_MAX = 60_000
LOOK_SECONDS = 0.1
"""Between two looks for something new."""
LOOKED_AT_MAX = 1_000_000
"""Events of each set, where transactions hold each other and have ended behind what was looked at."""
HELD_MS = 200
"""A plan that is held by what committed so long ago has a quiet moment made: coordinators need far less for one transaction."""
EMPTY_MS = 60_000
"""A part of a log in which nothing was committed is planned when it is so old: what is kept for a group moves on all the same."""


class Planner:
    """Lives as long as the process."""

    def __init__(self, sources: EventSources, beginnings: Beginnings, moments: QuietMoments) -> None:
        self._sources = sources
        self._beginnings = beginnings
        self.moments = moments
        """For whoever shows its figures."""
        self._held_since_ms: dict[SetName, int] = {}
        """Of the last plan."""

    def held_seconds(self) -> dict[SetName, float]:
        """How long ago what holds the last plan committed, by set."""
        now_ms = read_now().wall_ms
        return {name: max(now_ms - since, 0) / 1000 for name, since in self._held_since_ms.items()}

    async def plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        """Raises `Rejected` NOT_FOUND for a group that is not there (any more), OUT_OF_RANGE also for one that was left behind,
        WRONG_EPOCH, UNAVAILABLE.
        """
        known = {SetName(wire.resource_set): offset_of(wire) for wire in request.known}
        deadline = time.monotonic() + min(request.wait_ms, WAIT_MS_MAX) / 1000
        max_events = request.max_events
        logs = await self._logs_of_all(request.group, known, max_events)
        is_moment_due = True
        while True:
            cut = await self._cut(logs, max_events, request.hold_ms_max)
            if not logs.keys() >= set(self._sources.names.known()):
                # What came meanwhile may have a part of what these logs show.
                logs = await self._logs_of_all(request.group, known, max_events)
                continue
            self._held_since_ms = cut.held_since_ms
            is_worth = any(_is_worth(cut.ends[name], log) for name, log in logs.items())
            if is_moment_due and _is_held_up(cut, logs, max_events, is_worth):
                is_moment_due = False
                if await self.moments.make():
                    starts = {name: log.start for name, log in logs.items()}
                    logs = await self._logs(starts, max_events, await self._committed(starts))
                    continue
            if is_worth:
                return self._response(cut, logs)
            if max_events and cut.is_short and max_events < LOOKED_AT_MAX:
                max_events *= 2
                logs = await self._further(logs, max_events)
                continue
            if time.monotonic() >= deadline:
                return self._response(Cut({name: log.start for name, log in logs.items()}, cut.time_ms), logs)
            await asyncio.sleep(LOOK_SECONDS)
            logs, is_moment_due = await self._logs_of_all(request.group, known, max_events), True

    async def _logs_of_all(
        self, group: str, known: dict[SetName, Offset], max_events: int
    ) -> dict[SetName, LogView]:
        """Of every set. `known`: where the reader is; takes in the sets that came since. Raises `Rejected` as `plan`."""
        for name in self._sources.names.known():
            if name not in known:
                known[name] = await self._beginnings.stand_in(name, group)
        return await self._logs(dict(sorted(known.items())), max_events)

    async def _logs(
        self,
        known: Mapping[SetName, Offset],
        max_events: int,
        at_least: Mapping[SetName, LogIndex] | None = None,
    ) -> dict[SetName, LogView]:
        least = at_least or {}
        logs = await asyncio.gather(
            *(
                self._sources.log_of(name, start, max_events, least.get(name, NOTHING.index))
                for name, start in known.items()
            )
        )
        return dict(zip(known, logs, strict=True))

    async def _further(self, logs: Mapping[SetName, LogView], max_events: int) -> dict[SetName, LogView]:
        """More of the logs that were looked at in part."""

        async def further(name: SetName, log: LogView) -> LogView:
            left = max_events - log.events_up_to(log.end)
            if log.is_end or left <= 0:
                return log
            return log.joined(await self._sources.log_of(name, log.end, left))

        found = await asyncio.gather(*(further(name, log) for name, log in logs.items()))
        return dict(zip(logs, found, strict=True))

    async def _committed(self, names: Iterable[SetName]) -> dict[SetName, LogIndex]:
        """As primaries know it: what has ended in a quiet moment is below, though a backup may not know it yet."""
        return {name: (await self._sources.stands(name, ()))[2] for name in names}

    async def _cut(self, logs: Mapping[SetName, LogView], max_events: int, hold_ms_max: int) -> Cut:
        # In a thread: logs may have hundreds of thousands of transactions that are to be compared.
        cutting = await asyncio.to_thread(Cutting, logs, max_events, read_now().wall_ms, hold_ms_max)
        await self._ask_all(cutting)
        looked_for: set[str] = set()
        while new := cutting.unheard - looked_for:
            # Behind the reading of the logs: what is not there now was not there for any branch that they show.
            looked_for |= new
            if nowhere := await self._sources.names.missing(new):
                cutting.are_nowhere(nowhere)
                await self._ask_all(cutting)
        return cutting.cut

    async def _ask_all(self, cutting: Cutting) -> None:
        while asked := await asyncio.to_thread(cutting.questions):
            answers = await asyncio.gather(
                *(ask_stands(self._sources, [name], xids) for name, xids in asked.items())
            )
            for stands in answers:
                cutting.learn(
                    {
                        (name, global_id): stand.end
                        for global_id, branches in stands.items()
                        for name, stand in branches.items()
                    }
                )

    def _response(self, cut: Cut, logs: Mapping[SetName, LogView]) -> pb.PlanResponse:
        response = pb.PlanResponse(time_ms=cut.time_ms, split=[global_id.hex() for global_id in cut.split])
        for name, log in logs.items():
            end = cut.ends[name]
            planned = response.ranges.add(
                to=wire_offset(name, log.named(end)),
                events=log.events_up_to(end),
                splits=[
                    wire_offset(name, log.named(point)) for point in split_points(log.start, end, log.marks)
                ],
                brokers=self._sources.addresses(name),
                held_since_ms=cut.held_since_ms.get(name, 0),
            )
            planned.start.CopyFrom(wire_offset(name, log.named(log.start)))
            response.has_more |= end != log.end or not log.is_end
        return response


def _is_worth(end: Offset, log: LogView) -> bool:
    """Whether a reader should take this part of a plan: it has events, or nothing but other records for a good while.

    Every acknowledgement is a record: without this, each empty plan would make the next one.
    """
    first = log.marks[0] if log.marks else None
    is_old = first is not None and first.offset.index <= end.index and first.time_ms <= log.now_ms - EMPTY_MS
    return is_old or log.events_up_to(end) > 0


def _is_held_up(cut: Cut, logs: Mapping[SetName, LogView], max_events: int, is_worth: bool) -> bool:
    """Whether transactions that overlap keep a plan from the present, as far as its limit goes: then a quiet moment helps."""
    if not cut.held_since_ms or cut.is_short:
        return False
    total = sum(log.events_up_to(log.end) for log in logs.values())
    is_at_the_present = all(log.is_end for log in logs.values()) and (not max_events or total <= max_events)
    is_held_long = read_now().wall_ms - min(cut.held_since_ms.values()) >= HELD_MS
    return is_held_long and (is_at_the_present or not is_worth)
