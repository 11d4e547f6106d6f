"""Calls to coordinators of distributed transactions: any of them serves any call, so whoever answers first is good.

Law: every call may be repeated. What no coordinator answers in time is `InDoubt`, for whatever could have been done.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.runtime.channels import Channels
from lockstep.runtime.status import error_from, is_ours

PATIENCE_SECONDS = 30.0
"""All tries of one call: a prepare may wait for a failover, and a coordinator that died is taken up by another within seconds."""
PAUSE_SECONDS = 0.1
_AGAIN = {ErrorCode.UNAVAILABLE}
_Response = TypeVar("_Response", bound=Message)


class Coordinators:
    """Lives as long as its client."""

    def __init__(self, channels: Channels, addresses: Sequence[str]) -> None:
        self._channels = channels
        self._addresses = list(addresses)
        random.shuffle(self._addresses)

    async def call(
        self, method: str, request: Message, response: _Response, patience_seconds: float = PATIENCE_SECONDS
    ) -> _Response:
        """Asks one coordinator after the other. Raises `Rejected` (it did not happen) or `InDoubt`."""
        if not self._addresses:
            raise Rejected(
                ErrorCode.UNAVAILABLE,
                "a transaction over several participants needs a coordinator, and none is known",
            )
        deadline = asyncio.get_running_loop().time() + patience_seconds
        data = request.SerializeToString()
        while True:
            left = deadline - asyncio.get_running_loop().time()
            address = self._addresses[0]
            call: Any = self._channels.to(address).unary_unary(f"/lockstep.wire.v1.Coordinator/{method}")
            try:
                response.ParseFromString(await call(data, timeout=max(left, 0.1)))
                return response
            except grpc.aio.AioRpcError as failure:
                heard: LockstepError = error_from(failure)
                if isinstance(heard, Rejected) and is_ours(failure) and heard.code not in _AGAIN:
                    raise heard from failure
                self._addresses.append(self._addresses.pop(0))
                if asyncio.get_running_loop().time() >= deadline:
                    raise InDoubt(
                        heard.code, f"no coordinator has answered {method}: {heard.message}", address=address
                    ) from failure
            await asyncio.sleep(PAUSE_SECONDS)
