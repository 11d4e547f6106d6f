"""A process that has only the backup role: it follows the primaries of the sets that list it, with its own store (DESIGN 2).

Law: it serves nobody and is never promoted; what it acknowledges counts like any other backup's.
"""

import asyncio
import logging
import signal
import uuid
from collections.abc import Iterable

from lockstep.core.cluster_map import Keys
from lockstep.core.effects import MarkSetBack
from lockstep.core.ids import Incarnation
from lockstep.core.inputs import AnyInput, MapSeen
from lockstep.runtime.channels import Channels, make_server
from lockstep.runtime.clock import boottime_ms
from lockstep.runtime.cluster_view import ClusterView, MemberEntry
from lockstep.runtime.courtesy import Courtesy
from lockstep.runtime.driver import Driver
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_memory import EtcdMemory
from lockstep.runtime.etcd_watcher import EtcdWatcher
from lockstep.runtime.health import READY, Health
from lockstep.runtime.loop_watch import watching
from lockstep.runtime.map_changes import MapChanges
from lockstep.runtime.process import bind, spawn, started
from lockstep.runtime.pulses import Pulses
from lockstep.runtime.reflection import add_services
from lockstep.runtime.registration import register
from lockstep.runtime.store_client import StoreClient
from services.backup.core.follower import Follower
from services.backup.core.settings import BackupSettings
from services.backup.settings import BackupProcessSettings
from services.backup.subscriber import Subscriber

_log = logging.getLogger("lockstep.backup")


async def serve(settings: BackupProcessSettings) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit status."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with EtcdClient(settings.etcd) as etcd:
        process = BackupProcess(settings, etcd)
        if await started(process.start(), stopping):
            with watching(f"backup {settings.broker}"):
                await stopping.wait()
        await process.stop()
    return 0


class BackupProcess:
    """All of one backup process; from `start`, which may be given up, to `stop`."""

    def __init__(self, settings: BackupProcessSettings, etcd: EtcdClient) -> None:
        self._settings = settings
        self._process = Incarnation(str(uuid.uuid4()))
        self._etcd = etcd
        self._driver = Driver()
        self._courtesy = Courtesy()
        self._channels = Channels()
        self._pulses = Pulses()
        self._view = ClusterView(Keys(settings.cluster))
        self._watcher = EtcdWatcher(etcd, self._view, self._heard)
        # It asks for nothing that is written under a lease.
        self._changes = MapChanges(
            etcd, self._view.keys, settings.broker, lambda: 0, self._watcher.read_set, self._driver.feed
        )
        self._driver.on(MarkSetBack, self._changes.perform)
        self._memory = EtcdMemory(self._view, self._driver, boottime_ms, self._changes.perform)
        self._store = StoreClient(self._driver, self._pulses, self._channels, settings.store)
        self._subscriber = Subscriber(self._driver, self._channels, self._view.address)
        self._server = make_server()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        # Without an address: nobody is sent here.
        await register(self._etcd, self._view.keys, MemberEntry(self._settings.broker, "", self._process))
        for name, coroutine in (
            ("ticks", self._driver.run_ticks()),
            ("pulses", self._pulses.run()),
            ("watch", self._watcher.run()),
        ):
            self._tasks.append(spawn(coroutine, name))
        await self._watcher.has_read()
        health = Health({READY: lambda: self._view.is_in_sync(self._settings.broker)})
        add_services(self._server, (), health)
        if self._settings.health_listen:
            bind(self._server, self._settings.health_listen)
        await self._server.start()
        _log.info("broker=%s event=started process=%s role=backup", self._settings.broker, self._process)

    async def stop(self) -> None:
        await self._server.stop(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._subscriber.close()
        await self._changes.close()
        await self._store.close()
        await self._channels.close()
        _log.info("broker=%s event=stopped", self._settings.broker)

    def _heard(self, inputs: Iterable[AnyInput]) -> None:
        for given in inputs:
            if isinstance(given, MapSeen):
                self._host(given)
            self._driver.feed(given)
        self._memory.look()

    def _host(self, seen: MapSeen) -> None:
        is_listed = seen.set_map is not None and self._settings.broker in seen.set_map.brokers
        if not is_listed or self._driver.core(seen.set_name) is not None:
            return
        settings = BackupSettings(between=self._courtesy)
        follower = Follower(seen.set_name, self._settings.broker, self._process, settings)
        self._driver.host(seen.set_name, follower)
        self._store.open(seen.set_name)
        _log.info("set=%s event=replica_created", seen.set_name)
