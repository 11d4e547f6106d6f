"""Forwarding: sends a call on to the broker that can answer it.

Law: a call is forwarded once. Whoever gets a forwarded call and cannot answer it says NOT_PRIMARY, and the caller, who may know
better by then, decides.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from lockstep.core.errors import ErrorCode, Rejected
from lockstep.core.ids import BrokerId, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.status import error_from
from lockstep.runtime.wire import Serialized, parse_answer

FORWARD_SECONDS = 10.0
"""Above any wait of the other broker itself."""

_Response = TypeVar("_Response", bound=Message)


async def _serialize(request: Message) -> Serialized:
    return request.SerializeToString()


class Forwarding:
    """Lives as long as the process."""

    def __init__(self, broker: BrokerId, view: ClusterView, channels: Channels) -> None:
        self._broker = broker
        self._view = view
        self._channels = channels

    def is_here(self, set_name: SetName) -> bool:
        """Whether the map names this broker as the set's primary. Raises `Rejected` UNKNOWN_SET."""
        set_map = self._view.set_map(set_name)
        if set_map is None:
            raise Rejected(
                ErrorCode.UNKNOWN_SET, f"no resource set {set_name[:80]!r}", set_name=set_name[:80]
            )
        return set_map.primary == self._broker

    async def at_primary(
        self,
        set_name: SetName,
        method: str,
        request: Message,
        kind: type[_Response],
        here: Callable[[], Awaitable[_Response]],
        *,
        is_read: bool = False,
        serialize: Callable[[Any], Awaitable[Serialized]] | None = None,
    ) -> _Response:
        """What `here` answers, if this is the primary of the set; else what the primary answers. `request` has `is_forwarded`.

        `serialize`: of a request that may be long, as one that is forwarded.
        """
        if self.is_here(set_name):
            return await here()
        forwarded: Any = request
        was_forwarded = forwarded.is_forwarded
        if serialize is None:
            forwarded = type(request)()
            forwarded.CopyFrom(request)
            forwarded.is_forwarded = True
        return await self.to_primary(
            set_name,
            method,
            forwarded,
            kind,
            is_forwarded=was_forwarded,
            is_read=is_read,
            serialize=serialize or _serialize,
        )

    async def to_primary(
        self,
        set_name: SetName,
        method: str,
        request: Message,
        kind: type[_Response],
        *,
        is_forwarded: bool,
        is_read: bool,
        serialize: Callable[[Any], Awaitable[Serialized]] = _serialize,
    ) -> _Response:
        """The primary's response. Raises its error, or NOT_PRIMARY / UNAVAILABLE when there is nobody to ask."""
        set_map = self._view.set_map(set_name)
        if is_forwarded or set_map is None:
            raise Rejected(
                ErrorCode.NOT_PRIMARY,
                f"{self._broker} is not the primary of {set_name!r}",
                set_name=set_name,
                candidates=self._view.candidates(set_name),
            )
        if not set_map.primary:
            raise Rejected(ErrorCode.UNAVAILABLE, f"set {set_name!r} has no primary yet", set_name=set_name)
        if self._view.address(set_map.primary) is None:
            text = f"the primary of {set_name!r}, {set_map.primary}, is not registered"
            raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=set_name)
        return await self.to_broker(
            set_map.primary, method, request, kind, is_read=is_read, serialize=serialize
        )

    async def to_broker(
        self,
        broker: BrokerId,
        method: str,
        request: Message,
        kind: type[_Response],
        *,
        is_read: bool,
        seconds: float = FORWARD_SECONDS,
        serialize: Callable[[Any], Awaitable[Serialized]] = _serialize,
    ) -> _Response:
        """That broker's response, within `seconds`. Raises its error, NOT_FOUND when nobody knows it, or the call's end."""
        address = self._view.address(broker)
        if address is None:
            raise Rejected(
                ErrorCode.NOT_FOUND, f"no broker {broker[:80]!r} is registered", broker=broker[:80]
            )
        call: Any = self._channels.to(address).unary_unary(f"/lockstep.wire.v1.{method}")
        try:
            data = await call(await serialize(request), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from(error, is_read=is_read) from error
        return parse_answer(
            kind(), data, f"broker {broker} at {address}, asked for {method},", is_read=is_read
        )
