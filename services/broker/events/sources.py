"""Where the events of each set are: this broker's own replica, or another broker's (DESIGN 7: backups should serve).

Law: what is asked of a primary goes to the primary; everything else to an in-sync backup as long as there is one.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial

from lockstep.core.epoch_table import REIGN_MAX, UNKNOWN_REIGN
from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import BrokerId, Epoch, LogIndex, SetName, TimeMs
from lockstep.core.requests import SubscriptionChange
from lockstep.core.server_messages import BranchEnd
from lockstep.core.wire_numbers import known
from lockstep.runtime.clock import read_now
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.first_cut import BranchStands
from services.broker.core.events.planning import JointCommit, LogView, Mark, Offset, joint_commit
from services.broker.events.broker_errors import BrokerErrors
from services.broker.events.journal import JournalReader
from services.broker.events.loaded_set import loaded_set
from services.broker.events.set_events import SetEvents
from services.broker.events.set_names import SetNames
from services.broker.forwarding import Forwarding
from services.broker.set_queries import SetQueries

DESCRIBED_BLOCKS_MAX = 2_000
"""In one description of a log: about two million events, or half a million small frames."""
BLOCKS_AT_ONCE = 50
"""Of those that are kept, before others have their turn."""
DESCRIBE_SECONDS = 2.0
"""For one description: whoever asked for more asks again, and callers wait for ten seconds."""
NOTHING = Offset(LogIndex(0), Epoch(0))
"""The beginning of every log."""


class EventSources:
    """Lives as long as the process."""

    def __init__(
        self,
        broker: BrokerId,
        view: ClusterView,
        driver: Driver,
        journal: JournalReader,
        forwarding: Forwarding,
        queries: SetQueries,
        names: SetNames,
    ) -> None:
        self.broker = broker
        self.names = names
        self._view = view
        self._driver = driver
        self._journal = journal
        self._forwarding = forwarding
        self._queries = queries
        self._here: dict[SetName, SetEvents] = {}

    def here(self, set_name: SetName) -> SetEvents | None:
        """This broker's own; None if it has no replica."""
        if self._driver.core(set_name) is None:
            return None
        found = self._here.get(set_name)
        if found is None:
            found = self._here[set_name] = SetEvents(
                set_name, partial(loaded_set, self._driver, set_name), self._journal
            )
        return found

    def brokers(self, set_name: SetName) -> list[BrokerId]:
        """Who should be asked, the best first: backups in sync (this broker before others), then the primary, then others."""
        set_map = self._view.set_map(set_name)
        if set_map is None:
            raise Rejected(
                ErrorCode.UNKNOWN_SET, f"no resource set {set_name[:80]!r}", set_name=set_name[:80]
            )
        in_sync = [member.broker for member in set_map.in_sync]
        return sorted(
            set_map.brokers,
            key=lambda broker: (
                broker not in in_sync,
                broker == set_map.primary,
                broker != self.broker,
                set_map.brokers.index(broker),
            ),
        )

    def addresses(self, set_name: SetName) -> list[str]:
        return [address for broker in self.brokers(set_name) if (address := self._view.address(broker))]

    def others(self, set_name: SetName) -> list[tuple[BrokerId, str]]:
        """The same without this broker, each with its address."""
        brokers = [broker for broker in self.brokers(set_name) if broker != self.broker]
        return [(broker, address) for broker in brokers if (address := self._view.address(broker))]

    def broker_errors(self, set_name: SetName) -> BrokerErrors:
        """For a question to these brokers. One in sync that is not registered is not heard, whatever the others say."""
        set_map = self._view.set_map(set_name)
        in_sync = [member.broker for member in set_map.in_sync] if set_map is not None else []
        errors = BrokerErrors(set_name, in_sync)
        for broker in in_sync:
            if broker != self.broker and not self._view.address(broker):
                text = f"{broker} has {set_name!r}, and is not registered"
                errors.add(broker, Rejected(ErrorCode.UNAVAILABLE, text, set_name=set_name))
        return errors

    # --- logs ---------------------------------------------------------------------------------------------------------

    async def log_of(
        self, set_name: SetName, start: Offset, max_events: int, at_least: LogIndex = NOTHING.index
    ) -> LogView:
        """What the set's log offers behind `start`, from the first broker that can say it, and knows `at_least` to be committed.
        Raises what `BrokerErrors` makes of theirs: that what is asked for is not kept any more is believed when all in sync say
        so.
        """
        errors = self.broker_errors(set_name)
        for broker in self.brokers(set_name):
            try:
                if broker == self.broker:
                    return await self.describe(set_name, start, max_events, at_least)
                request = pb.DescribeLogRequest(max_events=max_events, at_least=at_least)
                request.start.CopyFrom(wire_offset(set_name, start))
                response = await self._forwarding.to_broker(
                    broker, "Events/DescribeLog", request, pb.DescribeLogResponse, is_read=True
                )
                return await asyncio.to_thread(log_view_of, start, response)
            except LockstepError as error:
                errors.add(broker, error)
        raise errors.conclusion()

    async def describe(
        self, set_name: SetName, start: Offset, max_events: int, at_least: LogIndex = NOTHING.index
    ) -> LogView:
        """The same of this broker's own replica. Raises `Rejected` UNAVAILABLE without one."""
        events = self.here(set_name)
        if events is None:
            raise Rejected(ErrorCode.UNAVAILABLE, f"no replica of {set_name!r} here", set_name=set_name)
        events.check(start)
        await events.wait_for(max(start.index, at_least))
        committed = events.committed()
        marks: list[Mark] = []
        joints: list[JointCommit] = []
        total = blocks = 0
        deadline = time.monotonic() + DESCRIBE_SECONDS
        async for encoded in events.blocks(start, committed.index):
            block = encoded.block
            marks += block.marks
            joints += block.joint_commits
            total += block.events
            blocks += 1
            if blocks % BLOCKS_AT_ONCE == 0:
                await asyncio.sleep(0)
            is_enough = max_events and total >= max_events
            if is_enough or blocks >= DESCRIBED_BLOCKS_MAX or time.monotonic() >= deadline:
                break
        is_end = (marks[-1].offset.index if marks else start.index) >= committed.index
        reigns = events.reigns_from(start.epoch)
        return LogView(start, marks, joints, is_end, read_now().wall_ms, reigns)

    # --- primaries ----------------------------------------------------------------------------------------------------

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
        """Change a group at the set's primary; answers all groups of the set. Raises what the primary says."""
        request = pb.ChangeSubscriptionRequest(
            resource_set=set_name,
            group=group,
            change=pb.ChangeSubscriptionRequest.Change.ValueType(change.value),
            is_earliest=is_earliest,
            is_left_behind=is_left_behind,
            begins=[wire_offset(name, offset) for name, offset in sorted((begins or {}).items())],
        )
        if floor is not None:
            request.floor.CopyFrom(wire_offset(set_name, floor))
        return await self.change_subscription(request)

    async def change_subscription(
        self, request: pb.ChangeSubscriptionRequest
    ) -> pb.ChangeSubscriptionResponse:
        """A call between brokers."""
        set_name = SetName(request.resource_set)

        async def here() -> pb.ChangeSubscriptionResponse:
            events = self.here(set_name)
            assert events is not None, "the primary of a set has a replica of it"
            floor = offset_of(request.floor) if request.HasField("floor") else None
            if floor is not None:
                events.check(floor)
            groups = await self._queries.change_subscription(
                set_name,
                request.group,
                change_of(request.change),
                floor.index if floor is not None else None,
                floor.epoch if floor is not None else None,
                is_earliest=request.is_earliest,
                is_left_behind=request.is_left_behind,
                begins=tuple(
                    (wire.resource_set, LogIndex(wire.index), Epoch(wire.epoch)) for wire in request.begins
                ),
            )
            response = pb.ChangeSubscriptionResponse()
            for group in groups:
                known = events.offset_at(group.floor)
                response.groups.add(
                    group=group.name,
                    floor=wire_offset(set_name, known),
                    is_started=group.is_started,
                    is_left_behind=group.is_left_behind,
                    begins=[
                        wire_offset(SetName(name), Offset(index, epoch))
                        for name, index, epoch in group.begins
                    ],
                )
            return response

        return await self._forwarding.at_primary(
            set_name, "Events/ChangeSubscription", request, pb.ChangeSubscriptionResponse, here, is_read=True
        )

    async def stands(
        self, set_name: SetName, xids: Sequence[bytes]
    ) -> tuple[list[BranchStands], list[bytes], LogIndex]:
        """As its primary says: how these transactions' branches stand in a set, for none the xids of all prepared ones, and what
        was committed when this was so.
        """
        request = pb.FindBranchesRequest(resource_set=set_name, xids=xids)
        response = await self.find_branches(request)
        stands = [stands_of(end) for end in response.ends]
        return stands, list(response.prepared), LogIndex(response.committed)

    async def find_branches(self, request: pb.FindBranchesRequest) -> pb.FindBranchesResponse:
        """A call between brokers."""
        set_name = SetName(request.resource_set)

        async def here() -> pb.FindBranchesResponse:
            events = self.here(set_name)
            assert events is not None, "the primary of a set has a replica of it"
            found = await self._queries.find_branches(set_name, tuple(request.xids))
            response = pb.FindBranchesResponse(prepared=found.prepared, committed=events.committed().index)
            for end in found.ends:
                response.ends.append(wire_stands(BranchStands(end, events.offset_at(end.index).epoch)))
            return response

        return await self._forwarding.at_primary(
            set_name, "Events/FindBranches", request, pb.FindBranchesResponse, here, is_read=True
        )


def wire_offset(set_name: str, offset: Offset) -> pb.EventOffset:
    return pb.EventOffset(resource_set=set_name, index=offset.index, epoch=offset.epoch, reign=offset.reign)


def offset_of(wire: pb.EventOffset) -> Offset:
    """A number that is no reign is none that is known."""
    reign = wire.reign if wire.reign <= REIGN_MAX else UNKNOWN_REIGN
    return Offset(LogIndex(wire.index), Epoch(wire.epoch), reign)


def wire_stands(stands: BranchStands) -> pb.FindBranchesResponse.BranchEnd:
    """What `stands_of` reads again."""
    end = stands.end
    return pb.FindBranchesResponse.BranchEnd(
        is_prepared=end.is_prepared,
        index=end.index,
        is_committed=end.is_committed,
        epoch=stands.epoch,
        forgotten_up_to=end.forgotten_up_to,
        first_index=end.first_index,
        may_be_forgotten=end.may_be_forgotten,
    )


def stands_of(wire: pb.FindBranchesResponse.BranchEnd) -> BranchStands:
    end = BranchEnd(
        wire.is_prepared,
        LogIndex(wire.index),
        wire.is_committed,
        LogIndex(wire.forgotten_up_to),
        LogIndex(wire.first_index),
        wire.may_be_forgotten,
    )
    return BranchStands(end, Epoch(wire.epoch))


def wire_log(set_name: SetName, log: LogView, committed: Offset) -> pb.DescribeLogResponse:
    """What `log_view_of` reads again."""
    return pb.DescribeLogResponse(
        committed=wire_offset(set_name, committed),
        now_ms=log.now_ms,
        is_end=log.is_end,
        marks=[
            pb.DescribeLogResponse.Mark(
                index=mark.offset.index, epoch=mark.offset.epoch, time_ms=mark.time_ms, events=mark.events
            )
            for mark in log.marks
        ],
        joint_commits=[
            pb.DescribeLogResponse.JointCommit(
                xid=joint.xid,
                index=joint.index,
                epoch=joint.before.epoch,
                time_ms=joint.time_ms,
                events_before=joint.events_before,
                resource_sets=joint.resource_sets,
                is_empty=joint.is_empty,
            )
            for joint in log.joint_commits
        ],
        reigns=[pb.DescribeLogResponse.Reign(epoch=epoch, reign=reign) for epoch, reign in log.reigns],
    )


def log_view_of(start: Offset, response: pb.DescribeLogResponse) -> LogView:
    """What `wire_log` has written."""
    marks = [
        Mark(Offset(LogIndex(mark.index), Epoch(mark.epoch)), TimeMs(mark.time_ms), mark.events)
        for mark in response.marks
    ]
    joints = [
        found
        for joint in response.joint_commits
        if (
            found := joint_commit(
                joint.xid,
                LogIndex(joint.index),
                Epoch(joint.epoch),
                TimeMs(joint.time_ms),
                tuple(joint.resource_sets),
                joint.events_before,
                is_empty=joint.is_empty,
            )
        )
    ]
    reigns = tuple((Epoch(one.epoch), one.reign) for one in response.reigns if one.reign <= REIGN_MAX)
    return LogView(start, marks, joints, response.is_end, response.now_ms, reigns)


def change_of(number: int) -> SubscriptionChange:
    """Raises `Rejected` (INVALID_ARGUMENT) for one that is not known here."""
    change = known(SubscriptionChange, number, None)
    if change is None:
        raise Rejected(ErrorCode.INVALID_ARGUMENT, f"change {number} of a group is not known here")
    return change
