"""One simulated world: machines, brokers, stores, etcd and clients, built of real cores from one seed.

Law: everything in it that is chance comes from one `Random` of the seed, and every order from the loop: two runs of one seed are
the same run, whatever the hash seed. What observes (history, committed logs, branches) changes nothing.
"""

from collections.abc import Callable
from random import Random

from lockstep.client.session_settings import SessionSettings
from lockstep.core.cluster_map import Keys, SetMap
from lockstep.core.effects import AnyEffect, Halt, Note
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName, TransactionKey
from lockstep.core.inputs import AcceptDataLoss, AnyInput
from lockstep.core.lineage import Lineage
from services.broker.core.lease_keeper import LeaseSettings
from services.primary.core.primary import PrimaryCore
from tests.simulation.branches import Branches
from tests.simulation.broker import Broker
from tests.simulation.client import Client, ClientSession
from tests.simulation.clocks import Clocks
from tests.simulation.coordinators import Coordinators
from tests.simulation.core_faults import CoreFaults
from tests.simulation.disk import VirtualDisk
from tests.simulation.disk_faults import DiskFaults
from tests.simulation.etcd import Etcd
from tests.simulation.etcd_backups import EtcdBackups
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.limits import replica_settings, store_limits
from tests.simulation.loop import MS, Loop
from tests.simulation.network import Network
from tests.simulation.observer import Observer
from tests.simulation.options import Options
from tests.simulation.parts import Parts
from tests.simulation.process import Process
from tests.simulation.promises import Actor
from tests.simulation.store import Store
from tests.simulation.subscriber import Subscriber


class World:
    """Lives for one run; `tests.simulation.run` drives it through its phases."""

    def __init__(self, options: Options, parts: Parts | None = None) -> None:
        self.options = options
        self.parts = parts or Parts()
        self.random = Random(f"world {options.seed}")
        self.loop = Loop()
        self.network = Network(self.loop, self.random, options.network)
        self.etcd = Etcd(self.loop, self.random, self.network, options.etcd)
        self.keys = Keys("sim")
        self.history = History()
        self.branches = Branches()
        self.broker_ids = [BrokerId(f"b{number}") for number in range(1, options.brokers + 1)]
        self.set_names = [SetName(f"s{number}") for number in range(1, options.sets + 1)]
        self.unresolved: set[tuple[SetName, TransactionKey]] = set()
        self.is_working = True
        self.traced: frozenset[SetName] | None = None
        self.before_effect: Callable[[Broker, AnyEffect], None] | None = None
        """A scenario's triggers: called before a broker performs an effect; may stop or crash it there."""
        self.expects_faults = False
        """What a core raises ends its set's part of the broker, as in the driver; else it is a bug that this world has found."""
        self.as_heard: Callable[[Broker, AnyInput], AnyInput] = lambda process, given: given
        """A scenario's trick: what a broker hears in the place of what it was told."""
        self.lease_settings = LeaseSettings(lease_seconds=options.lease_seconds)
        self.session_settings = SessionSettings(heartbeat_ms=400, silence_ms=1600)
        self.visitor_settings = SessionSettings(session_timeout_ms=3000)
        self.replica_settings = replica_settings(options, self.random)
        self.store_limits = store_limits(options, self.random)
        self.disk_slowness: dict[BrokerId, int] = {}
        self.clocks = {self.host_of(broker): self._make_clocks() for broker in self.broker_ids}
        self.disks: dict[BrokerId, VirtualDisk] = {}
        self._disks_made = 0
        for broker in self.broker_ids:
            self.lose_disk(broker)
        self.disk_faults = DiskFaults(self)
        self.observer = Observer(self)
        self.faults = Faults(self)
        self.core_faults = CoreFaults(self)
        self.brokers: dict[BrokerId, Broker] = {}
        self.stores: dict[BrokerId, Store] = {}
        self.clients: list[Client] = []
        self.visitors: list[Client] = []
        """Clients that come and leave in the middle of something; some are dead."""
        self.subscribers: list[Subscriber] = []
        """Groups of readers of committed events."""
        self.coordinators = Coordinators(self)
        self.backups = EtcdBackups(self)
        self.etcd.execute(self._create_sets)

    # --- building -------------------------------------------------------------------------------------------------

    def _make_clocks(self) -> Clocks:
        error = self.random.uniform(-1, 1) * self.options.rate_error_max
        return Clocks(self.loop, error, self.random.randrange(10_000_000), self.random.randrange(-2000, 2000))

    def _create_sets(self, etcd: Etcd) -> None:
        """Set k prefers brokers k, k+1, ...: as many different primaries as there are sets."""
        etcd.put(self.keys.generation, b"generation-1")
        minimum = len(self.broker_ids) if self.options.is_minimum_all else self.options.min_in_sync
        for number, set_name in enumerate(self.set_names):
            shift = number % len(self.broker_ids)
            brokers = tuple(self.broker_ids[shift:] + self.broker_ids[:shift])
            none = Incarnation("")
            entry = SetMap(set_name, Epoch(0), BrokerId(""), none, (), (), brokers, minimum, 1, none)
            etcd.put(self.keys.set_map(set_name), entry.encode())

    def start_clients(self) -> None:
        """Client k works in the sets k and k+1."""
        for number in range(self.options.clients):
            count = min(2, len(self.set_names))
            sets = [self.set_names[(number + offset) % len(self.set_names)] for offset in range(count)]
            self.clients.append(Client(self, f"c{number + 1}", sets))

    def welcome(self, work: Callable[[ClientSession], Actor]) -> None:
        """One visitor now, and others after it while there is work; `work` is what it does."""
        if self.is_working:
            set_name = self.random.choice(self.set_names)
            visitor = Client(self, f"v{len(self.visitors) + 1}", [set_name], self.visitor_settings)
            self.visitors.append(visitor)
            visitor.sessions[set_name].spawn(work(visitor.sessions[set_name]))
            gap_us = int(self.random.expovariate(1.0 / self.options.visit_gap_us))
            self.loop.after(gap_us, self.welcome, work)

    def sessions(self) -> list[ClientSession]:
        """Of all clients that live."""
        living = [client for client in (*self.clients, *self.visitors) if client.is_alive]
        return [session for client in living for session in client.sessions.values()]

    # --- where things are -----------------------------------------------------------------------------------------

    def host_of(self, broker: BrokerId) -> str:
        return f"m{broker[1:]}"

    def client_hosts(self) -> list[str]:
        return [client.host for client in self.clients]

    def sets_of(self, broker: BrokerId) -> list[SetName]:
        return self.set_names

    def addresses_of(self, set_name: SetName) -> list[str]:
        return [f"broker:{broker}" for broker in self.broker_ids]

    def set_maps(self) -> list[SetMap]:
        """The entries as etcd has them now."""
        entries = [self.etcd.get(self.keys.set_map(set_name)) for set_name in self.set_names]
        return [SetMap.decode(entry.value) for entry in entries if entry is not None]

    def primaries(self) -> list[BrokerId]:
        return sorted({entry.primary for entry in self.set_maps() if entry.primary})

    def processes(self) -> list[Process]:
        coordinators = self.coordinators.running.values()
        return [*self.brokers.values(), *self.stores.values(), *self.clients, *self.visitors, *coordinators]

    def think_us(self) -> int:
        return int(self.random.expovariate(1.0 / self.options.think_us))

    def disk_delay_us(self, broker: BrokerId) -> int:
        mean = self.options.disk_sync_us * self.disk_slowness.get(broker, 1)
        return 20 + int(mean * (0.5 + self.random.random()))

    # --- life and death -------------------------------------------------------------------------------------------

    def start_machine(self, broker: BrokerId) -> None:
        """Start whatever of the machine does not run."""
        store = self.stores.get(broker)
        if store is None or not store.is_alive:
            self.stores[broker] = Store(self, broker, self.host_of(broker))
        process = self.brokers.get(broker)
        if process is None or not process.is_alive:
            self.observer.forget(broker)
            self.brokers[broker] = Broker(self, broker, self.host_of(broker))
            self.trace(None, f"broker {broker}: started as {self.brokers[broker].incarnation}")

    def crash_broker(self, broker: BrokerId, why: str) -> None:
        """The process is gone. A supervisor that saw it exit may revoke its lease (R6)."""
        process = self.brokers.get(broker)
        if process is None or not process.is_alive:
            return
        self.branches.reach(f"broker crash: {why}")
        if any(replica.is_half_done for replica in process.replicas.values()):
            self.branches.reach("broker crash: amid a work")
        self.trace(None, f"{process.name}: {why}")
        lease = process.etcd.keeper.lease_id
        process.die()
        if self.options.supervisor_revokes and lease:
            self.loop.after(
                self.random.randrange(5 * MS, 200 * MS), self._revoke, self.host_of(broker), lease
            )

    def _revoke(self, host: str, lease: int) -> None:
        blocked = self.network.blocked
        if self.etcd.is_up and (host, Etcd.HOST) not in blocked and lease in self.etcd.leases:
            self.branches.reach("lease revoked by a supervisor")
            self.etcd.execute(lambda etcd: etcd.revoke(lease))

    def crash_store(self, broker: BrokerId) -> None:
        """The store process is killed; what it wrote stays in the page cache."""
        store = self.stores.get(broker)
        if store is not None and store.is_alive:
            store.die()
            self.disks[broker].kill(self.random)

    def power_loss(self, broker: BrokerId) -> None:
        """The machine is gone, and what was not synced is torn or lost, mostly."""
        self.trace(None, f"machine of {broker}: power loss")
        process, store = self.brokers.get(broker), self.stores.get(broker)
        if process is not None and process.is_alive:
            process.die()
        if store is not None and store.is_alive:
            store.die()
        if self.random.random() < self.options.torn_share:
            self.disks[broker].lose_power(self.random)
        else:
            self.disks[broker].kill(self.random)

    def accept_loss(self, set_name: SetName, broker: BrokerId) -> bool:
        """`lockstep cluster recover --accept-data-loss`: the generation changes, and then the broker is told, once it knows that.
        False: refused, and nothing has changed.
        """
        process, keys = self.brokers[broker], self.keys
        if not process.is_alive or process.replicas[set_name].obstacle_to_accepted_loss:
            return False

        def change(etcd: Etcd) -> str:
            if etcd.get(keys.set_lease(set_name)) is not None:
                return ""
            generation, lineage = etcd.get(keys.generation), etcd.get(keys.lineage)
            assert generation is not None, "a world has a generation"
            before = Lineage.read(generation.value.decode(), lineage.value if lineage else b"")
            after = before.changed_to(f"{len(before.earlier) + 2:08}-generation")
            etcd.put(keys.lineage, after.encode())
            etcd.put(keys.generation, after.generation.encode())
            return after.generation

        def tell(generation: str) -> None:
            if process.is_alive and process.etcd.generation != generation:
                self.loop.after(10 * MS, tell, generation)
            elif process.is_alive:
                process.etcd.read_again(set_name, lambda: process.feed(AcceptDataLoss(set_name)))

        generation = self.etcd.execute(change)
        if generation:
            self.trace(set_name, f"data loss accepted on {broker}: {generation}")
            tell(generation)
        return bool(generation)

    def lose_disk(self, broker: BrokerId) -> None:
        """A new, empty disk takes the place of the old one."""
        self._disks_made += 1
        if broker in self.disks:
            self.disk_faults.repair(broker)
        self.disks[broker] = self.parts.make_disk(f"{broker}-disk{self._disks_made}")

    def pause(self, process: Process, duration_us: int) -> None:
        """SIGSTOP, and SIGCONT after `duration_us`."""
        self.trace(None, f"{process.name}: stopped for {duration_us / 1e6:.3f} s")
        process.pause()
        self.loop.after(duration_us, process.resume)

    def halted(self, process: Broker, effect: Halt) -> None:
        """A core stopped its process; whoever looks after the machine starts it again."""
        self.branches.reach(f"halt: {effect.reason.split(':')[0][:60]}")
        self.observer.halts.append(
            f"{process.name} halted at {self.loop.now_us / 1e6:.6f} s: {effect.reason}"
        )
        self.crash_broker(process.broker, "halt")
        self.loop.after(1_000 * MS, self.start_machine, process.broker)

    def note(self, process: Broker, effect: Note) -> None:
        # What a disk gives back is memory: what is none was written by a fault of ours.
        is_bug = effect.event in ("not loaded", "bad frame") and not self.expects_faults
        assert not is_bug, f"{process.name}, {effect.set_name}: {effect.details}"
        self.branches.note(effect)
        self.trace(effect.set_name, f"{process.name}: {effect.event}: {effect.details}")

    def leads(self, primary: PrimaryCore) -> None:
        """A promoted replica has taken over."""
        if primary.context.state.transactions.prepared():
            self.branches.reach("promoted with prepared branches")
        if primary.context.state.transactions.open():
            self.branches.reach("promoted with open transactions")
        if any(positions for _, _, positions in primary.context.dispatch.held()):
            self.branches.reach("promoted with deliveries in hand")

    def trace(self, set_name: SetName | None, line: str) -> None:
        """A line of the timeline that `--trace` prints; None: it concerns every set."""
        if self.traced is not None and (set_name is None or set_name in self.traced):
            print(f"{self.loop.now_us / 1e6:12.6f}  {line}")

    def observe_replica(self, process: Broker, given: AnyInput, effects: list[AnyEffect]) -> None:
        self.observer.observe(process, given, effects)
