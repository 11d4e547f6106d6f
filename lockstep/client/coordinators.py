"""Calls to coordinators of distributed transactions: any of them serves any call, so whoever answers first is good.

Law: every call may be repeated. What no coordinator answers in time is `InDoubt`, for whatever could have been done. Brokers say
where coordinators are; that is asked at the first call, and again when one did not answer.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.runtime.channels import Channels
from lockstep.runtime.status import error_from, is_ours

PATIENCE_SECONDS = 30.0
"""All tries of one call: a prepare may wait for a failover, and a coordinator that died is taken up by another within seconds."""
PAUSE_SECONDS = 0.1
NONE_SECONDS = 3.0
"""A cluster that shows no coordinator for so long is taken to have none: they register within a second."""
_AGAIN = {ErrorCode.UNAVAILABLE}
_Response = TypeVar("_Response", bound=Message)


class Coordinators:
    """Lives as long as its client."""

    def __init__(
        self, channels: Channels, ask: Callable[[], Awaitable[Sequence[str]]], addresses: Sequence[str]
    ) -> None:
        """`ask`: asks brokers for addresses; `addresses`: in their place."""
        self._channels = channels
        self._ask_brokers = ask
        self._is_given = bool(addresses)
        self._addresses = random.sample(addresses, len(addresses))

    async def call(
        self, method: str, request: Message, response: _Response, patience_seconds: float = PATIENCE_SECONDS
    ) -> _Response:
        """Asks one coordinator after the other. Raises `Rejected` (it did not happen) or `InDoubt`, of no transaction by name."""
        deadline = asyncio.get_running_loop().time() + patience_seconds
        data = request.SerializeToString()
        await self._find(min(NONE_SECONDS, patience_seconds))
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
            await self._ask()
            await asyncio.sleep(PAUSE_SECONDS)

    async def call_each(
        self, method: str, request: Message, response: Callable[[], _Response], seconds: float
    ) -> dict[str, _Response | LockstepError]:
        """Asks all coordinators that are known, once; what each has said, by its address. Raises `Rejected` where there is
        none."""
        await self._find(min(NONE_SECONDS, seconds))
        data = request.SerializeToString()

        async def ask(address: str) -> _Response | LockstepError:
            call: Any = self._channels.to(address).unary_unary(f"/lockstep.wire.v1.Coordinator/{method}")
            answer = response()
            try:
                answer.ParseFromString(await call(data, timeout=seconds))
            except grpc.aio.AioRpcError as failure:
                return error_from(failure)
            return answer

        addresses = list(self._addresses)
        return dict(zip(addresses, await asyncio.gather(*map(ask, addresses)), strict=True))

    async def are_known(self) -> bool:
        """Whether there is any, as far as brokers know."""
        if not self._addresses:
            await self._ask()
        return bool(self._addresses)

    async def _find(self, patience_seconds: float) -> None:
        """Returns when at least one is known. Raises `Rejected` (UNAVAILABLE)."""
        deadline = asyncio.get_running_loop().time() + patience_seconds
        while not await self.are_known():
            if asyncio.get_running_loop().time() >= deadline:
                raise Rejected(
                    ErrorCode.UNAVAILABLE,
                    "a transaction over several participants needs a coordinator, and the cluster has none",
                )
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self) -> None:
        """Learns who is there now; what was known stays if nobody says more."""
        if self._is_given:
            return
        try:
            found = await self._ask_brokers()
        except LockstepError:
            return
        if found:
            # Whoever has just failed comes last, if it is still there.
            known = [address for address in self._addresses if address in found]
            new = [address for address in found if address not in known]
            self._addresses = random.sample(new, len(new)) + known
