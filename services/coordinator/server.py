"""A coordinator process: everything put together, started in order, and stopped in order (DESIGN 2).

Law: nothing is served before the process is present in etcd; a process that stops gives its presence up last, and the others
take up what it had in hand.
"""

import asyncio
import contextlib
import logging
import signal
import uuid

from lockstep.core.ids import Incarnation
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.health import Health
from lockstep.runtime.loop_watch import watching
from lockstep.runtime.metrics import serve_metrics
from lockstep.runtime.process import bind, spawn, started
from lockstep.runtime.reflection import add_services
from services.coordinator.coordinator_service import CoordinatorService
from services.coordinator.core.coordinator import Coordinator
from services.coordinator.core.messages import LogSeen
from services.coordinator.driver import CoordinatorDriver
from services.coordinator.log_pages import LogPages
from services.coordinator.log_port import LogPort
from services.coordinator.participant_ports import GrpcParticipants, ParticipantPorts
from services.coordinator.presence import Presence
from services.coordinator.resource_sets import ResourceSets
from services.coordinator.samples import CoordinatorSamples
from services.coordinator.settings import CoordinatorSettings

_log = logging.getLogger("lockstep.coordinator")

SERVER_GRACE_SECONDS = 0.3
"""For calls to end by themselves when the process stops."""


async def serve(settings: CoordinatorSettings) -> int:
    """Runs a coordinator until SIGTERM or SIGINT; returns its exit status."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    process = Incarnation(str(uuid.uuid4()))
    channels = Channels()
    async with (
        EtcdClient(settings.etcd, settings.etcd_seconds) as etcd,
        # What transactions write does not come before the lease.
        EtcdClient(settings.etcd, settings.etcd_seconds) as presence_etcd,
    ):
        server = make_server()
        host, _, port = settings.listen.rpartition(":")
        is_bound = port == "0"
        if is_bound:
            port = str(bind(server, settings.listen))
        address = settings.advertise or f"{host}:{port}"
        presence = Presence(presence_etcd, settings.cluster, process, address, settings.lease_seconds)
        log = LogPort(etcd, settings.cluster, presence, settings.limits.outcome_ms)
        sets = ResourceSets(etcd, settings.cluster, settings.call_seconds)
        services = GrpcParticipants(channels, settings.call_seconds, settings.calls_max)
        ports = ParticipantPorts({"grpc": services, "set": sets})
        core = Coordinator(process, settings.limits)
        driver = CoordinatorDriver(core, log, ports, settings.tick_seconds, settings.exit_at)
        presence.seen = lambda asked_ms: driver.feed(LogSeen(asked_ms))
        pages = LogPages(etcd, settings.cluster, core)
        service = CoordinatorService(driver, presence, ports, log, pages)
        add_services(server, (service.handlers(),), Health())
        tasks = [spawn(presence.run(), "presence")]
        with contextlib.ExitStack() as cleanup:
            if await started(presence.registered(), stopping):
                watch = cleanup.enter_context(watching("coordinator"))
                if settings.metrics_port:
                    sources = [CoordinatorSamples(driver).read, watch.samples]
                    cleanup.callback(serve_metrics(settings.metrics_port, sources))
                if not is_bound:
                    # Not before: whoever waits for the port may count on the registration.
                    bind(server, settings.listen)
                await server.start()
                tasks.append(spawn(driver.run_ticks(), "ticks"))
                _log.info("event=ready address=%s process=%s", address, process)
                await stopping.wait()
            _log.info("event=stopping in_hand=%d", len(driver.core.transactions))
            await server.stop(SERVER_GRACE_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await driver.close()
            await presence.end()
            await sets.close()
            await channels.close()
    _log.info("event=stopped")
    return 0
