"""Where a group of readers begins in each resource set (DESIGN 7).

Law: it begins at one closed cut in all sets, though several callers open it at once, and some of them end half-way: one set, the
oldest, decides. Who has found a cut says it there; the first one holds, and everybody goes by that. A set that is not in it came
since, and is told from its beginning: whatever it shares with others lies behind the cut there, too. So etcd says which sets
there are, and once more behind everything that was waited for. And the decision log says of what nothing may have committed yet.
However much is committed behind its floors, each call goes on where the last one was (`first_looks.py`).
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from lockstep.core.branch_names import GlobalId, branch_name
from lockstep.core.decision_log import LogView as DecisionView
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.core.xid import Xid
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.first_cut import Stands, first_cut, perhaps_halves
from services.broker.core.events.planning import Offset
from services.broker.events.branch_stands import ask_stands
from services.broker.events.first_looks import FirstLook, FirstLooks, StillLooking
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.sources import NOTHING, EventSources, offset_of

LOOK_SECONDS = 0.1
"""Between two looks for the end of a transaction that a new group waits for."""
FIRST_CUT_SECONDS = 15.0
"""A new group waits so long for transactions that are being committed; their coordinators need far less."""
CALL_SECONDS = 5.0
"""Of looking, in one call of whoever asks again; callers wait for ten seconds."""

ReadDecision = Callable[[GlobalId], Awaitable[DecisionView | None]]
"""What the decision log says of a transaction; None: it does not answer, or is not to be believed."""
_Group = pb.ChangeSubscriptionResponse.Group
_Cut = Mapping[SetName, Offset]


class Beginnings:
    """Lives as long as the process."""

    def __init__(
        self,
        sources: EventSources,
        moments: QuietMoments,
        read_decision: ReadDecision,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self.sources = sources
        self.moments = moments
        self.read_decision = read_decision
        self.call_seconds = call_seconds
        self.looks = FirstLooks()

    def opening(self, request: pb.OpenSubscriptionRequest) -> "Opening":
        return Opening(self, request)

    async def stand_in(self, name: SetName, group: str) -> Offset:
        """Where a group stands in a set that its reader does not know yet: at the beginning, if it came since. Raises `Rejected`
        as `find`, and NOT_FOUND for a group that is not there (any more).
        """
        found = await self.find(name, group)
        if found is None and not await self.is_started(group, self.sources.names.known()):
            raise Rejected(ErrorCode.NOT_FOUND, f"no group {group[:80]!r}: open it first")
        if found is None:
            found = await self.begin_at_beginning(name, group)
        elif not found.is_started and (decided := await self.decided(group)) is not None:
            # Somebody opens it, and is not done with that.
            return await self.begin(name, group, decided)
        return offset_of(found.floor)

    async def find(self, name: SetName, group: str) -> _Group | None:
        """A group as it stands in a set; None if it is not there. Raises `Rejected` OUT_OF_RANGE if it was left behind."""
        response = await self.sources.change(name, group, SubscriptionChange.NONE)
        found = next((one for one in response.groups if one.group == group), None)
        if found is not None and found.is_left_behind:
            text = f"group {group[:80]!r} was left behind in {name!r} at {found.floor.index}: close it, and open it anew"
            raise Rejected(ErrorCode.OUT_OF_RANGE, text, set_name=name)
        return found

    async def is_started(self, group: str, names: Iterable[SetName]) -> bool:
        """Whether a group has begun in one of these sets: a set that it is not in came since. Raises as `find`."""
        found = [await self.find(name, group) for name in names]
        return any(one is not None and one.is_started for one in found)

    async def decided(self, group: str) -> _Cut | None:
        """Where it was decided that the group begins; None: it was not, or by an older version. Raises as `find`."""
        oldest, *_ = await self.sources.names.all()
        found = await self.find(oldest, group)
        return _begins(found) if found is not None else None

    async def decide(self, group: str, cut: _Cut) -> _Cut:
        """Have the group begin at this cut, unless it was decided; returns where it does."""
        oldest, *_ = await self.sources.names.all()
        response = await self.sources.change(oldest, group, SubscriptionChange.START, cut[oldest], begins=cut)
        return _begins(group_in(response, group)) or cut

    async def begin(self, name: SetName, group: str, decided: _Cut) -> Offset:
        """The group begins in a set as it was decided, unless it has begun there; returns where it stands."""
        offset = decided.get(name, NOTHING)
        response = await self.sources.change(name, group, SubscriptionChange.START, offset)
        return offset_of(group_in(response, group).floor)

    async def begin_at_beginning(self, name: SetName, group: str) -> _Group:
        """In a set that came since. Raises as `find`, and UNAVAILABLE for a group that is closed meanwhile.

        It is opened before it is looked for in the others, and begins behind that: whoever closes it behind that look closes it
        here, too. One that began here alone would be taken for known, and begin in all others at their beginning as well.
        """
        await self.sources.change(name, group, SubscriptionChange.OPEN, NOTHING)
        others = [other for other in self.sources.names.known() if other != name]
        try:
            is_there = await self.is_started(group, others)
            closed = Rejected(ErrorCode.UNAVAILABLE, f"group {group[:80]!r} is being closed")
        except Rejected as error:
            if error.code is not ErrorCode.OUT_OF_RANGE:
                raise
            is_there, closed = False, error
        if not is_there:
            await self.sources.change(name, group, SubscriptionChange.CLOSE)
            raise closed
        return group_in(await self.sources.change(name, group, SubscriptionChange.START, NOTHING), group)


class Opening:
    """One call that opens a group."""

    def __init__(self, beginnings: Beginnings, request: pb.OpenSubscriptionRequest) -> None:
        self._beginnings = beginnings
        self._sources = beginnings.sources
        self._request = request
        self._opened: dict[SetName, _Group] = {}
        self.is_new = False
        """It had not begun in every set when it was opened there."""
        self.is_begun = False
        """Somebody else has it begin."""

    async def run(self) -> dict[SetName, Offset]:
        """Where the group stands, in all sets. Raises `Rejected`, and `StillLooking`."""
        group, opened = self._request.group, self._opened
        is_known = await self._beginnings.is_started(group, await self._sources.names.all())
        await self._take_in(is_known=is_known, came_since=False)
        self.is_begun = any(one.is_started for one in opened.values())
        self.is_new = not all(one.is_started for one in opened.values())
        if not self.is_new:
            return _floors(opened)
        decided = await self._beginnings.decided(group)
        if decided is None:
            with self._beginnings.looks.of(group) as look:
                cut = await self._first_cut(look, is_known=is_known)
            decided = await self._beginnings.decide(group, cut)
            self.is_begun = self.is_begun or decided != cut
        else:
            self.is_begun = True
        # Whoever decided it may have known more sets.
        await self._take_in(is_known=True, came_since=True)
        return {name: await self._beginnings.begin(name, group, decided) for name in opened}

    async def _take_in(self, *, is_known: bool, came_since: bool) -> bool:
        """Open the group in all sets in which it is not yet; answers whether there was one. `is_known`: it had begun before;
        `came_since`: these sets came while it is opened, and somebody else may have begun it in the others before that.
        """
        request = self._request
        given = {SetName(wire.resource_set): offset_of(wire) for wire in request.offsets}
        is_earliest = request.start != pb.OpenSubscriptionRequest.START_LATEST
        names = [name for name in await self._sources.names.all() if name not in self._opened]
        for name in names:
            if is_known and await self._beginnings.find(name, request.group) is None:
                await self._beginnings.begin_at_beginning(name, request.group)
            floor = NOTHING if came_since else None
            if request.start == pb.OpenSubscriptionRequest.START_OFFSETS:
                floor = given.get(name, floor)
            response = await self._sources.change(
                name, request.group, SubscriptionChange.OPEN, floor, is_earliest=is_earliest
            )
            self._opened[name] = group_in(response, request.group)
        return bool(names)

    async def _first_cut(self, look: FirstLook, *, is_known: bool) -> dict[SetName, Offset]:
        """Where a group begins that holds everything behind the floors of what is opened: the next closed cut. What has ended
        below it was known when the sets were asked for it, and so was every set that it ended in.
        """
        until = time.monotonic() + self._beginnings.call_seconds if self._request.asks_again else math.inf
        while True:
            floors = _floors(self._opened)
            stands, looked_at = await self._look(look, floors, until)
            deadline = look.first_whole + FIRST_CUT_SECONDS
            cut = await asyncio.to_thread(first_cut, floors, stands, look.commits)
            halves = await asyncio.to_thread(perhaps_halves, stands)
            if cut is not None and await self._has_committed(halves, deadline):
                # In a set that has forgotten it, perhaps, and in front of the floor.
                cut = None
            if cut is not None and any(offset.index > looked_at[name] for name, offset in cut.items()):
                # It ended behind that, while it was asked for; and others, that nobody has asked for, in front of it perhaps.
                cut = None
            if await self._take_in(is_known=is_known, came_since=True):
                continue
            if cut is not None:
                return cut
            if time.monotonic() >= deadline:
                look.first_whole = 0.0
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    f"group {self._request.group!r} cannot begin: a transaction over several sets has ended in some of them"
                    " only, or may have, so long ago that they do not know it any more",
                )
            if time.monotonic() >= until:
                raise StillLooking
            await asyncio.sleep(LOOK_SECONDS)
            # Where transactions overlap without end, there is no other closed cut above the floors.
            await self._beginnings.moments.make()

    async def _look(
        self, look: FirstLook, floors: Mapping[SetName, Offset], until: float
    ) -> tuple[Stands, dict[SetName, LogIndex]]:
        """At every transaction that is prepared somewhere, or has committed behind a floor, as far as each log was looked at.
        Raises `StillLooking` when that takes longer than `until`.
        """
        committed: dict[SetName, LogIndex] = {}
        prepared: dict[GlobalId, bytes] = {}
        for name in floors:
            _, found, committed[name] = await self._sources.stands(name, ())
            prepared.update(await asyncio.to_thread(_by_global_id, found))
        # What was not prepared any more has ended in a part of the log that a backup may not know yet.
        looked_at = await look.go_on(self._sources, floors, committed, until)
        known, asked = await asyncio.to_thread(look.to_ask, prepared)
        return known | await ask_stands(self._sources, floors, asked), looked_at

    async def _has_committed(self, transactions: Iterable[GlobalId], deadline: float) -> bool:
        """Whether one of these may have, in any set, by what the decision log says, or does not say until the deadline. Those
        that are undecided have not."""
        for global_id in transactions:
            view = await self._beginnings.read_decision(global_id)
            is_undecided = view is not None and view.participants is not None and view.decision is None
            if not is_undecided or time.monotonic() >= deadline:
                return True
        return False


def _by_global_id(xids: Iterable[bytes]) -> dict[GlobalId, bytes]:
    return {branch_name(Xid.decode(xid)).global_id: xid for xid in xids}


def _floors(opened: Mapping[SetName, _Group]) -> dict[SetName, Offset]:
    return {name: offset_of(group.floor) for name, group in opened.items()}


def _begins(group: _Group) -> _Cut | None:
    return {SetName(wire.resource_set): offset_of(wire) for wire in group.begins} or None


def group_in(response: pb.ChangeSubscriptionResponse, name: str) -> _Group:
    """Raises `Rejected` NOT_FOUND."""
    for group in response.groups:
        if group.group == name:
            return group
    raise Rejected(ErrorCode.NOT_FOUND, f"no group {name[:80]!r}")
