"""One broker's planner and groups over a world of resource sets, brokers that lag and sets that come, for tests."""

from collections.abc import Callable, Mapping, Sequence, Set
from random import Random
from typing import cast

from lockstep.core.branch_names import GlobalId
from lockstep.core.decision_log import LogView as DecisionView
from lockstep.core.decision_log import ParticipantsEntry, Verdict
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import Incarnation, LogIndex, SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.first_cut import BranchStands
from services.broker.core.events.planning import LogView, Offset
from services.broker.events.beginnings import CALL_SECONDS, Beginnings
from services.broker.events.groups import Groups
from services.broker.events.planner import Planner
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.sources import NOTHING, EventSources, offset_of, wire_offset
from tests.unit.services.broker.core.events.planning_world import TAG, Joint, World, at, global_id, xid_of

ONE, TWO, THREE = SetName("set0"), SetName("set1"), SetName("set2")


class Names:
    """Of sets, as etcd and as a broker's view have them."""

    def __init__(self, there: list[SetName]) -> None:
        self.there = there
        self.unheard: set[SetName] = set()
        """The view lacks them, until somebody waits for it."""
        self.refusal: Rejected | None = None
        """Of whoever asks etcd."""

    def known(self) -> list[SetName]:
        return [name for name in self.there if name not in self.unheard]

    async def all(self) -> list[SetName]:
        if self.refusal is not None:
            raise self.refusal
        self.unheard.clear()
        return self.there

    async def missing(self, names: Set[str]) -> set[str]:
        return set() if self.refusal is not None else set(names).difference(self.there)


class Sources:
    """Of a world: primaries that are up to date, and backups that lag."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names = Names(sorted(world.logs))
        self.groups: dict[SetName, dict[str, tuple[Offset, bool]]] = {name: {} for name in world.logs}
        self.begins: dict[SetName, dict[str, dict[SetName, Offset]]] = {name: {} for name in world.logs}
        self.knows_begins = True
        """Primaries do: of older versions they do not."""
        self.left_behind: dict[SetName, set[str]] = {name: set() for name in world.logs}
        self.changes_left = 1_000_000
        """So many calls are answered, then primaries are away."""
        self.lags: dict[SetName, int] = {}
        self.before_opening: dict[SetName, Callable[[], None]] = {}
        self.earliest: dict[SetName, bool] = {}
        """Whether it was opened as early as a set can, if nothing is said of where."""

    def addresses(self, set_name: SetName) -> list[str]:
        return [f"{set_name}:1", f"{set_name}:2"]

    async def log_of(
        self, set_name: SetName, start: Offset, max_events: int, at_least: LogIndex = NOTHING.index
    ) -> LogView:
        committed = len(self.world.logs[set_name])
        lag = min(self.lags.get(set_name, 0), committed - at_least)
        return self.world.view(set_name, start, max_events, lag)

    async def change(
        self,
        set_name: SetName,
        group: str,
        change: SubscriptionChange,
        floor: Offset | None = None,
        *,
        is_earliest: bool = False,
        is_left_behind: bool = False,
        begins: Mapping[SetName, Offset] | None = None,
    ) -> pb.ChangeSubscriptionResponse:
        if not self.changes_left:
            raise Rejected(ErrorCode.UNAVAILABLE, "away")
        self.changes_left -= 1
        groups, left_behind = self.groups[set_name], self.left_behind[set_name]
        if change is SubscriptionChange.CLOSE and is_left_behind:
            left_behind |= groups.keys() & {group}
        elif change is SubscriptionChange.CLOSE:
            groups.pop(group, None)
            self.begins[set_name].pop(group, None)
            left_behind.discard(group)
        elif change is not SubscriptionChange.NONE and group in left_behind:
            raise Rejected(ErrorCode.OUT_OF_RANGE, "left behind")
        elif change is SubscriptionChange.OPEN:
            self.before_opening.pop(set_name, lambda: None)()
            self.earliest[set_name] = is_earliest
            groups.setdefault(group, (floor or at(len(self.world.logs[set_name])), False))
        elif change is not SubscriptionChange.NONE:
            if group not in groups:
                raise Rejected(ErrorCode.NOT_FOUND, "no group")
            known, is_started = groups[group]
            if change is SubscriptionChange.START and not is_started:
                known = floor or NOTHING
                if self.knows_begins:
                    self.begins[set_name][group] = dict(begins or {})
            elif floor is not None and change is SubscriptionChange.ADVANCE:
                known = max(known, floor, key=lambda offset: offset.index)
            groups[group] = known, True
        return pb.ChangeSubscriptionResponse(
            groups=[
                pb.ChangeSubscriptionResponse.Group(
                    group=name,
                    floor=wire_offset(set_name, known),
                    is_started=is_started,
                    is_left_behind=name in left_behind,
                    begins=[
                        wire_offset(one, offset)
                        for one, offset in self.begins[set_name].get(name, {}).items()
                    ],
                )
                for name, (known, is_started) in sorted(groups.items())
            ]
        )

    async def stands(
        self, set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        by_xid = {xid_of(joint.name): joint.name for joint in self.world.joints}
        names = [by_xid[xid] for xid in xids]
        found = self.world.stands(names)
        prepared = [xid_of(joint.name) for joint in self.world.joints if set_name in joint.prepared]
        return [found[name][set_name] for name in names], prepared, LogIndex(len(self.world.logs[set_name]))


class Moments:
    """Quiet ones, of the coordinators of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_possible = False
        self.made_total = 0

    async def make(self) -> bool:
        if self.is_possible:
            self._world.make_quiet()
            self.made_total += 1
        return self.is_possible


class Decisions:
    """The decision log of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_silent = False
        self.asked_total = 0

    async def read(self, name: GlobalId) -> DecisionView | None:
        self.asked_total += 1
        joint = next(joint for joint in self._world.joints if joint.name == name)
        participants = ParticipantsEntry((), TAG, Incarnation("coordinator"), 0)
        decision = Verdict.COMMIT if joint.committed else None
        return None if self.is_silent else DecisionView(participants=participants, decision=decision)


async def nothing_decided(name: GlobalId) -> DecisionView | None:
    """The decision log of a world without transactions."""
    return DecisionView()


class Rig:
    def __init__(self, sets: int = 2, call_seconds: float = CALL_SECONDS) -> None:
        """`call_seconds`: of looking, in one call that opens a group."""
        self.world = World(Random(0), sets)
        self.world.skews = dict.fromkeys(self.world.logs, 0)
        self.sources = Sources(self.world)
        self.moments = Moments(self.world)
        self.decisions = Decisions(self.world)
        sources, moments = cast(EventSources, self.sources), cast(QuietMoments, self.moments)
        beginnings = Beginnings(sources, moments, self.decisions.read, call_seconds)
        self.groups = Groups(sources, beginnings)
        self.planner = Planner(sources, beginnings, moments)

    def prepared(self, *names: SetName) -> Joint:
        joint = Joint(global_id(len(self.world.joints) + 1), [], list(names))
        for name in names:
            self.world.append(name)
        self.world.joints.append(joint)
        return joint

    def commit(self, joint: Joint, name: SetName) -> None:
        joint.prepared.remove(name)
        joint.ended[name] = joint.committed[name] = self.world.append(name, 1, joint.name)

    async def open(self) -> dict[str, Offset]:
        opened = await self.groups.open(pb.OpenSubscriptionRequest(group="spark"))
        return {one.resource_set: offset_of(one) for one in opened.offsets}

    async def close(self) -> None:
        await self.groups.close(pb.CloseSubscriptionRequest(group="spark"))

    async def reader_with(self, events: int) -> dict[str, Offset]:
        """A reader that was given so many in each set, and is done with them; where it is then."""
        known = await self.open()
        for name in self.sources.names.there:
            for _ in range(events):
                self.world.append(name, 1)
        planned = [one.to for one in (await self.plan(known)).ranges]
        await self.groups.acknowledge(pb.AcknowledgeEventsRequest(group="spark", offsets=planned))
        return {one.resource_set: offset_of(one) for one in planned}

    async def plan(
        self, known: dict[str, Offset] | None = None, max_events: int = 0, wait_ms: int = 0
    ) -> pb.PlanResponse:
        offsets = [wire_offset(name, offset) for name, offset in (known or {}).items()]
        return await self.planner.plan(
            pb.PlanRequest(group="spark", known=offsets, max_events=max_events, wait_ms=wait_ms)
        )


def ends(response: pb.PlanResponse) -> dict[str, Offset]:
    return {one.to.resource_set: offset_of(one.to) for one in response.ranges}
