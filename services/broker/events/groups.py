"""Groups of readers: what one call does with a group in all resource sets (DESIGN 7).

Law: a group begins (`beginnings.py`) and ends in all sets. One that was not ended in would tell the next group of that name from
where the first one stood. So etcd says which sets there are, and once more behind everything that was waited for.
"""

import asyncio

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import SetName
from lockstep.core.requests import SubscriptionChange
from lockstep.wire.v1 import events_pb2 as pb
from services.broker.events.beginnings import Beginnings
from services.broker.events.first_looks import StillLooking
from services.broker.events.sources import EventSources, offset_of, wire_offset

_STARTS = frozenset(pb.OpenSubscriptionRequest.Start.values())


class Groups:
    """Lives as long as the process."""

    def __init__(self, sources: EventSources, beginnings: Beginnings) -> None:
        self._sources = sources
        self._beginnings = beginnings

    async def open(self, request: pb.OpenSubscriptionRequest) -> pb.OpenSubscriptionResponse:
        """Raises `Rejected` INVALID_ARGUMENT, UNAVAILABLE, and OUT_OF_RANGE where it is to begin with what is gone, or was left
        behind; repeating it finds what the first call did.
        """
        if request.start not in _STARTS:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, f"start {request.start} is not known here")
        opening = self._beginnings.opening(request)
        try:
            floors = await opening.run()
        except StillLooking:
            return pb.OpenSubscriptionResponse(is_looking=True)
        except Rejected as error:
            if error.code is ErrorCode.OUT_OF_RANGE and opening.is_new and not opening.is_begun:
                # It would hold everything from now on, and its reader cannot begin where it wants to.
                await self.close(pb.CloseSubscriptionRequest(group=request.group))
            raise
        return pb.OpenSubscriptionResponse(
            offsets=[wire_offset(name, offset) for name, offset in sorted(floors.items())],
            is_new=opening.is_new,
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
