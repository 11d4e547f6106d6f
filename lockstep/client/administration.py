"""What people ask of a cluster: its state, new resource sets, handing over, accepting a loss.

Law: what changes something raises `Rejected` only if it did not happen, and `InDoubt` if it may have.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from lockstep.client.directory import CALL_SECONDS, PATIENCE_SECONDS, Directory
from lockstep.core.errors import ErrorCode, Rejected
from lockstep.runtime.channels import Channels
from lockstep.runtime.status import error_from
from lockstep.wire.v1 import cluster_pb2 as pb
from lockstep.wire.v1.cluster_pb2_grpc import ClusterStub

PROMOTE_SECONDS = 15.0
"""A hand-over waits until the new primary serves."""

STEP_DOWN_MARGIN_SECONDS = 15.0
"""Beyond what the broker was told to wait: the hand-over that is under way then."""

REBUILD_SECONDS = 300.0
"""All disks are read, twice."""

HASH_SECONDS = 120.0
"""Some microseconds for every message in a broker's sets, beside everything else that it does."""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What the brokers say: one's view of the map, and each one's view of itself (None: it did not answer)."""

    view: pb.GetClusterStatusResponse
    brokers: dict[str, pb.GetClusterStatusResponse | None]

    def replica(self, broker: str, set_name: str) -> pb.Replica | None:
        """A broker's replica of a set, if it answered and has one."""
        answer = self.brokers.get(broker)
        replicas = answer.replicas if answer is not None else ()
        return next((replica for replica in replicas if replica.resource_set == set_name), None)


class Administration:
    """Lives as long as its client."""

    def __init__(self, channels: Channels, directory: Directory) -> None:
        self._channels = channels
        self._directory = directory

    async def status(
        self, *, with_state_hash: bool = False, patience_seconds: float = PATIENCE_SECONDS
    ) -> ClusterStatus:
        """Asks one broker for the cluster and then every broker for itself. State hashes lack where they take too long."""
        request = pb.GetClusterStatusRequest()
        view = await self._directory.ask(
            lambda stub: stub.GetStatus(request, timeout=CALL_SECONDS), patience_seconds, is_quick=True
        )
        self._directory.learn([member.address for member in view.members])
        answers = await asyncio.gather(
            *(self._ask_one(member.address, with_state_hash) for member in view.members)
        )
        brokers = {member.broker: answer for member, answer in zip(view.members, answers, strict=True)}
        return ClusterStatus(view, brokers)

    async def coordinators(self) -> list[str]:
        """Addresses of the coordinators of distributed transactions that are there."""
        request = pb.ListCoordinatorsRequest()
        listed = await self._directory.ask(lambda stub: stub.ListCoordinators(request, timeout=CALL_SECONDS))
        return [one.address for one in listed.coordinators]

    async def _ask_one(self, address: str, with_state_hash: bool) -> pb.GetClusterStatusResponse | None:
        stub = ClusterStub(self._channels.to(address))
        plain, hashed = pb.GetClusterStatusRequest(), pb.GetClusterStatusRequest(with_state_hash=True)
        answer: pb.GetClusterStatusResponse | None = None
        with contextlib.suppress(grpc.aio.AioRpcError):
            # At first without: whoever is down is not waited for as long as a hash may take.
            answer = await stub.GetStatus(plain, timeout=CALL_SECONDS)
            if with_state_hash:
                answer = await stub.GetStatus(hashed, timeout=HASH_SECONDS)
        return answer

    async def create_set(self, name: str, brokers: list[str], min_in_sync: int = 0) -> pb.CreateSetResponse:
        """Creates a resource set; the first of `brokers` becomes its first primary. `min_in_sync` 0: the default."""
        request = pb.CreateSetRequest(name=name, brokers=brokers, min_in_sync=min_in_sync)
        return await self._directory.change(lambda stub: stub.CreateSet(request, timeout=CALL_SECONDS))

    async def promote(self, set_name: str, broker: str) -> pb.PromoteResponse:
        """Hands a set over to an in-sync broker; returns when that one serves."""
        request = pb.PromoteRequest(resource_set=set_name, broker=broker)
        return await self._directory.change(lambda stub: stub.Promote(request, timeout=PROMOTE_SECONDS))

    async def step_down(self, address: str, seconds_max: float) -> list[str]:
        """Has the broker at `address` hand over what it leads, and wait for at most `seconds_max` until it may stop; returns why
        it should not, by set: [] if it may. Raises `LockstepError` if it does not answer."""
        request = pb.StepDownRequest(seconds_max=seconds_max)
        try:
            stub = ClusterStub(self._channels.to(address))
            answer = await stub.StepDown(request, timeout=seconds_max + STEP_DOWN_MARGIN_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
        return list(answer.obstacles)

    async def rebuild_map(self, *, rebuild: bool, without: Sequence[str] = ()) -> pb.RebuildMapResponse:
        """DESIGN R1: a new map from what the disks remember; without `rebuild` only says what it would be.

        `without`: brokers whose disks are given up; `set:broker`: that of one set alone. Raises `Rejected` when a set cannot be
        rebuilt: nothing is written then.
        """
        request = pb.RebuildMapRequest(rebuild=rebuild, without=without)
        call = self._directory.change if rebuild else self._directory.ask
        return await call(lambda stub: stub.RebuildMap(request, timeout=REBUILD_SECONDS))

    async def accept_data_loss(self, set_name: str, broker: str) -> pb.AcceptDataLossResponse:
        """DESIGN R7: the set starts again from this broker's disk; what only the lost disks had is lost."""
        status = await self.status()
        address = next((member.address for member in status.view.members if member.broker == broker), None)
        if address is None:
            raise Rejected(ErrorCode.NOT_FOUND, f"no broker {broker} in the cluster", broker=broker)
        if status.brokers.get(broker) is None:
            text = f"broker {broker} does not answer at {address}: its disk cannot be taken, and nothing has changed"
            raise Rejected(ErrorCode.UNAVAILABLE, text, broker=broker)
        request = pb.AcceptDataLossRequest(resource_set=set_name, broker=broker, accept_data_loss=True)
        try:
            stub = ClusterStub(self._channels.to(address))
            return await stub.AcceptDataLoss(request, timeout=PROMOTE_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from error
