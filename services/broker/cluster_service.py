"""The Cluster service: where a set is, what the cluster looks like, and what operators do to it.

Law: what is written to etcd here is written by compare, and an operator's command that weakens a promise (R7) is logged with its
names before it takes effect.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from lockstep.core.errors import ErrorCode, InDoubt, Rejected
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.inputs import AcceptDataLoss, HandOver
from lockstep.runtime.cluster_view import ClusterView
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import Absent, EtcdClient, Put
from lockstep.runtime.rpc import service, unary
from lockstep.wire.v1 import cluster_pb2 as pb
from services.broker.accepted_loss import change_generation, obstacle_here, until_it_can_lead
from services.broker.coordinators import coordinators
from services.broker.core.set_creation import check_set_name, first_entry
from services.broker.directory_service import Directory
from services.broker.forwarding import Forwarding
from services.broker.map_rebuild import MapRebuild
from services.broker.own_disk import OwnDisk
from services.broker.status_report import StatusReport
from services.broker.stepping_down import SteppingDown

_log = logging.getLogger("lockstep.cluster")

CHANGE_SECONDS = 8.0
"""How long an operator's command waits to see its effect: two leases and a promotion."""
_POLL_SECONDS = 0.05
_Found = TypeVar("_Found")


class ClusterService:
    """Lives as long as the process; hosted by its gRPC server."""

    def __init__(
        self,
        broker: BrokerId,
        process: Incarnation,
        etcd: EtcdClient,
        view: ClusterView,
        driver: Driver,
        forwarding: Forwarding,
        directory: Directory,
        report: StatusReport,
        own_disk: OwnDisk,
        rebuild: MapRebuild,
        read_set: Callable[[SetName], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._process = process
        self._etcd = etcd
        self._view = view
        self._driver = driver
        self._forwarding = forwarding
        self._directory = directory
        self._report = report
        self._own_disk = own_disk
        self._rebuild = rebuild
        self._read_set = read_set
        self._stepping_down = SteppingDown(broker, etcd, view, driver, report)

    async def stopped(self) -> None:
        """The process ends, and its lease is gone."""
        await self._stepping_down.stopped()

    def handlers(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        return service(
            "Cluster",
            {
                "GetStatus": unary(pb.GetClusterStatusRequest, self._report.get_status),
                "Locate": unary(pb.LocateRequest, self._directory.locate),
                "ListCoordinators": unary(pb.ListCoordinatorsRequest, self._list_coordinators),
                "CreateSet": unary(pb.CreateSetRequest, self._create_set),
                "Promote": unary(pb.PromoteRequest, self._promote),
                "StepDown": unary(pb.StepDownRequest, self._stepping_down.step_down),
                "SurveyDisk": unary(pb.SurveyDiskRequest, self._rebuild.survey_disk),
                "RebuildMap": unary(pb.RebuildMapRequest, self._rebuild.rebuild_map),
                "AcceptDataLoss": unary(pb.AcceptDataLossRequest, self._accept_data_loss),
            },
        )

    async def _list_coordinators(self, request: pb.ListCoordinatorsRequest) -> pb.ListCoordinatorsResponse:
        found = await coordinators(self._etcd, self._view.keys.cluster)
        return pb.ListCoordinatorsResponse(
            coordinators=[
                pb.ListCoordinatorsResponse.Coordinator(incarnation=incarnation, address=address)
                for incarnation, address in found.items()
            ]
        )

    async def _create_set(self, request: pb.CreateSetRequest) -> pb.CreateSetResponse:
        self._own_disk.refuse_lost(SetName(request.name))
        registered = set(self._view.members)
        if not registered.issuperset(request.brokers):
            # The view may lag behind a broker that has just come.
            prefix = self._view.keys.members
            entries, _ = await self._etcd.get_prefix(prefix)
            registered = {BrokerId(entry.key[len(prefix) :]) for entry in entries}
        entry = first_entry(request.name, request.brokers, request.min_in_sync, registered, self._process)
        key = self._view.keys.set_map(entry.set_name)
        result = await self._etcd.transact([Absent(key)], [Put(key, entry.encode())])
        if not result.succeeded:
            raise Rejected(ErrorCode.ALREADY_EXISTS, f"set {request.name!r} exists", set_name=request.name)
        _log.info("set=%s event=set_created brokers=%s", request.name, ",".join(request.brokers))
        return pb.CreateSetResponse(name=request.name, min_in_sync=entry.min_in_sync)

    async def _promote(self, request: pb.PromoteRequest) -> pb.PromoteResponse:
        set_name, broker = SetName(request.resource_set), BrokerId(request.broker)
        if not self._forwarding.is_here(set_name):
            forwarded = pb.PromoteRequest()
            forwarded.CopyFrom(request)
            forwarded.is_forwarded = True
            return await self._forwarding.to_primary(
                set_name,
                "Cluster/Promote",
                forwarded,
                pb.PromoteResponse,
                is_forwarded=request.is_forwarded,
                is_read=False,
            )
        set_map = self._view.set_map(set_name)
        assert set_map is not None, "a set that is here has an entry"
        if set_map.member(broker) is None:
            raise Rejected(
                ErrorCode.ILLEGAL_STATE,
                f"{broker[:80]!r} is not in sync with set {set_name!r}",
                set_name=set_name,
                broker=broker[:80],
            )
        if broker != self._broker:
            if broker not in self._view.whole_members(set_name):
                raise Rejected(
                    ErrorCode.ILLEGAL_STATE,
                    f"{broker!r} does not stand for promotion in set {set_name!r}: it is a backup alone, or has lost etcd",
                    set_name=set_name,
                    broker=broker,
                )
            _log.warning("set=%s event=hand_over to=%s by an operator", set_name, broker)
            self._driver.feed(HandOver(set_name, broker, is_chosen=True))
            epoch = await self._primary_above(set_name, broker, set_map.epoch)
        else:
            # The map names it, and may do so long after its lease has ended: with no broker in its place, or without etcd.
            epoch = set_map.epoch
            await self._until_serving(set_name)
        replica = self._report.replica(set_name)
        return pb.PromoteResponse(epoch=epoch, primary=broker, commit_index=replica.commit_index)

    async def _accept_data_loss(self, request: pb.AcceptDataLossRequest) -> pb.AcceptDataLossResponse:
        set_name, broker = SetName(request.resource_set), BrokerId(request.broker)
        if not request.accept_data_loss:
            raise Rejected(ErrorCode.INVALID_ARGUMENT, "accept_data_loss is not set", set_name=set_name[:80])
        if broker != self._broker:
            return await self._forwarding.to_broker(
                broker, "Cluster/AcceptDataLoss", request, pb.AcceptDataLossResponse, is_read=False
            )
        check_set_name(set_name)
        set_map = self._view.set_map(set_name)
        if set_map is None:
            raise Rejected(ErrorCode.UNKNOWN_SET, f"no resource set {set_name!r}", set_name=set_name)
        await until_it_can_lead(self._driver, set_name)
        generation = await change_generation(self._etcd, self._view.keys, set_name)
        _log.critical(
            "set=%s event=data_loss_accepted broker=%s epoch=%d in_sync=%s generation=%s: what only lost disks held is gone",
            set_name,
            broker,
            set_map.epoch,
            ",".join(member.broker for member in set_map.in_sync),
            generation,
        )
        await self._until(lambda: self._view.generation == generation or None, set_name)
        await self._read_set(set_name)
        self._driver.feed(AcceptDataLoss(set_name))
        epoch = await self._primary_above(
            set_name, broker, set_map.epoch, lambda: obstacle_here(self._driver, set_name)
        )
        replica = self._report.replica(set_name)
        return pb.AcceptDataLossResponse(
            epoch=epoch,
            generation=generation,
            log_end=replica.log_end,
            commit_index=replica.commit_index,
        )

    # Inside

    async def _until_serving(self, set_name: SetName) -> None:
        """Raises `Rejected` if this broker, which is to lead the set, does not serve it in time."""
        deadline = asyncio.get_running_loop().time() + CHANGE_SECONDS
        while self._report.replica(set_name).role != pb.ROLE_PRIMARY:
            if asyncio.get_running_loop().time() >= deadline:
                text = f"{self._broker} is to lead set {set_name!r} and does not serve it"
                raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=set_name, broker=self._broker)
            await asyncio.sleep(_POLL_SECONDS)

    async def _primary_above(
        self, set_name: SetName, broker: BrokerId, epoch: Epoch, why_not: Callable[[], str] = str
    ) -> Epoch:
        """Waits until the map shows an epoch above `epoch`; returns it. Raises `Rejected` if it is not of `broker`. `why_not`:
        what stands in the way when that takes too long; "": not known.
        """

        def found() -> Epoch | None:
            set_map = self._view.set_map(set_name)
            if set_map is None or set_map.epoch <= epoch:
                return None
            if set_map.primary != broker:
                text = f"{set_map.primary} has become the primary of set {set_name!r}"
                raise Rejected(ErrorCode.UNAVAILABLE, text, set_name=set_name, broker=broker)
            return set_map.epoch

        return await self._until(found, set_name, why_not)

    @staticmethod
    async def _until(
        found: Callable[[], _Found | None], set_name: SetName, why_not: Callable[[], str] = str
    ) -> _Found:
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                while (value := found()) is None:
                    await asyncio.sleep(_POLL_SECONDS)
                return value
        except TimeoutError:
            obstacle = why_not()
            text = f"set {set_name!r} did not change within {CHANGE_SECONDS:g} s"
            text = f"{text}: {obstacle}" if obstacle else text
            raise InDoubt(ErrorCode.UNAVAILABLE, text, set_name=set_name) from None
