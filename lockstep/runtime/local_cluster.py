"""A whole cluster on this machine: etcd, a store and a broker for each broker id, coordinators of distributed transactions, and
proxies for AMQP clients, as child processes on one data directory.

Law: a start on the same directory gives the same cluster: the same disks, ports and names (`cluster.json`), and a directory has
one cluster at a time. Stores are at Unix sockets in it, unless it is asked otherwise: whoever reaches one may change
what it has. A broker process that was seen to exit has its lease revoked, by the id that it wrote down (DESIGN R6);
nothing is started again by itself.
"""

import asyncio
import contextlib
import fcntl
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from lockstep.core.errors import ErrorCode, LockstepError, Rejected
from lockstep.runtime.etcd import EtcdClient
from lockstep.runtime.etcd_process import EtcdProcess
from lockstep.runtime.local_sockets import socket_address
from lockstep.runtime.ports import choose_ports, is_free
from lockstep.runtime.supervisor import ChildProcess, wait_for_port
from lockstep.runtime.well_known_ports import FIRST_PORT

STOP_SECONDS = 8.0
"""A stopping broker hands its sets over, which may take a few seconds, before it is killed."""

_PROXY_LISTEN = 4
"""Place of the address in the command of a proxy."""

_log = logging.getLogger("lockstep.cluster")


class ClusterFile(msgspec.Struct, frozen=True):
    """What `cluster.json` holds: the shape of the cluster in this directory."""

    cluster: str
    broker_ports: dict[str, int]
    store_ports: dict[str, int] = {}
    """Empty: stores are at Unix sockets."""
    coordinator_ports: dict[str, int] = {}
    proxy_ports: dict[str, int] = {}
    is_prepared: bool = True
    """What a new cluster begins with is there: its first start came to its end."""


class LocalBroker:
    """One broker and its store; both live as long as the cluster object, their processes come and go."""

    def __init__(
        self, name: str, broker: ChildProcess, store: ChildProcess, address: str, lease_file: Path
    ) -> None:
        self.name = name
        self.broker = broker
        self.store = store
        self.address = address
        self.lease_file = lease_file


class LocalCluster:
    """From `start` to `stop`, or as `async with`; used from one event loop."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        coordinators: int = 0,
        proxies: int = 0,
        cluster: str = "local",
        first_port: int = FIRST_PORT,
        amqp_port: int = 0,
        broker_arguments: Sequence[str] = (),
        proxy_arguments: Sequence[str] = (),
        store_arguments: Sequence[str] = (),
        are_stores_at_ports: bool = False,
        with_metrics: bool = False,
        etcd_endpoints: str = "",
        is_kept_when_told: bool = False,
    ) -> None:
        """`first_port`, `amqp_port` 0: any free ports. A directory that has a cluster keeps its number of brokers, whatever is
        asked. `are_stores_at_ports`: at free ports of the loopback, where every user of this machine reaches them.
        `etcd_endpoints`: of an etcd that somebody else runs; "": a member of its own. `is_kept_when_told`: a new one is new at
        its next start, too, unless `keep` was called."""
        self.directory = directory.resolve()
        self.etcd: EtcdProcess | None = None
        """Its own member, when it has one."""
        self.brokers: dict[str, LocalBroker] = {}
        self.coordinators: dict[str, ChildProcess] = {}
        self.proxies: dict[str, ChildProcess] = {}
        self.is_new = True
        """Nothing was in the directory before, or what an earlier start left that ended before `keep`."""
        self.metrics_ports: dict[str, int] = {}
        """Of `/metrics` of every process but etcd, by its name; empty without metrics."""
        self.store_addresses: dict[str, str] = {}
        """Of each broker's store, from the start on: host:port or unix:path."""
        self._are_stores_at_ports = are_stores_at_ports
        self._with_metrics = with_metrics
        self._stores: dict[str, ChildProcess] = {}
        self._etcd_elsewhere = etcd_endpoints
        self._is_kept_when_told = is_kept_when_told
        self._lock: IO[str] | None = None
        self._wanted = brokers
        self._wanted_coordinators = coordinators
        self._wanted_proxies = proxies
        self._cluster = cluster
        self._first_port = first_port
        self._amqp_port = amqp_port
        self._broker_arguments = tuple(broker_arguments)
        self._proxy_arguments = tuple(proxy_arguments)
        self._store_arguments = tuple(store_arguments)

    @property
    def addresses(self) -> list[str]:
        """Of all brokers, as clients reach them."""
        return [broker.address for broker in self.brokers.values()]

    @property
    def etcd_endpoints(self) -> str:
        """As processes are told them; "" when no etcd is known yet."""
        return self._etcd_elsewhere or (self.etcd.endpoint if self.etcd is not None else "")

    @property
    def proxy_addresses(self) -> list[str]:
        """Of all proxies, as AMQP clients reach them."""
        return [process.command[_PROXY_LISTEN] for process in self.proxies.values()]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts everything; returns when all ports are served. Raises `Rejected`, with nothing left running."""
        try:
            await self._start()
        except BaseException:
            await self.stop(grace_seconds=1.0)
            raise

    def keep(self) -> None:
        """What a new cluster begins with is there: from now on a start goes on with what the directory has."""
        path = self.directory / "cluster.json"
        if (shape := self._read_shape(path)) is not None and not shape.is_prepared:
            self._write_shape(path, msgspec.structs.replace(shape, is_prepared=True))

    async def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock_directory()
        shape = self._shape()
        etcd, stores = await asyncio.gather(
            self._start_etcd(), self._start_stores(shape), return_exceptions=True
        )
        for failure in (etcd, stores):
            if failure is not None:
                raise failure
        self._add_brokers(shape, self.etcd_endpoints)
        self._add_coordinators(shape, self.etcd_endpoints)
        self._add_proxies(shape)
        await asyncio.gather(
            *(self.start_broker(name) for name in self.brokers),
            *(self.start_coordinator(name) for name in self.coordinators),
            *(self.start_proxy(name) for name in self.proxies),
        )

    async def _start_etcd(self) -> None:
        if not self._etcd_elsewhere:
            self.etcd = await EtcdProcess.start(self.directory / "etcd")

    async def _start_stores(self, shape: ClusterFile) -> None:
        self.store_addresses = {name: self._store_address(shape, name) for name in shape.broker_ports}
        self._stores = {name: self._store(name, address) for name, address in self.store_addresses.items()}
        await asyncio.gather(*(store.start() for store in self._stores.values()))
        await asyncio.gather(
            *(wait_for_port(store, self.store_addresses[name]) for name, store in self._stores.items())
        )

    def _store_address(self, shape: ClusterFile, name: str) -> str:
        if port := shape.store_ports.get(name):
            return f"127.0.0.1:{port}"
        # Beside the brokers' directories: a copy of one of these is a backup, and takes no sockets along.
        sockets = self.directory / "sockets"
        sockets.mkdir(mode=0o700, exist_ok=True)
        return socket_address(sockets / name)

    def _store(self, name: str, address: str) -> ChildProcess:
        home = self.directory / name
        command = (
            *(sys.executable, "-m", "services.store"),
            *self._metrics_arguments(f"store of {name}"),
            *("--data", str(home / "store"), "--listen", address),
            *self._store_arguments,
        )
        return ChildProcess(f"store of {name}", command, home / "store.log")

    def _add_brokers(self, shape: ClusterFile, etcd: str) -> None:
        for name, port in shape.broker_ports.items():
            home = self.directory / name
            address = f"127.0.0.1:{port}"
            lease_file = home / "broker-lease"
            command = (
                *(sys.executable, "-m", "services.broker", "--id", name, "--listen", address),
                *("--store", self.store_addresses[name], "--etcd", etcd),
                *("--cluster", self._cluster, "--lease-file", str(lease_file), *self._broker_arguments),
                *self._metrics_arguments(f"broker {name}"),
            )
            broker = ChildProcess(f"broker {name}", command, home / "broker.log", self._revoke_lease)
            self.brokers[name] = LocalBroker(name, broker, self._stores[name], address, lease_file)

    def _add_coordinators(self, shape: ClusterFile, etcd: str) -> None:
        for name, port in shape.coordinator_ports.items():
            command = (
                *(sys.executable, "-m", "services.coordinator", "--etcd", etcd, "--cluster", self._cluster),
                *self._metrics_arguments(f"coordinator {name}"),
                *("--listen", f"127.0.0.1:{port}"),
            )
            log = self.directory / name / "coordinator.log"
            self.coordinators[name] = ChildProcess(f"coordinator {name}", command, log)

    def _add_proxies(self, shape: ClusterFile) -> None:
        addresses = ",".join(f"127.0.0.1:{port}" for port in shape.proxy_ports.values())
        for name, port in shape.proxy_ports.items():
            command = (
                *(sys.executable, "-m", "services.proxy", "--listen", f"127.0.0.1:{port}"),
                *("--brokers", ",".join(self.addresses), "--advertise", addresses, *self._proxy_arguments),
                *self._metrics_arguments(f"proxy {name}"),
            )
            self.proxies[name] = ChildProcess(f"proxy {name}", command, self.directory / name / "proxy.log")

    def _metrics_arguments(self, process: str) -> tuple[str, ...]:
        if not self._with_metrics:
            return ()
        (port,) = choose_ports(1)
        self.metrics_ports[process] = port
        return "--metrics-port", str(port)

    async def start_etcd(self) -> None:
        """Starts its own member of etcd again, on its data and its ports; raises `Rejected` if it does not start there."""
        assert self.etcd is not None, "it has a member of its own, which was started before"
        if not self.etcd.are_ports_free:
            # It would go elsewhere, where nobody looks for it.
            text = f"something else has a port of etcd ({self.etcd.endpoint})"
            raise Rejected(ErrorCode.UNAVAILABLE, text, endpoint=self.etcd.endpoint)
        self.etcd = await self.etcd.restart()

    async def start_broker(self, name: str) -> None:
        """Starts a broker (not its store) and waits until it listens."""
        local = self.brokers[name]
        await local.broker.start()
        await wait_for_port(local.broker, local.address)

    async def start_store(self, name: str) -> None:
        """Starts a store and waits until it listens."""
        store = self.brokers[name].store
        await store.start()
        await wait_for_port(store, self.store_addresses[name])

    async def start_coordinator(self, name: str) -> None:
        """Starts a coordinator and waits until it listens."""
        coordinator = self.coordinators[name]
        await coordinator.start()
        await wait_for_port(coordinator, coordinator.command[-1])

    async def start_proxy(self, name: str) -> None:
        """Starts a proxy and waits until it listens, which it does when a broker answers."""
        proxy = self.proxies[name]
        await proxy.start()
        await wait_for_port(proxy, proxy.command[_PROXY_LISTEN])

    @property
    def processes(self) -> list[tuple[ChildProcess, Callable[[], Awaitable[None]]]]:
        """Every process but etcd, and what starts it again."""
        return [
            *((local.broker, partial(self.start_broker, name)) for name, local in self.brokers.items()),
            *((local.store, partial(self.start_store, name)) for name, local in self.brokers.items()),
            *(
                (process, partial(self.start_coordinator, name))
                for name, process in self.coordinators.items()
            ),
            *((process, partial(self.start_proxy, name)) for name, process in self.proxies.items()),
        ]

    async def stop(self, grace_seconds: float = STOP_SECONDS) -> None:
        """Stops proxies and coordinators, then brokers, stores and etcd; kills what does not end in time. May be called again."""
        await asyncio.gather(*(process.stop(grace_seconds) for process in self.proxies.values()))
        await asyncio.gather(*(process.stop(grace_seconds) for process in self.coordinators.values()))
        for local in self.brokers.values():
            # One by one: a broker that stops hands its sets over, and not to one that is about to stop as well.
            await local.broker.stop(grace_seconds)
        await asyncio.gather(*(store.stop(grace_seconds) for store in self._stores.values()))
        if self.etcd is not None:
            await self.etcd.stop()
        if self._lock is not None:
            self._lock.close()

    async def _revoke_lease(self, broker: ChildProcess) -> None:
        """The process is gone for certain: others need not wait for its lease to end."""
        local = next(local for local in self.brokers.values() if local.broker is broker)
        if not self._etcd_elsewhere and (self.etcd is None or not self.etcd.is_running):
            return
        with contextlib.suppress(OSError, ValueError):
            lease_id = int(local.lease_file.read_text())
            try:
                async with EtcdClient(self.etcd_endpoints, timeout_seconds=1.0) as etcd:
                    await etcd.lease_revoke(lease_id)
            except LockstepError as error:
                _log.warning("lease %x of %s could not be revoked: %s", lease_id, local.name, error.message)

    # The directory

    def _lock_directory(self) -> None:
        self._lock = (self.directory / "cluster.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Rejected(
                ErrorCode.IN_USE, f"a cluster runs on {self.directory} already", directory=str(self.directory)
            ) from error

    def _shape(self) -> ClusterFile:
        """Of the cluster in the directory; made, and written down, at its first start."""
        path = self.directory / "cluster.json"
        found = self._read_shape(path)
        self.is_new = found is None or not found.is_prepared
        names = list(found.broker_ports) if found else [f"B{number}" for number in range(1, self._wanted + 1)]
        if found is not None:
            self._cluster = found.cluster
            wanted = found.broker_ports
            stores, coordinators = found.store_ports, found.coordinator_ports
        else:
            wanted = {name: self._first_port + place for place, name in enumerate(names) if self._first_port}
            stores, coordinators = {}, {}
        # Nothing of a coordinator or proxy is in the directory: there are as many as are wanted now.
        others = [f"C{number}" for number in range(1, self._wanted_coordinators + 1)]
        gates = [f"P{number}" for number in range(1, self._wanted_proxies + 1)]
        open_ports = found.proxy_ports if found is not None else {}
        if gates and self._amqp_port:
            open_ports = {**open_ports, gates[0]: self._amqp_port}
        spare = choose_ports(2 * len(names) + len(others) + len(gates))

        def ports(names: list[str], known: dict[str, int]) -> dict[str, int]:
            return {
                name: port if (port := known.get(name, 0)) and is_free(port) else spare.pop()
                for name in names
            }

        shape = ClusterFile(
            self._cluster,
            ports(names, wanted),
            ports(names, stores) if self._are_stores_at_ports else {},
            ports(others, coordinators),
            ports(gates, open_ports),
            is_prepared=not (self.is_new and self._is_kept_when_told),
        )
        self._write_shape(path, shape)
        return shape

    @staticmethod
    def _write_shape(path: Path, shape: ClusterFile) -> None:
        scratch = path.with_name("cluster.json.new")
        scratch.write_bytes(msgspec.json.format(msgspec.json.encode(shape)))
        scratch.replace(path)

    @staticmethod
    def _read_shape(path: Path) -> ClusterFile | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise Rejected(
                ErrorCode.INVALID_ARGUMENT, f"{path} is not the description of a cluster: {error}"
            ) from error
