"""What changes a cluster, and what is told of it where the first try of several is in doubt."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import lockstep
from lockstep.client import Client, InDoubt, Rejected, administration, directory
from lockstep.core.errors import ErrorCode, LockstepError
from lockstep.runtime.channels import make_server
from lockstep.runtime.rpc import service, unary
from lockstep.wire.v1 import cluster_pb2 as pb

LOST = InDoubt(ErrorCode.UNAVAILABLE, "its answer was lost")


class FakeCluster:
    """One broker; `says`: what each try of a change is answered with, the last one again and again; None: it is done."""

    def __init__(self, *says: LockstepError | None) -> None:
        self.says = list(says)
        self.tries = 0
        self.lost_address = ""
        """Of a broker that is down; empty: there is none."""

    async def status(self, _request: pb.GetClusterStatusRequest) -> pb.GetClusterStatusResponse:
        answer = pb.GetClusterStatusResponse(broker="B1")
        if self.lost_address:
            answer.members.add(broker="B2", address=self.lost_address, incarnation="1")
        return answer

    async def create_set(self, request: pb.CreateSetRequest) -> pb.CreateSetResponse:
        self._change()
        return pb.CreateSetResponse(name=request.name)

    async def promote(self, request: pb.PromoteRequest) -> pb.PromoteResponse:
        self._change()
        return pb.PromoteResponse(primary=request.broker)

    async def rebuild_map(self, _request: pb.RebuildMapRequest) -> pb.RebuildMapResponse:
        self._change()
        return pb.RebuildMapResponse()

    def _change(self) -> None:
        self.tries += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if said is not None:
            raise said


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest_asyncio.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[Client]:
    server = make_server()
    methods = {
        "GetStatus": unary(pb.GetClusterStatusRequest, cluster.status),
        "CreateSet": unary(pb.CreateSetRequest, cluster.create_set),
        "Promote": unary(pb.PromoteRequest, cluster.promote),
        "RebuildMap": unary(pb.RebuildMapRequest, cluster.rebuild_map),
    }
    server.add_generic_rpc_handlers([service("Cluster", methods)])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with await lockstep.connect(address) as connected:
        yield connected
    await server.stop(0)


async def test_a_set_that_an_earlier_try_may_have_created_is_in_doubt(
    cluster: FakeCluster, client: Client
) -> None:
    cluster.says = [LOST, Rejected(ErrorCode.ALREADY_EXISTS, "set 'east' exists")]
    with pytest.raises(InDoubt, match="an earlier try may have done it: set 'east' exists") as raised:
        await client.administration.create_set("east", ["B1"])
    assert (raised.value.code, cluster.tries) == (ErrorCode.ALREADY_EXISTS, 2)


async def test_a_change_that_succeeds_after_all_is_not_in_doubt(cluster: FakeCluster, client: Client) -> None:
    cluster.says = [LOST, None]
    assert (await client.administration.create_set("east", ["B1"])).name == "east"


async def test_what_no_broker_has_begun_is_rejected(cluster: FakeCluster, client: Client) -> None:
    client._directory.learn(["127.0.0.1:1"])
    cluster.says = [
        Rejected(ErrorCode.UNAVAILABLE, "not yet"),
        Rejected(ErrorCode.ALREADY_EXISTS, "set 'east' exists"),
    ]
    with pytest.raises(Rejected) as raised:
        await client.administration.create_set("east", ["B1"])
    assert (raised.value.code, cluster.tries) == (ErrorCode.ALREADY_EXISTS, 2)


async def test_a_change_that_stays_in_doubt_is_told_so(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory.Directory.ask, "__defaults__", (0.0,))
    cluster.says = [LOST]
    with pytest.raises(InDoubt):
        await client.administration.promote("east", "B1")
    with pytest.raises(InDoubt):
        await client.administration.rebuild_map(rebuild=True)
    with pytest.raises(Rejected):
        await client.administration.rebuild_map(rebuild=False)


class SlowlyHashed(FakeCluster):
    """It knows itself, and never comes to the end of a state hash."""

    address = ""

    async def status(self, request: pb.GetClusterStatusRequest) -> pb.GetClusterStatusResponse:
        if request.with_state_hash:
            await asyncio.sleep(60)
        answer = pb.GetClusterStatusResponse(broker="B1")
        answer.members.add(broker="B1", address=self.address)
        answer.replicas.add(resource_set="one", role=pb.ROLE_PRIMARY, messages=5_000_000)
        return answer


@pytest.mark.parametrize("cluster", [SlowlyHashed()])
async def test_a_broker_is_shown_whose_state_hash_takes_too_long(
    cluster: SlowlyHashed, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster.address,) = client._directory.addresses
    monkeypatch.setattr(administration, "HASH_SECONDS", 0.1)
    status = await client.administration.status(with_state_hash=True)
    replica = status.replica("B1", "one")
    assert replica is not None
    assert (replica.messages, replica.state_hash) == (5_000_000, "")


async def test_the_disk_of_a_broker_that_is_down_is_not_taken_and_that_is_certain(
    client: Client, cluster: FakeCluster
) -> None:
    cluster.lost_address = "127.0.0.1:1"
    with pytest.raises(
        Rejected, match=r"B2 does not answer at 127\.0\.0\.1:1: .* nothing has changed"
    ) as caught:
        await client.administration.accept_data_loss("main", "B2")
    assert caught.value.code is ErrorCode.UNAVAILABLE
