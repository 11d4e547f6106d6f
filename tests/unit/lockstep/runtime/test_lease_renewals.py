"""Renewals of leases: neither a busy event loop nor a member of etcd that hangs makes one fail."""

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import grpc
import pytest
from aetcd import rpc

from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.etcd import EtcdInDoubt, EtcdRejected, LeaseGone
from lockstep.runtime.lease_renewals import LeaseRenewals

TIMEOUT_SECONDS = 1.0
TTL_SECONDS = 3
REVISION = 77


class Member:
    """A member of etcd that renews; lives as long as its test, in threads of its own."""

    def __init__(self) -> None:
        self.is_hung = False
        self.may_answer = Event()
        self.heard: list[int] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        method = grpc.stream_stream_rpc_method_handler(
            self._renew,
            request_deserializer=rpc.LeaseKeepAliveRequest.FromString,
            response_serializer=rpc.LeaseKeepAliveResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("etcdserverpb.Lease", {"LeaseKeepAlive": method}),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _renew(self, requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        for request in requests:
            self.heard.append(request.ID)
            if self.is_hung:
                self.may_answer.wait(10)
            header = rpc.ResponseHeader(revision=REVISION)
            yield rpc.LeaseKeepAliveResponse(
                header=header, ID=request.ID, TTL=TTL_SECONDS if request.ID < 100 else 0
            )

    def stop(self) -> None:
        self.may_answer.set()
        self._server.stop(0).wait()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    made = [Member(), Member()]
    yield made
    for one in made:
        one.stop()


@pytest.fixture
async def renewals(members: list[Member]) -> AsyncIterator[LeaseRenewals]:
    made = LeaseRenewals([one.address for one in members], TIMEOUT_SECONDS)
    yield made
    await made.close()


async def test_a_renewal_counts_from_its_sending(renewals: LeaseRenewals) -> None:
    asked_ms = boottime_ms()
    renewal = await renewals.renew(7)
    assert asked_ms <= renewal.sent_ms <= boottime_ms()
    assert (renewal.ttl_seconds, renewal.revision) == (TTL_SECONDS, REVISION)


async def test_a_loop_that_has_much_to_do_does_not_make_a_renewal_fail(renewals: LeaseRenewals) -> None:
    """It has no turn between the decision to renew and the end of the time for it."""
    await renewals.renew(7)
    asked_ms = boottime_ms()
    renewing = asyncio.ensure_future(renewals.renew(7))
    await asyncio.sleep(0)
    time.sleep(1.5 * TIMEOUT_SECONDS)
    renewal = await renewing
    assert renewal.sent_ms - asked_ms < 1_000 * TIMEOUT_SECONDS


async def test_a_member_that_hangs_leaves_time_for_another(
    members: list[Member], renewals: LeaseRenewals
) -> None:
    members[0].is_hung = True
    assert (await renewals.renew(7)).ttl_seconds == TTL_SECONDS
    assert [one.heard for one in members] == [[7], [7]]
    await renewals.renew(8)
    assert [one.heard for one in members] == [[7], [7, 8]], "who answered is asked again"


async def test_a_lease_that_etcd_does_not_know_is_gone(renewals: LeaseRenewals) -> None:
    with pytest.raises(LeaseGone):
        await renewals.renew(100)


def hang(seconds: float) -> None:
    """No thread of this process has a turn meanwhile: the call keeps the lock of the interpreter."""
    ctypes.PyDLL(None).usleep(round(1_000_000 * seconds))


async def test_a_renewal_is_not_sent_once_its_time_is_over(
    members: list[Member], renewals: LeaseRenewals
) -> None:
    """Who asked for it hangs since, and is to lose the lease; another renewal has kept the thread until then."""
    for one in members:
        one.is_hung = True
    first, second = (asyncio.ensure_future(renewals.renew(lease)) for lease in (1, 2))
    await asyncio.sleep(0)
    hang(TIMEOUT_SECONDS)
    with pytest.raises(EtcdRejected):
        await second
    assert not [lease for one in members for lease in one.heard if lease == 2]
    for one in members:
        one.may_answer.set()
    assert isinstance(await asyncio.gather(first, return_exceptions=True), list)


async def test_renewals_that_are_closed_keep_nobody_waiting(members: list[Member]) -> None:
    for one in members:
        one.is_hung = True
    renewals = LeaseRenewals([one.address for one in members], 60.0)
    renewing = asyncio.ensure_future(renewals.renew(7))
    while not members[0].heard:
        await asyncio.sleep(0.01)
    await renewals.close()
    with pytest.raises(EtcdInDoubt):
        await renewing
