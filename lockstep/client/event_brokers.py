"""Brokers that answer questions about committed events: any of them does, so whoever answers first is good.

Law: a broker that failed is asked again after all the others, and the whole search has an end. Which brokers there are is learnt
from the cluster map, again whenever a round went by without an answer. That there is no such resource set is an answer when all
have said so that the map shows: one whose view lags has not heard of it yet.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from lockstep.client.event_errors import event_error
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.channels import ChannelTls, open_blocking_channel
from lockstep.wire.v1 import cluster_pb2
from lockstep.wire.v1.cluster_pb2_grpc import ClusterStub

STATUS_SECONDS = 2.0
PAUSE_SECONDS = 0.1
_Result = TypeVar("_Result")


class EventBrokers:
    """Lives as long as its client; for one thread at a time."""

    def __init__(self, addresses: Sequence[str], tls: ChannelTls | None) -> None:
        if not addresses:
            raise ValueError("no address of a broker")
        self._given = tuple(dict.fromkeys(addresses))
        self._learnt: tuple[str, ...] = ()
        self._tls = tls
        self._channels: dict[str, grpc.Channel] = {}

    def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def to(self, address: str) -> grpc.Channel:
        """The channel to this address, opened at the first use."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_blocking_channel(address, self._tls)
        return channel

    def search(self, first: Sequence[str], patience_seconds: float) -> "Search":
        """`first`: the brokers to ask before all others, the best first."""
        return Search(self, first, patience_seconds)

    def call(
        self,
        call: Callable[[grpc.Channel], _Result],
        patience_seconds: float,
        goes_on: Callable[[_Result], bool] = lambda answer: False,
    ) -> _Result:
        """Calls one broker after the other for something that may be repeated, and the same again while its answer says that it
        `goes_on`. Raises `Rejected`.
        """
        search = self.search((), patience_seconds)
        while True:
            address = search.next()
            try:
                while goes_on(answer := call(self.to(address))):
                    search.succeed()
                return answer
            except grpc.RpcError as failure:
                search.fail(address, failure)

    def committed(self, resource_set: str, first: Sequence[str], patience_seconds: float) -> int:
        """Up to which index a set is committed now, as the first broker with a replica of it knows. Raises `Rejected`."""
        request = cluster_pb2.LocateRequest(kind=cluster_pb2.LocateRequest.KIND_SET, name=resource_set)
        search = self.search(first, patience_seconds)
        while True:
            address = search.next()
            try:
                answer = ClusterStub(self.to(address)).Locate(request, timeout=STATUS_SECONDS)
            except grpc.RpcError as failure:
                search.fail(address, failure)
                continue
            if answer.commit_index:
                return answer.commit_index
            search.pass_by(address, f"no replica of {resource_set!r}")

    def addresses(self) -> list[str]:
        """All that are known, in a random order, so that readers spread."""
        known = list(dict.fromkeys((*self._given, *self._learnt)))
        return random.sample(known, len(known))

    def learn(self) -> None:
        """Asks the cluster map who there is; what was known stays where nobody answers."""
        request = cluster_pb2.GetClusterStatusRequest()
        for address in self.addresses():
            try:
                status = ClusterStub(self.to(address)).GetStatus(request, timeout=STATUS_SECONDS)
            except grpc.RpcError:
                continue
            self._learnt = tuple(member.address for member in status.members if member.address)
            return


class Search:
    """From the first try of a call to its answer, or to the end of patience."""

    def __init__(self, brokers: EventBrokers, first: Sequence[str], patience_seconds: float) -> None:
        self._brokers = brokers
        self._first = tuple(first)
        self._patience_seconds = patience_seconds
        self._left: list[str] = []
        self._in_round = 0
        self._unknown = 0
        """How many of this round have said that there is no such set."""
        self._has_learnt = False
        self.succeed()
        self._begin_round()

    def next(self) -> str:
        """The address to try now."""
        if not self._left:
            time.sleep(PAUSE_SECONDS)
            self._brokers.learn()
            self._has_learnt = True
            self._begin_round()
        return self._left.pop(0)

    def succeed(self) -> None:
        """Something was got: patience begins anew."""
        self._deadline = time.monotonic() + self._patience_seconds

    def fail(self, address: str, failure: grpc.RpcError) -> None:
        """Returns when another try makes sense; else raises what the last broker said."""
        error, may_go_on = event_error(failure)
        self._unknown += error.code is ErrorCode.UNKNOWN_SET
        if not may_go_on or (self._has_learnt and self._unknown == self._in_round):
            raise error from failure
        self._give_up_late(address, error.code, error.message, failure)

    def pass_by(self, address: str, why: str) -> None:
        """It answered, without an error, less than was asked for: as `fail`."""
        self._give_up_late(address, ErrorCode.UNAVAILABLE, why, None)

    def _give_up_late(self, address: str, code: ErrorCode, message: str, cause: grpc.RpcError | None) -> None:
        if time.monotonic() >= self._deadline:
            raise Rejected(
                code,
                f"no broker has answered for {self._patience_seconds:g} s; the last was {address}: {message}",
                address=address,
            ) from cause

    def _begin_round(self) -> None:
        self._left = list(dict.fromkeys((*self._first, *self._brokers.addresses())))
        self._in_round, self._unknown = len(self._left), 0
