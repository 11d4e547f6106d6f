"""Groups of readers: what one call does with a group in all resource sets (DESIGN 7).

Law: where a group begins is closed, and it begins and ends in all sets. One that it was not opened in would be taken for one that
came since, and be told from its beginning: halves of transactions that lie before the group in other sets, too. So etcd says
which sets there are, and once more behind everything that was waited for.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping

from lockstep.core.branch_names import GlobalId, branch_name
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import BranchStands, Offset, first_cut
from services.broker.events.branch_stands import ask_stands
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.sources import NOTHING, EventSources, offset_of, wire_offset

LOOK_SECONDS = 0.1
"""Between two looks for the end of a transaction that a new group waits for."""
FIRST_CUT_SECONDS = 15.0
"""A new group waits so long for transactions that are being committed; their coordinators need far less."""

_STARTS = frozenset(pb.OpenSubscriptionRequest.Start.values())
_Group = pb.ChangeSubscriptionResponse.Group


class Groups:
    """Lives as long as the process."""

    def __init__(self, sources: EventSources, moments: QuietMoments) -> None:
        self._sources = sources
        self._moments = moments

    async def open(self, request: pb.OpenSubscriptionRequest) -> pb.OpenSubscriptionResponse:
        """Raises `Rejected` INVALID_ARGUMENT, UNAVAILABLE, and OUT_OF_RANGE where it is to begin with what is gone, or was left
        behind; repeating it finds what the first call did.
        """
        if request.start not in _STARTS:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, f"start {request.start} is not known here")
        opened: dict[SetName, _Group] = {}
        is_known = await self.is_started(request.group, await self._sources.names.all())
        await self._take_in(request, opened, is_known=is_known, came_since=False)
        floors = _floors(opened)
        is_new = not all(group.is_started for group in opened.values())
        if is_new:
            try:
                floors = await self._start(request, opened, is_known=is_known)
            except Rejected as error:
                is_started = any(group.is_started for group in opened.values())
                if error.code is ErrorCode.OUT_OF_RANGE and not is_started:
                    # It would hold everything from now on, and its reader cannot begin where it wants to.
                    await self.close(pb.CloseSubscriptionRequest(group=request.group))
                raise
        return pb.OpenSubscriptionResponse(
            offsets=[wire_offset(name, offset) for name, offset in sorted(floors.items())], is_new=is_new
        )

    async def close(self, request: pb.CloseSubscriptionRequest) -> pb.CloseSubscriptionResponse:
        """The group is left behind in all sets before it goes in any: if this ends half-way, no set where it is gone is taken for
        one that came since, and whoever opens it hears that it is to be closed. Raises `Rejected` UNAVAILABLE.
        """
        left_behind: dict[SetName, None] = {}
        while names := [name for name in await self._sources.names.all() if name not in left_behind]:
            for name in names:
                await self._sources.change(name, request.group, SubscriptionChange.CLOSE, is_left_behind=True)
            left_behind.update(dict.fromkeys(names))
        for name in left_behind:
            await self._sources.change(name, request.group, SubscriptionChange.CLOSE)
        return pb.CloseSubscriptionResponse()

    async def list(self, _request: pb.ListSubscriptionsRequest) -> pb.ListSubscriptionsResponse:
        """Of the sets that this broker knows."""
        found: dict[str, pb.ListSubscriptionsResponse.Subscription] = {}
        for name in self._sources.names.known():
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

    async def stand_in(self, name: SetName, group: str) -> Offset:
        """Where a group stands in a set that its reader does not know yet: at the beginning, if it came since. Raises `Rejected`
        as `find`, and NOT_FOUND for a group that is not there (any more).
        """
        found = await self.find(name, group)
        if found is None:
            if not await self.is_started(group, self._sources.names.known()):
                raise Rejected(ErrorCode.NOT_FOUND, f"no group {group[:80]!r}: open it first")
            found = await self._begin_at_beginning(name, group)
        return offset_of(found.floor)

    async def find(self, name: SetName, group: str) -> _Group | None:
        """A group as it stands in a set; None if it is not there. Raises `Rejected` OUT_OF_RANGE if it was left behind."""
        response = await self._sources.change(name, group, SubscriptionChange.NONE)
        found = next((one for one in response.groups if one.group == group), None)
        if found is not None and found.is_left_behind:
            text = f"group {group[:80]!r} was left behind in {name!r} at {found.floor.index}: close it, and open it anew"
            raise Rejected(ErrorCode.OUT_OF_RANGE, text, set_name=name)
        return found

    async def is_started(self, group: str, names: Iterable[SetName]) -> bool:
        """Whether a group has begun in one of these sets: a set that it is not in came since. Raises as `find`."""
        found = [await self.find(name, group) for name in names]
        return any(one is not None and one.is_started for one in found)

    # --- where a group begins -----------------------------------------------------------------------------------------

    async def _take_in(
        self,
        request: pb.OpenSubscriptionRequest,
        opened: dict[SetName, _Group],
        *,
        is_known: bool,
        came_since: bool,
    ) -> bool:
        """Open the group in all sets that are not in `opened`; answers whether there was one. `is_known`: it had begun before;
        `came_since`: these sets came while it is opened, and somebody else may have begun it in the others before that.
        """
        given = {SetName(wire.resource_set): offset_of(wire) for wire in request.offsets}
        is_earliest = request.start != pb.OpenSubscriptionRequest.START_LATEST
        names = [name for name in await self._sources.names.all() if name not in opened]
        for name in names:
            if is_known and await self.find(name, request.group) is None:
                await self._begin_at_beginning(name, request.group)
            floor = NOTHING if came_since else None
            if request.start == pb.OpenSubscriptionRequest.START_OFFSETS:
                floor = given.get(name, floor)
            response = await self._sources.change(
                name, request.group, SubscriptionChange.OPEN, floor, is_earliest=is_earliest
            )
            opened[name] = _group(response, request.group)
        return bool(names)

    async def _begin_at_beginning(self, name: SetName, group: str) -> _Group:
        await self._sources.change(name, group, SubscriptionChange.OPEN, NOTHING)
        return _group(await self._sources.change(name, group, SubscriptionChange.START, NOTHING), group)

    async def _start(
        self, request: pb.OpenSubscriptionRequest, opened: dict[SetName, _Group], *, is_known: bool
    ) -> dict[SetName, Offset]:
        """Where a group begins that holds everything behind the floors of `opened`: the next closed cut. What has ended below it
        was known when the sets were asked for it, and so was every set that it ended in.
        """
        group = request.group
        deadline = time.monotonic() + FIRST_CUT_SECONDS
        while True:
            floors = _floors(opened)
            stands, looked_at = await self._all_stands(floors)
            cut = await asyncio.to_thread(first_cut, floors, stands)
            if cut is not None and any(offset.index > looked_at[name] for name, offset in cut.items()):
                # It ended behind that, while it was asked for; and others, that nobody has asked for, in front of it perhaps.
                cut = None
            if await self._take_in(request, opened, is_known=is_known, came_since=True):
                continue
            if cut is not None:
                break
            if time.monotonic() >= deadline:
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    f"group {group!r} cannot begin: a transaction over several sets has ended in some of them only",
                )
            await asyncio.sleep(LOOK_SECONDS)
            # Where transactions overlap without end, there is no other closed cut above the floors.
            await self._moments.make()
        started = {}
        for name, offset in cut.items():
            response = await self._sources.change(name, group, SubscriptionChange.START, offset)
            started[name] = offset_of(_group(response, group).floor)
        return started

    async def _all_stands(
        self, floors: Mapping[SetName, Offset]
    ) -> tuple[dict[GlobalId, dict[SetName, BranchStands]], dict[SetName, LogIndex]]:
        """Of every transaction that is prepared somewhere, or has committed behind a floor, as far as each log was looked at."""
        xids: dict[GlobalId, bytes] = {}
        committed: dict[SetName, LogIndex] = {}
        looked_at: dict[SetName, LogIndex] = {}
        for name in floors:
            _, prepared, committed[name] = await self._sources.stands(name, ())
            xids.update(await asyncio.to_thread(_by_global_id, prepared))
        for name, offset in floors.items():
            # What was not prepared any more has ended in a part of the log that a backup may not know yet.
            while True:
                log = await self._sources.log_of(name, offset, 0, committed[name])
                xids.update({joint.global_id: joint.xid for joint in log.joint_commits})
                offset = log.end
                if log.is_end:
                    break
            looked_at[name] = offset.index
        return await ask_stands(self._sources, floors, xids), looked_at


def _by_global_id(xids: Iterable[bytes]) -> dict[GlobalId, bytes]:
    return {branch_name(Xid.decode(xid)).global_id: xid for xid in xids}


def _floors(opened: Mapping[SetName, _Group]) -> dict[SetName, Offset]:
    return {name: offset_of(group.floor) for name, group in opened.items()}


def _group(response: pb.ChangeSubscriptionResponse, name: str) -> _Group:
    for group in response.groups:
        if group.group == name:
            return group
    raise Rejected(ErrorCode.NOT_FOUND, f"no group {name[:80]!r}")
