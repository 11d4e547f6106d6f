"""A broker process: everything put together, started in order, and stopped in order (DESIGN 2).

Law: nothing is served before the process is registered; and a process that stops gives its sets up first, its lease second, and
its server last, so that no client waits for a lease to end that nobody uses.
"""

import asyncio
import contextlib
import logging
import signal
import uuid
from collections.abc import Iterable
from typing import Any

import grpc.aio

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import (
    AskDecision,
    ClaimName,
    DropLeaseKey,
    ListParticipants,
    LookUpNames,
    MarkSetBack,
    PromoteSelf,
    PutPresence,
    ReleaseName,
    RestoreLeaseKey,
    SwapMap,
)
from lockstep.core.ids import DiskId, Incarnation, SetName
from lockstep.core.inputs import AnyInput, MapSeen, NamesSeen
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView, MemberEntry
from lockstep.runtime.courtesy import Courtesy
from lockstep.runtime.decision_log import DecisionLogReader
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_memory import EtcdMemory
from lockstep.runtime.etcd_watcher import EtcdWatcher
from lockstep.runtime.health import READY, STARTED, Health
from lockstep.runtime.lease_renewals import LeaseRenewals
from lockstep.runtime.loop_watch import watching
from lockstep.runtime.map_changes import MapChanges
from lockstep.runtime.metrics import serve_metrics
from lockstep.runtime.name_changes import NameChanges
from lockstep.runtime.process import bind, spawn, started
from lockstep.runtime.pulses import PULSE_SECONDS, Pulses
from lockstep.runtime.reflection import add_services
from lockstep.runtime.registration import register
from lockstep.runtime.serving import ServingRights
from lockstep.runtime.store_client import StoreClient
from lockstep.runtime.tracing import tracing
from lockstep.wire.v1 import store_pb2
from services.backup.core.settings import BackupSettings
from services.backup.subscriber import Subscriber
from services.broker.branch_calls import BranchCalls
from services.broker.caller_sessions import CallerSessions
from services.broker.cluster_service import ClusterService
from services.broker.coordinators import coordinators
from services.broker.core.replica import Replica
from services.broker.core.settings import ReplicaSettings
from services.broker.decision_inquiry import DecisionInquiry
from services.broker.directory_service import Directory
from services.broker.events.journal import JournalReader
from services.broker.events.quiet_moments import QuietMoments
from services.broker.events.service import EventsService
from services.broker.events.set_names import SetNames
from services.broker.events.sources import EventSources
from services.broker.forwarding import Forwarding
from services.broker.giving_back import GivesBack
from services.broker.handing_over import hand_over
from services.broker.lease_loop import LeaseLoop
from services.broker.map_rebuild import MapRebuild
from services.broker.name_lookups import NameLookups
from services.broker.own_disk import OwnDisk
from services.broker.resource_calls import ResourceCalls
from services.broker.samples import BrokerSamples
from services.broker.set_queries import SetQueries
from services.broker.settings import BrokerSettings
from services.broker.status_report import StatusReport
from services.broker.traced_replica import TracedReplica
from services.broker.transactions_service import TransactionsService
from services.broker.witnessing import Witnessing
from services.primary.core.settings import PrimarySettings
from services.primary.server import PrimaryService
from services.primary.sessions import SessionsService

_log = logging.getLogger("lockstep.broker")

ETCD_TIMEOUT_SECONDS = 1.0
"""Of each call: below the lease, so that a renewal can be tried again within it."""
GET_STATUS = "/lockstep.wire.v1.Store/GetStatus"
GREETING_SECONDS = 1.0
SERVER_GRACE_SECONDS = 0.3
"""For streams to end by themselves when the process stops."""


async def serve(settings: BrokerSettings) -> int:
    """Runs a broker until SIGTERM or SIGINT; returns its exit status."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with (
        EtcdClient(settings.etcd, ETCD_TIMEOUT_SECONDS) as etcd,
        EtcdClient(settings.etcd, ETCD_TIMEOUT_SECONDS) as lease_etcd,
    ):
        broker = Broker(settings, etcd, lease_etcd)
        if await started(broker.start(), stopping):
            await stopping.wait()
        await broker.stop()
    return 0


class Broker:
    """All of one broker process; from `start`, which may be given up, to `stop`."""

    def __init__(self, settings: BrokerSettings, etcd: EtcdClient, lease_etcd: EtcdClient) -> None:
        """`lease_etcd`: for the process lease alone."""
        self._settings = settings
        self._process = Incarnation(str(uuid.uuid4()))
        self._etcd = etcd
        keys = Keys(settings.cluster)
        self._driver = driver = Driver()
        self._courtesy = Courtesy()
        self._channels = Channels()
        self._replication = Channels()
        """Connections for the log alone, to the own store and to primaries. On the others is what clients have this broker ask:
        where they give up too many calls, all that is on such a connection is heard more slowly.
        """
        self._pulses = Pulses()
        self._rights = ServingRights()
        self._view = view = ClusterView(keys)
        self._watcher = EtcdWatcher(etcd, view, self._heard)
        self._renewals = LeaseRenewals(settings.etcd, ETCD_TIMEOUT_SECONDS)
        self._lease = LeaseLoop(
            settings.lease,
            lease_etcd,
            self._renewals,
            view,
            driver,
            self._rights,
            settings.broker,
            self._process,
            settings.lease_file,
            self._saw_revision,
        )
        self._witnessing = Witnessing(
            view, driver, etcd, settings.broker, self._process, boottime_ms, lambda: self._lease.lease_id
        )
        self._changes = MapChanges(
            etcd, keys, settings.broker, lambda: self._lease.lease_id, self._watcher.read_set, driver.feed
        )
        self._memory = EtcdMemory(view, driver, boottime_ms, self._changes.perform)
        self._name_changes = NameChanges(etcd, keys, driver.feed)
        decisions = DecisionLogReader(etcd, settings.cluster)
        self._inquiry = DecisionInquiry(decisions, driver.feed)
        self._store = StoreClient(
            driver, self._pulses, self._replication, settings.store, self._lease.store_answered
        )
        self._primary_service = PrimaryService(driver)
        self._sessions = SessionsService(driver, self._rights, view.candidates)
        # One that may only lead is told of no address: nobody can be followed.
        self._subscriber = Subscriber(
            driver, self._replication, (lambda broker: None) if settings.is_primary_only else view.address
        )
        self._perform_effects()
        forwarding = Forwarding(settings.broker, view, self._channels)
        self._own_disk = own_disk = OwnDisk(self._channels, settings.store, view)
        report = StatusReport(settings.broker, self._process, settings.cluster, view, driver, own_disk)
        self._lookups = NameLookups(etcd)
        directory = Directory(etcd, self._lookups, view, driver, own_disk)
        rebuild = MapRebuild(
            settings.broker,
            self._process,
            etcd,
            view,
            forwarding,
            own_disk,
            settings.lease.lease_seconds,
            self._damage_found,
        )
        callers = CallerSessions(self._sessions)
        queries = SetQueries(self._sessions)
        self._transactions = TransactionsService(
            callers, queries, forwarding, directory, lambda: view.generation
        )
        self._branches = BranchCalls(callers, queries, forwarding, directory)
        self._resources = ResourceCalls(callers, forwarding, directory)
        journal = JournalReader(self._channels, settings.store)
        names = SetNames(view, etcd.get_prefix)
        sources = EventSources(settings.broker, view, driver, journal, forwarding, queries, names)
        self._events = EventsService(
            sources, QuietMoments(self._coordinator_addresses, self._channels), decisions.read, self._channels
        )
        self._cluster = ClusterService(
            settings.broker,
            self._process,
            etcd,
            view,
            driver,
            forwarding,
            directory,
            report,
            own_disk,
            rebuild,
            self._watcher.read_set,
        )
        self._samples = BrokerSamples(
            driver, self._sessions, self._primary_service, self._lease, report, own_disk, self._events.planner
        )
        self._health = Health(
            {READY: lambda: view.is_in_sync(settings.broker), STARTED: report.has_opened_its_store}
        )
        self._server = make_server()
        self._gives_back = GivesBack(settings.broker, etcd, view, driver, settings.give_back_seconds)
        self._giving_back: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._cleanup = contextlib.ExitStack()

    async def start(self) -> None:
        settings, server = self._settings, self._server
        add_services(
            server,
            (
                hosted.handlers()
                for hosted in (
                    self._primary_service,
                    self._sessions,
                    self._transactions,
                    self._branches,
                    self._resources,
                    self._events,
                    self._cluster,
                )
            ),
            self._health,
        )
        host, _, port = settings.listen.rpartition(":")
        is_bound = port == "0"
        if is_bound:
            port = str(bind(server, settings.listen))
        address = settings.advertise or f"{host}:{port}"
        await register(self._etcd, self._view.keys, MemberEntry(settings.broker, address, self._process))
        watch = self._cleanup.enter_context(watching(f"broker {settings.broker}"))
        if settings.metrics_port:
            sources = [self._samples.read, watch.samples]
            self._cleanup.callback(serve_metrics(settings.metrics_port, sources))
        for name, coroutine in (
            ("ticks", self._driver.run_ticks()),
            ("pulses", self._pulses.run()),
            ("store greeting", self._greet_store()),
            ("lease", self._lease.run()),
            ("watch", self._watcher.run()),
        ):
            self._tasks.append(spawn(coroutine, name))
        await self._watcher.has_read()
        self._tasks.append(spawn(self._own_disk.look(), "look at the disk"))
        if not is_bound:
            # Not before: whoever waits for the port may count on the registration.
            bind(server, settings.listen)
        await server.start()
        if settings.give_back_seconds:
            self._giving_back = spawn(self._gives_back.run(), "give sets back")
        _log.info("broker=%s event=started process=%s address=%s", settings.broker, self._process, address)

    async def stop(self) -> None:
        settings = self._settings
        _log.info("broker=%s event=stopping", settings.broker)
        if self._giving_back is not None:
            self._giving_back.cancel()
            await asyncio.gather(self._giving_back, return_exceptions=True)
        await hand_over(settings.broker, self._driver, self._view, settings.hand_over_seconds)
        await self._lease.stop()
        await self._cluster.stopped()
        await self._server.stop(SERVER_GRACE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._subscriber.close()
        await self._witnessing.close()
        await self._changes.close()
        await self._name_changes.close()
        await self._lookups.close()
        await self._inquiry.close()
        await self._store.close()
        await self._renewals.close()
        await self._replication.close()
        await self._channels.close()
        self._cleanup.close()
        _log.info("broker=%s event=stopped", settings.broker)

    # Inside

    def _perform_effects(self) -> None:
        driver, changes = self._driver, self._changes
        driver.on(SwapMap, changes.perform)
        driver.on(PromoteSelf, changes.perform)
        driver.on(RestoreLeaseKey, changes.perform)
        driver.on(PutPresence, changes.perform)
        driver.on(MarkSetBack, changes.perform)
        driver.on(ClaimName, self._name_changes.perform)
        driver.on(ReleaseName, self._name_changes.perform)
        driver.on(LookUpNames, self._look_up_names)
        driver.on(AskDecision, self._inquiry.perform)
        driver.on(ListParticipants, self._inquiry.perform)
        driver.on(DropLeaseKey, self._drop_lease_key)

    def _drop_lease_key(self, effect: DropLeaseKey) -> None:
        self._rights.end(effect.set_name)
        self._changes.perform(effect)

    def _look_up_names(self, effect: LookUpNames) -> None:
        directory = self._view.directory
        names = sorted(name for name, owner in directory.items() if owner == effect.set_name)
        self._driver.feed(NamesSeen(effect.set_name, tuple(names)))

    def _heard(self, inputs: Iterable[AnyInput]) -> None:
        for given in inputs:
            if isinstance(given, MapSeen):
                self._host(given)
            self._driver.feed(given)
        self._memory.look()
        self._witnessing.look()

    def _saw_revision(self, revision: int) -> None:
        self._memory.saw(revision)
        self._witnessing.look()

    def _host(self, seen: MapSeen) -> None:
        """A replica for every set whose entry names this broker; it stays until the process ends."""
        set_name, settings = seen.set_name, self._settings
        if seen.set_map is None or settings.broker not in seen.set_map.brokers:
            return
        if self._driver.core(set_name) is not None:
            return
        backup = BackupSettings(
            resident_body_bytes_max=settings.resident_body_bytes_max, between=self._courtesy
        )
        primary = PrimarySettings(in_doubt_ms=settings.in_doubt_ms)
        replica = self._replica(set_name, ReplicaSettings(primary, backup))
        self._driver.host(set_name, replica)
        for given in self._view.everything_of(set_name):
            self._driver.feed(given)
        self._lease.tell(set_name)
        self._store.open(set_name)
        _log.info("set=%s event=replica_created", set_name)

    def _replica(self, set_name: SetName, settings: ReplicaSettings) -> Replica:
        broker, traces = self._settings.broker, tracing()
        if traces is None:
            return Replica(set_name, broker, self._process, settings)
        return TracedReplica(set_name, broker, self._process, settings, traces, lambda: self._view.generation)

    def _damage_found(self, set_name: SetName, disk: DiskId) -> str:
        core = self._driver.core(set_name)
        return core.damage_found(disk) if isinstance(core, Replica) else ""

    async def _coordinator_addresses(self) -> list[str]:
        return list((await coordinators(self._etcd, self._settings.cluster)).values())

    async def _greet_store(self) -> None:
        """While there is no set, whose stream would say so, asks whether the store is there: the lease wants to know."""
        get_status: Any = self._channels.to(self._settings.store).unary_unary(GET_STATUS)
        request = store_pb2.GetStoreStatusRequest().SerializeToString()
        while not self._driver.set_names:
            try:
                await get_status(request, timeout=GREETING_SECONDS)
                self._lease.store_answered()
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(PULSE_SECONDS)
