"""Plans and groups: what one call of a reader does in all resource sets (DESIGN 7).

Law: a plan never lies below what its reader knows, and it is closed; where a group begins is closed too. So every range between
two plans of a reader has whole transactions only.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping

from lockstep.core.branch_names import GlobalId, branch_name
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.core.xid import Xid
from lockstep.runtime.clock import read_now
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import (
    BranchStands,
    Cut,
    Cutting,
    LogView,
    Offset,
    first_cut,
    split_points,
)
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.sources import NOTHING, EventSources, offset_of, wire_offset

WAIT_MS_MAX = 60_000
LOOK_SECONDS = 0.1
"""Between two looks for something new, and for the end of a transaction that a new group waits for."""
FIRST_CUT_SECONDS = 15.0
"""A new group waits so long for transactions that are being committed; their coordinators need far less."""
LOOKED_AT_MAX = 1_000_000
"""Events of each set, where transactions hold each other and have ended behind what was looked at."""
HELD_MS = 200
"""A plan that is held by what committed so long ago has a quiet moment made: coordinators need far less for one transaction."""
ASKED_MAX = 500
"""Transactions in one question to a primary: more would stop its other work for too long."""
EMPTY_MS = 60_000
"""A part of a log in which nothing was committed is planned when it is so old: what is kept for a group moves on all the same."""


class Planner:
    """Lives as long as the process."""

    def __init__(self, sources: EventSources, moments: QuietMoments) -> None:
        self._sources = sources
        self.moments = moments
        """For whoever shows its figures."""
        self._held_since_ms: dict[SetName, int] = {}
        """Of the last plan."""

    def held_seconds(self) -> dict[SetName, float]:
        """How long ago what holds the last plan committed, by set."""
        now_ms = read_now().wall_ms
        return {name: max(now_ms - since, 0) / 1000 for name, since in self._held_since_ms.items()}

    # --- groups -------------------------------------------------------------------------------------------------------

    async def open(self, request: pb.OpenSubscriptionRequest) -> pb.OpenSubscriptionResponse:
        """Raises `Rejected` INVALID_ARGUMENT, UNAVAILABLE, and OUT_OF_RANGE where it is to begin with what is gone, or was left
        behind; repeating it finds what the first call did.
        """
        given = {SetName(wire.resource_set): offset_of(wire) for wire in request.offsets}
        is_earliest = request.start != pb.OpenSubscriptionRequest.START_LATEST
        floors: dict[SetName, Offset] = {}
        started = 0
        is_known = await self._is_started(request.group)
        for name in self._sources.set_names():
            if is_known and await self._find(name, request.group) is None:
                await self._begin_at_beginning(name, request.group)
            floor = given.get(name) if request.start == pb.OpenSubscriptionRequest.START_OFFSETS else None
            response = await self._sources.change(
                name, request.group, SubscriptionChange.OPEN, floor, is_earliest=is_earliest
            )
            group = _group(response, request.group)
            floors[name] = offset_of(group.floor)
            started += group.is_started
        is_new = started < len(floors)
        if is_new:
            try:
                floors = await self._start(request.group, floors)
            except Rejected as error:
                if error.code is ErrorCode.OUT_OF_RANGE and not started:
                    # It would hold everything from now on, and its reader cannot begin where it wants to.
                    await self.close(pb.CloseSubscriptionRequest(group=request.group))
                raise
        return pb.OpenSubscriptionResponse(
            offsets=[wire_offset(name, offset) for name, offset in sorted(floors.items())], is_new=is_new
        )

    async def close(self, request: pb.CloseSubscriptionRequest) -> pb.CloseSubscriptionResponse:
        """The group is left behind in all sets before it goes in any: if this ends half-way, no set where it is gone is taken for
        one that came since, and whoever opens it hears that it is to be closed.
        """
        for is_left_behind in (True, False):
            for name in self._sources.set_names():
                await self._sources.change(
                    name, request.group, SubscriptionChange.CLOSE, is_left_behind=is_left_behind
                )
        return pb.CloseSubscriptionResponse()

    async def list(self, _request: pb.ListSubscriptionsRequest) -> pb.ListSubscriptionsResponse:
        found: dict[str, pb.ListSubscriptionsResponse.Subscription] = {}
        for name in self._sources.set_names():
            response = await self._sources.change(name, "", SubscriptionChange.NONE)
            for group in response.groups:
                made = pb.ListSubscriptionsResponse.Subscription(group=group.group)
                subscription = found.setdefault(group.group, made)
                subscription.acknowledged.append(group.floor)
                if group.is_left_behind:
                    subscription.left_behind.append(name)
        return pb.ListSubscriptionsResponse(subscriptions=[found[group] for group in sorted(found)])

    async def acknowledge(self, request: pb.AcknowledgeEventsRequest) -> pb.AcknowledgeEventsResponse:
        """Raises `Rejected` NOT_FOUND for a group that is not there (any more), OUT_OF_RANGE for one that was left behind,
        WRONG_EPOCH for what is no offset of this log.
        """
        await asyncio.gather(
            *(
                self._sources.change(
                    SetName(wire.resource_set), request.group, SubscriptionChange.ADVANCE, offset_of(wire)
                )
                for wire in request.offsets
            )
        )
        return pb.AcknowledgeEventsResponse()

    async def _find(self, name: SetName, group: str) -> pb.ChangeSubscriptionResponse.Group | None:
        """A group as it stands in a set; None if it is not there. Raises `Rejected` OUT_OF_RANGE if it was left behind."""
        response = await self._sources.change(name, group, SubscriptionChange.NONE)
        found = next((one for one in response.groups if one.group == group), None)
        if found is not None and found.is_left_behind:
            text = f"group {group[:80]!r} was left behind in {name!r} at {found.floor.index}: close it, and open it anew"
            raise Rejected(ErrorCode.OUT_OF_RANGE, text, set_name=name)
        return found

    async def _is_started(self, group: str) -> bool:
        """Whether a group has begun: a set that it is not in came since. Raises as `_find`."""
        found = [await self._find(name, group) for name in self._sources.set_names()]
        return any(one is not None and one.is_started for one in found)

    async def _begin_at_beginning(self, name: SetName, group: str) -> pb.ChangeSubscriptionResponse.Group:
        await self._sources.change(name, group, SubscriptionChange.OPEN, NOTHING)
        return _group(await self._sources.change(name, group, SubscriptionChange.START, NOTHING), group)

    async def _start(self, group: str, floors: Mapping[SetName, Offset]) -> dict[SetName, Offset]:
        """Where a group begins that holds everything behind `floors`: the next closed cut."""
        deadline = time.monotonic() + FIRST_CUT_SECONDS
        while (cut := first_cut(floors, await self._all_stands(floors))) is None:
            if time.monotonic() >= deadline:
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    f"group {group!r} cannot begin: a transaction over several sets has ended in some of them only",
                )
            await asyncio.sleep(LOOK_SECONDS)
            # Where transactions overlap without end, there is no other closed cut above the floors.
            await self.moments.make()
        started = {}
        for name, offset in cut.items():
            response = await self._sources.change(name, group, SubscriptionChange.START, offset)
            started[name] = offset_of(_group(response, group).floor)
        return started

    async def _all_stands(
        self, floors: Mapping[SetName, Offset]
    ) -> dict[GlobalId, dict[SetName, BranchStands]]:
        """Of every transaction that is prepared somewhere, or has committed behind a floor."""
        xids: dict[GlobalId, bytes] = {}
        committed: dict[SetName, LogIndex] = {}
        for name in floors:
            _, prepared, committed[name] = await self._sources.stands(name, ())
            xids.update(_named(prepared))
        for name, offset in floors.items():
            # What was not prepared any more has ended in a part of the log that a backup may not know yet.
            while True:
                log = await self._sources.log_of(name, offset, 0, committed[name])
                xids.update({joint.global_id: joint.xid for joint in log.joint_commits})
                offset = log.end
                if log.is_end:
                    break
        return await self._stands(floors, xids)

    async def _stands(
        self, names: Iterable[SetName], xids: Mapping[GlobalId, bytes]
    ) -> dict[GlobalId, dict[SetName, BranchStands]]:
        found: dict[GlobalId, dict[SetName, BranchStands]] = {global_id: {} for global_id in xids}
        by_xid = list(xids.items())
        for name in names if xids else ():
            for first in range(0, len(by_xid), ASKED_MAX):
                asked = by_xid[first : first + ASKED_MAX]
                stands, _, _ = await self._sources.stands(name, [xid for _, xid in asked])
                for (global_id, _), stand in zip(asked, stands, strict=True):
                    found[global_id][name] = stand
        return found

    # --- plans --------------------------------------------------------------------------------------------------------

    async def plan(self, request: pb.PlanRequest) -> pb.PlanResponse:
        """Raises `Rejected` NOT_FOUND for a group that is not there (any more), OUT_OF_RANGE also for one that was left behind,
        WRONG_EPOCH, UNAVAILABLE.
        """
        known = await self._known(request)
        deadline = time.monotonic() + min(request.wait_ms, WAIT_MS_MAX) / 1000
        max_events = request.max_events
        logs = await self._logs(known, max_events)
        is_moment_due = True
        while True:
            cut = await self._cut(logs, max_events, request.hold_ms_max)
            self._held_since_ms = cut.held_since_ms
            is_worth = any(_is_worth(cut.ends[name], log) for name, log in logs.items())
            if is_moment_due and _is_held_up(cut, logs, max_events, is_worth):
                is_moment_due = False
                if await self.moments.make():
                    logs = await self._logs(known, max_events, await self._committed(known))
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
            logs, is_moment_due = await self._logs(known, max_events), True

    async def _known(self, request: pb.PlanRequest) -> dict[SetName, Offset]:
        """Where the reader is in every set; a set that came since begins at its beginning. Raises `Rejected` as `plan`."""
        known = {SetName(wire.resource_set): offset_of(wire) for wire in request.known}
        for name in self._sources.set_names():
            if name in known:
                continue
            group = await self._find(name, request.group)
            if group is None:
                if not await self._is_started(request.group):
                    raise Rejected(ErrorCode.NOT_FOUND, f"no group {request.group[:80]!r}: open it first")
                group = await self._begin_at_beginning(name, request.group)
            known[name] = offset_of(group.floor)
        return dict(sorted(known.items()))

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
        cutting = Cutting(logs, max_events, read_now().wall_ms, hold_ms_max)
        while asked := cutting.questions():
            answers = await asyncio.gather(*(self._stands([name], xids) for name, xids in asked.items()))
            for stands in answers:
                cutting.learn(
                    {
                        (name, global_id): stand.end
                        for global_id, branches in stands.items()
                        for name, stand in branches.items()
                    }
                )
        return cutting.cut

    def _response(self, cut: Cut, logs: Mapping[SetName, LogView]) -> pb.PlanResponse:
        response = pb.PlanResponse(time_ms=cut.time_ms, split=[global_id.hex() for global_id in cut.split])
        for name, log in logs.items():
            end = cut.ends[name]
            planned = response.ranges.add(
                to=wire_offset(name, end),
                events=log.events_up_to(end),
                splits=[wire_offset(name, point) for point in split_points(log.start, end, log.marks)],
                brokers=self._sources.addresses(name),
                held_since_ms=cut.held_since_ms.get(name, 0),
            )
            planned.start.CopyFrom(wire_offset(name, log.start))
            response.has_more |= end != log.end or not log.is_end
        return response


def _is_worth(end: Offset, log: LogView) -> bool:
    """Whether a reader should take this part of a plan: it has events, or nothing but other records for a good while.

    Every acknowledgement is a record: without this, each empty plan would make the next one.
    """
    planned = [mark for mark in log.marks if mark.offset.index <= end.index]
    is_old = bool(planned) and planned[0].time_ms <= log.now_ms - EMPTY_MS
    return is_old or log.events_up_to(end) > 0


def _is_held_up(cut: Cut, logs: Mapping[SetName, LogView], max_events: int, is_worth: bool) -> bool:
    """Whether transactions that overlap keep a plan from the present, as far as its limit goes: then a quiet moment helps."""
    if not cut.held_since_ms or cut.is_short:
        return False
    total = sum(log.events_up_to(log.end) for log in logs.values())
    is_at_the_present = all(log.is_end for log in logs.values()) and (not max_events or total <= max_events)
    is_held_long = read_now().wall_ms - min(cut.held_since_ms.values()) >= HELD_MS
    return is_held_long and (is_at_the_present or not is_worth)


def _group(response: pb.ChangeSubscriptionResponse, name: str) -> pb.ChangeSubscriptionResponse.Group:
    for group in response.groups:
        if group.group == name:
            return group
    raise Rejected(ErrorCode.NOT_FOUND, f"no group {name[:80]!r}")


def _named(xids: Iterable[bytes]) -> dict[GlobalId, bytes]:
    return {branch_name(Xid.decode(xid)).global_id: xid for xid in xids}
