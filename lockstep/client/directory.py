"""Which resource set a name belongs to, and which brokers may serve it: asked of any broker, and remembered.

Law: what is remembered may be old. Whoever is told by a set that it has not the name, or that another one has it, forgets it, and
it is asked for again: by the same call, if that may be repeated behind those that follow it, and else by the next one.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from lockstep.client.first_answer import NobodyAnswered, first_answer
from lockstep.core.errors import ErrorCode, InDoubt, LockstepError, Rejected
from lockstep.core.ids import Epoch, SetName
from lockstep.runtime.channels import Channels
from lockstep.runtime.status import error_from
from lockstep.wire.v1 import cluster_pb2 as pb
from lockstep.wire.v1.cluster_pb2_grpc import ClusterStub

if TYPE_CHECKING:
    from lockstep.wire.v1.cluster_pb2_grpc import ClusterAsyncStub

Kind = pb.LocateRequest.Kind
_EXCHANGE, _QUEUE = Kind.KIND_EXCHANGE, Kind.KIND_QUEUE
"""Of every publish; taken out of the enumeration, each costs over a microsecond."""
Name = tuple["pb.LocateRequest.Kind.ValueType", str]
"""Of an exchange, a queue or a resource set."""
_Result = TypeVar("_Result")

CALL_SECONDS = 2.0
"""One try at one broker."""
BESIDE_SECONDS = 0.25
"""Whoever has not answered by then may hang."""
PATIENCE_SECONDS = 15.0
"""All tries: several failovers."""
PAUSE_SECONDS = 0.1
LOOKUPS_MAX = 16
"""Names that are asked for at a time; more wait here, in their order: no broker has thousands of questions before it."""
NAMES_MAX = 50_000
"""Names that are remembered; with more of them, the oldest is asked for again."""


@dataclass(frozen=True, slots=True)
class Place:
    """A resource set and where it may be served, the primary first."""

    set_name: SetName
    epoch: Epoch
    candidates: tuple[str, ...]


@dataclass(slots=True)
class _Question:
    """Where a name is, until everybody has gone on who has waited for that."""

    answer: asyncio.Future[Place]
    is_answered: bool = False
    """Those who waited are about to go on."""
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """In the order of asking, which is that of going on."""


class Directory:
    """Lives as long as its client."""

    def __init__(self, channels: Channels, addresses: Sequence[str]) -> None:
        self._channels = channels
        self.addresses = tuple(addresses)
        """Brokers to ask; those learnt from answers are asked too."""
        self._learnt: dict[str, None] = {}
        self._names: dict[tuple[int, str], Place] = {}
        self._latest: dict[SetName, Place] = {}
        """Sets as they were told of last, whatever was asked for."""
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self._asking: dict[Name, _Question] = {}
        """Questions under way: who asks the same waits for the same answer."""

    def known_target(self, exchange: str, routing_key: str) -> Place | None:
        """Where an exchange is, or the queue that the routing key names if there is none; None where that is to be asked for."""
        return self._names.get(_target(exchange, routing_key))

    async def locate_target(self, exchange: str, routing_key: str) -> Place:
        """As `known_target`, asked for where it is not known; raises as `locate`."""
        return await self.locate(*_target(exchange, routing_key))

    def forget_target(self, exchange: str, routing_key: str) -> None:
        """Its set says that there is no such exchange or queue: it is asked for again the next time."""
        self.forget(*_target(exchange, routing_key))

    async def locate(self, kind: "pb.LocateRequest.Kind.ValueType", name: str) -> Place:
        """The set of a queue, exchange or set name; raises `Rejected` (NOT_FOUND, UNKNOWN_SET)."""
        known = self._names.get((kind, name))
        if known is not None:
            return known
        question = self._asking.get((kind, name))
        if question is None:
            question = self._asking[kind, name] = _Question(asyncio.ensure_future(self._locate(kind, name)))
            question.answer.add_done_callback(lambda _: self._answered(kind, name))
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if question.is_answered:
            asyncio.get_running_loop().call_soon(_wake, (waiter,))
        question.waiting[waiter] = None
        try:
            await waiter
            return question.answer.result()
        finally:
            del question.waiting[waiter]
            self._gone_on(kind, name)

    async def _locate(self, kind: "pb.LocateRequest.Kind.ValueType", name: str) -> Place:
        request = pb.LocateRequest(kind=kind, name=name)
        async with self._lookups:
            response = await self.ask(lambda stub: stub.Locate(request, timeout=CALL_SECONDS), is_quick=True)
        self.learn(response.candidates)
        place = Place(SetName(response.resource_set), Epoch(response.epoch), tuple(response.candidates))
        if place.epoch >= self.latest(place).epoch:
            self._latest[place.set_name] = place
        return place

    def latest(self, place: Place) -> Place:
        """What was heard last of the set of a place: that may be old, for it was remembered with a name."""
        return self._latest.get(place.set_name, place)

    def _answered(self, kind: "pb.LocateRequest.Kind.ValueType", name: str) -> None:
        question = self._asking[kind, name]
        question.is_answered = True
        _wake(tuple(question.waiting))
        self._gone_on(kind, name)

    def _gone_on(self, kind: "pb.LocateRequest.Kind.ValueType", name: str) -> None:
        """Remembers an answer when nobody waits for it any more: until then, whoever asks goes on behind those who do."""
        question = self._asking[kind, name]
        if question.waiting or not question.is_answered:
            return
        del self._asking[kind, name]
        # Which set is the only one is not remembered: there may be another one the next time.
        if name and not question.answer.cancelled() and question.answer.exception() is None:
            self.remember(kind, name, question.answer.result())

    async def place_for(self, kind: "pb.LocateRequest.Kind.ValueType", name: str, set_name: str) -> Place:
        """Where to declare a name: in `set_name`; if that is empty where it is already, else in the only set there is."""
        if set_name:
            return await self.locate(Kind.KIND_SET, set_name)
        try:
            return await self.locate(kind, name)
        except Rejected as rejected:
            if rejected.code is not ErrorCode.NOT_FOUND:
                raise
        return await self.locate(Kind.KIND_SET, "")

    def remember(self, kind: "pb.LocateRequest.Kind.ValueType", name: str, place: Place) -> None:
        """Where a name is, from whoever asked for it or declared it there."""
        if len(self._names) >= NAMES_MAX:
            del self._names[next(iter(self._names))]
        self._names[kind, name] = place

    def forget(self, kind: "pb.LocateRequest.Kind.ValueType", name: str) -> bool:
        """Returns whether it was remembered."""
        return self._names.pop((kind, name), None) is not None

    def learn(self, addresses: Sequence[str]) -> None:
        """Addresses of brokers, from whoever heard them."""
        for address in addresses:
            self._learnt[address] = None

    async def ask(
        self,
        call: "Callable[[ClusterAsyncStub], Awaitable[_Result]]",
        patience_seconds: float = PATIENCE_SECONDS,
        *,
        is_quick: bool = False,
    ) -> _Result:
        """Calls any broker for something that may be repeated, until one answers; raises what the last one said. `is_quick`:
        whoever can does so at once, so others are asked beside one that is silent. UNKNOWN_SET is raised when all that there are
        have said so, or after all tries.
        """
        return await self.call(
            lambda channel: call(ClusterStub(channel)), patience_seconds, is_quick=is_quick
        )

    async def change(self, call: "Callable[[ClusterAsyncStub], Awaitable[_Result]]") -> _Result:
        """As `ask`, for what changes something. Raises `Rejected` only if no try can have done it; else `InDoubt`, whatever the
        last one said: that it is done already may be due to the one before."""
        doubt: InDoubt | None = None

        async def attempt(stub: "ClusterAsyncStub") -> _Result:
            nonlocal doubt
            # Of whoever cannot be reached, it is known by this that nothing has begun there.
            await stub.GetStatus(pb.GetClusterStatusRequest(), timeout=CALL_SECONDS)
            try:
                return await call(stub)
            except grpc.aio.AioRpcError as failure:
                if isinstance(heard := error_from(failure), InDoubt):
                    doubt = heard
                raise

        try:
            return await self.ask(attempt)
        except Rejected as rejected:
            if doubt is None:
                raise
            text = f"an earlier try may have done it: {rejected.message}"
            raise InDoubt(rejected.code, text, **rejected.details) from doubt

    async def call(
        self,
        call: Callable[[grpc.aio.Channel], Awaitable[_Result]],
        patience_seconds: float = PATIENCE_SECONDS,
        *,
        is_quick: bool = False,
    ) -> _Result:
        """As `ask`, for any service."""
        deadline = asyncio.get_running_loop().time() + patience_seconds
        while True:
            addresses = list(dict.fromkeys((*self.addresses, *self._learnt)))
            random.shuffle(addresses)
            calls = [partial(call, self._channels.to(address)) for address in addresses]
            try:
                return await first_answer(calls, BESIDE_SECONDS if is_quick else None)
            except NobodyAnswered as nobody:
                error = nobody.error
                if nobody.knows_nobody and not await self._finds_others():
                    raise error from nobody
            if asyncio.get_running_loop().time() >= deadline:
                raise Rejected(
                    error.code,
                    f"no broker answered at {', '.join(self.addresses)}: {error.message}",
                    addresses=list(self.addresses),
                )
            await asyncio.sleep(PAUSE_SECONDS)

    async def _finds_others(self) -> bool:
        """Whether there may be brokers, as others know, that are not asked yet."""
        request = pb.GetClusterStatusRequest()
        known = dict.fromkeys((*self.addresses, *self._learnt))
        calls = [
            partial(ClusterStub(self._channels.to(address)).GetStatus, request, timeout=CALL_SECONDS)
            for address in known
        ]
        try:
            status = await first_answer(calls, BESIDE_SECONDS)
        except (NobodyAnswered, LockstepError):
            return True
        self.learn([member.address for member in status.members if member.address])
        return not known.keys() >= self._learnt.keys()


def _target(exchange: str, routing_key: str) -> "tuple[pb.LocateRequest.Kind.ValueType, str]":
    """What a publish names: an exchange, or the queue of its routing key."""
    return (_EXCHANGE, exchange) if exchange else (_QUEUE, routing_key)


def _wake(waiting: "Sequence[asyncio.Future[None]]") -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)
