"""The Events service: groups, plans, and the events themselves (DESIGN 7; protos/lockstep/wire/v1/events.proto).

Law: any broker serves any call. What it has no replica of it passes on, once, as it comes.
"""

import asyncio
from typing import Any

import grpc
import grpc.aio

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.core.ids import LogIndex, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.rpc import Context, service, unary, unary_stream
from lockstep.runtime.status import error_from
from lockstep.runtime.wire import parse
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.core.events.planning import Offset
from services.broker.events.beginnings import Beginnings, ReadDecision
from services.broker.events.groups import Groups
from services.broker.events.planner import Planner
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.set_events import SetEvents
from services.broker.events.sources import EventSources, offset_of, wire_log, wire_offset

TAIL_LOOK_SECONDS = 0.05


class EventsService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(
        self, sources: EventSources, moments: QuietMoments, read_decision: ReadDecision, channels: Channels
    ) -> None:
        self._sources = sources
        self._channels = channels
        beginnings = Beginnings(sources, moments, read_decision)
        self.groups = Groups(sources, beginnings)
        self.planner = Planner(sources, beginnings, moments)

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        planner, groups, sources = self.planner, self.groups, self._sources
        return service(
            "Events",
            {
                "OpenSubscription": unary(pb.OpenSubscriptionRequest, groups.open),
                "CloseSubscription": unary(pb.CloseSubscriptionRequest, groups.close),
                "ListSubscriptions": unary(pb.ListSubscriptionsRequest, groups.list),
                "Plan": unary(pb.PlanRequest, planner.plan),
                "Read": unary_stream(self._read),
                "Acknowledge": unary(pb.AcknowledgeEventsRequest, groups.acknowledge),
                "Tail": unary_stream(self._tail),
                "DescribeLog": unary(pb.DescribeLogRequest, self._describe_log),
                "ChangeSubscription": unary(pb.ChangeSubscriptionRequest, sources.change_subscription),
                "FindBranches": unary(pb.FindBranchesRequest, sources.find_branches),
            },
        )

    async def _describe_log(self, request: pb.DescribeLogRequest) -> pb.DescribeLogResponse:
        set_name = SetName(request.start.resource_set)
        log = await self._sources.describe(
            set_name, offset_of(request.start), request.max_events, LogIndex(request.at_least)
        )
        events = self._sources.here(set_name)
        assert events is not None, "described just now"
        # In a thread: it may tell of hundreds of thousands of transactions.
        return await asyncio.to_thread(wire_log, set_name, log, events.committed())

    async def _read(self, data: bytes, context: Context) -> None:
        request = parse(pb.ReadEventsRequest(), data)
        set_name = SetName(request.start.resource_set)
        if request.to.resource_set != set_name:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "a range is of one resource set")
        events = self._sources.here(set_name)
        if events is None:
            await self._pass_on("Read", set_name, request, context)
            return
        is_begun = False
        try:
            async for encoded in events.range(
                offset_of(request.start), offset_of(request.to), with_content=not request.without_content
            ):
                for batch in encoded.batches:
                    await context.write(batch)
                is_begun = True
        except Rejected as error:
            if error.code is not ErrorCode.OUT_OF_RANGE:
                raise
            # This broker may have come to the set with a snapshot, while others have the whole log.
            if is_begun:
                raise _perhaps_elsewhere(error) from error
            await self._pass_on("Read", set_name, request, context, error)

    async def _tail(self, data: bytes, context: Context) -> None:
        request = parse(pb.TailRequest(), data)
        set_name = SetName(request.resource_set)
        events = self._sources.here(set_name)
        if events is None:
            await self._pass_on("Tail", set_name, request, context)
            return
        position = offset_of(request.start) if request.HasField("start") else events.committed()
        try:
            while True:
                await self._next(events, position)
                async for encoded in events.blocks(
                    position, events.committed().index, with_content=not request.without_content
                ):
                    position = encoded.block.end
                    if encoded.block.events:
                        for batch in encoded.batches:
                            await context.write(batch)
        except Rejected as error:
            if error.code is not ErrorCode.OUT_OF_RANGE:
                raise
            request.start.CopyFrom(wire_offset(set_name, position))
            await self._pass_on("Tail", set_name, request, context, error)

    @staticmethod
    async def _next(events: SetEvents, position: Offset) -> None:
        """Until something is committed behind a position. Raises `Rejected` WRONG_EPOCH if nothing will be."""
        while events.committed().index <= position.index:
            events.check(position)
            await asyncio.sleep(TAIL_LOOK_SECONDS)

    async def _pass_on(
        self,
        method: str,
        set_name: SetName,
        request: pb.ReadEventsRequest | pb.TailRequest,
        context: Context,
        problem: LockstepError | None = None,
    ) -> None:
        """What the first other broker says that says anything. If none does, what `BrokerErrors` makes of that, and of this one's
        `problem`.
        """
        problem = problem or Rejected(
            ErrorCode.UNAVAILABLE, f"no replica of {set_name!r} here", set_name=set_name
        )
        if request.is_forwarded:
            raise problem
        request.is_forwarded = True
        errors = self._sources.broker_errors(set_name)
        errors.add(self._sources.broker, problem)
        for broker, address in self._sources.others(set_name):
            call: Any = self._channels.to(address).unary_stream(f"/lockstep.wire.v1.Events/{method}")
            stream = call(request.SerializeToString())
            is_begun = False
            try:
                async for batch in stream:
                    is_begun = True
                    await context.write(batch)
                return
            except grpc.aio.AioRpcError as error:
                found = error_from(error, is_read=True)
                if is_begun:
                    raise _perhaps_elsewhere(found) from error
                errors.add(broker, found)
            finally:
                stream.cancel()
        raise errors.conclusion()


def _perhaps_elsewhere(error: LockstepError) -> LockstepError:
    """What ends a stream that has begun. That the rest is gone, one broker alone has said: whoever asks for it is passed on."""
    if error.code is not ErrorCode.OUT_OF_RANGE:
        return error
    return Rejected(ErrorCode.UNAVAILABLE, error.message, **error.details)
