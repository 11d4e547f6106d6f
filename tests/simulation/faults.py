"""Faults: what goes wrong in a world, each kind one method, drawn from the seed's options.

Law: at any moment enough is left for every promise to hold: a disk is lost only where the cluster map has others in sync for
every set. Everything that was broken is whole again after `heal`.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId
from tests.simulation.loop import MS, SECOND

if TYPE_CHECKING:
    from tests.simulation.world import World


class Faults:
    """Lives as long as its world; `start` begins and `heal` ends the safety phase's faults."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self._is_active = False
        self._disks_lost = 0

    def start(self) -> None:
        self._is_active = bool(self._world.options.faults)
        self._next()

    def heal(self) -> None:
        """Stop all faults and repair everything."""
        world = self._world
        self._is_active = False
        world.trace(None, "healed")
        world.network.heal()
        if not world.etcd.is_up:
            world.etcd.start()
        self._etcd_answers_again()
        world.disk_slowness.clear()
        for broker in world.broker_ids:
            world.disk_faults.repair(broker)
            world.start_machine(broker)
        for process in world.processes():
            process.resume()
        for running in world.brokers.values():
            running.fuse = running.pause_fuse = None

    def _next(self) -> None:
        world = self._world
        gap_us = int(world.random.expovariate(1.0 / world.options.fault_gap_us))
        world.loop.after(max(gap_us, 50 * MS), self._strike)

    def _strike(self) -> None:
        if self._is_active:
            self.strike(self._world.random.choice(self._world.options.faults))
            self._next()

    def strike(self, kind: str) -> None:
        """Do one fault of `kind` now."""
        self._world.trace(None, f"fault: {kind}")
        method = getattr(self, "_" + kind.replace(" ", "_").replace("-", "_"))
        if method() is not False:
            self.counts[kind] += 1

    def _if_active(self, fault: Callable[..., None], *arguments: object) -> None:
        if self._is_active:
            fault(*arguments)

    def _some_broker(self) -> BrokerId:
        """Any broker; rather often one that is a primary."""
        world = self._world
        if world.random.random() < 0.5:
            primaries = world.primaries()
            if primaries:
                return world.random.choice(primaries)
        return world.random.choice(world.broker_ids)

    def _later(self, low_us: int, high_us: int) -> int:
        return self._world.random.randrange(low_us, high_us)

    # --- processes ------------------------------------------------------------------------------------------------

    def _kill_broker(self) -> None:
        world, broker = self._world, self._some_broker()
        world.crash_broker(broker, "killed")
        world.loop.after(self._down_us(), world.start_machine, broker)

    def _kill_broker_between_effects(self) -> bool:
        world, broker = self._world, self._some_broker()
        process = world.brokers.get(broker)
        if process is None or not process.is_alive:
            return False
        process.fuse = world.random.randrange(1, 40)
        world.loop.after(3 * SECOND, world.start_machine, broker)
        return True

    def _kill_store(self) -> None:
        world, broker = self._world, self._some_broker()
        world.crash_store(broker)
        world.loop.after(self._later(10 * MS, 4 * SECOND), world.start_machine, broker)

    def _power_loss(self) -> None:
        world, broker = self._world, self._some_broker()
        world.power_loss(broker)
        world.loop.after(self._down_us(), world.start_machine, broker)

    def _power_loss_of_all(self) -> None:
        world = self._world
        for broker in world.broker_ids:
            world.loop.after(self._later(0, 20 * MS), self._if_active, world.power_loss, broker)
            world.loop.after(self._down_us() + 30 * MS, world.start_machine, broker)

    def _full_restart(self) -> None:
        world = self._world
        for broker in world.broker_ids:
            world.loop.after(self._later(0, 50 * MS), self._if_active, world.crash_broker, broker, "killed")
            world.loop.after(self._later(60 * MS, 3 * SECOND), world.start_machine, broker)

    def _rolling_kill(self) -> None:
        world, at_us = self._world, 0
        for broker in world.broker_ids:
            world.loop.after(at_us, self._if_active, world.crash_broker, broker, "killed")
            world.loop.after(at_us + self._later(10 * MS, 1 * SECOND), world.start_machine, broker)
            at_us += self._later(200 * MS, 4 * SECOND)

    def _down_us(self) -> int:
        """Short enough to return within its lease, or long enough to be replaced."""
        return (
            self._later(5 * MS, 500 * MS)
            if self._world.random.random() < 0.4
            else self._later(1 * SECOND, 9 * SECOND)
        )

    def _pause_us(self) -> int:
        return (
            self._later(20 * MS, 900 * MS)
            if self._world.random.random() < 0.4
            else self._later(1 * SECOND, 8 * SECOND)
        )

    def _pause_broker(self) -> bool:
        process = self._world.brokers.get(self._some_broker())
        if process is None or not process.is_alive:
            return False
        self._world.pause(process, self._pause_us())
        return True

    def _pause_broker_between_effects(self) -> bool:
        process = self._world.brokers.get(self._some_broker())
        if process is None or not process.is_alive:
            return False
        process.pause_fuse = (self._world.random.randrange(1, 40), self._pause_us())
        return True

    def _pause_store(self) -> bool:
        process = self._world.stores.get(self._some_broker())
        if process is None or not process.is_alive:
            return False
        self._world.pause(process, self._pause_us())
        return True

    def _pause_machine(self) -> None:
        world, broker, duration_us = self._world, self._some_broker(), self._pause_us()
        for process in (world.brokers.get(broker), world.stores.get(broker)):
            if process is not None and process.is_alive:
                world.pause(process, duration_us)

    # --- network --------------------------------------------------------------------------------------------------

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        network = self._world.network
        duration_us = (
            self._later(100 * MS, 1 * SECOND)
            if self._world.random.random() < 0.4
            else self._later(1 * SECOND, 10 * SECOND)
        )
        self._world.trace(
            None, f"cut for {duration_us / 1e6:.3f} s: {', '.join(f'{a}->{b}' for a, b in pairs)}"
        )
        for source, target in pairs:
            network.block(source, target)
            self._world.loop.after(duration_us, network.unblock, source, target)

    def _hosts(self) -> list[str]:
        return [self._world.host_of(broker) for broker in self._world.broker_ids]

    def _partition(self) -> None:
        one, other = self._world.random.sample(self._hosts(), 2)
        self._cut([(one, other), (other, one)])

    def _one_way_partition(self) -> None:
        hosts = [*self._hosts(), "etcd"]
        one, other = self._world.random.sample(hosts, 2)
        self._cut([(one, other)])

    def _isolate_machine(self) -> None:
        one = self._world.host_of(self._some_broker())
        others = [host for host in [*self._hosts(), "etcd"] if host != one]
        if self._world.random.random() < 0.5:
            others += self._world.client_hosts()
        self._cut([pair for other in others for pair in ((one, other), (other, one))])

    def _cut_off_from_etcd(self) -> None:
        one = self._world.host_of(self._some_broker())
        pairs = [(one, "etcd"), ("etcd", one)]
        self._cut(pairs if self._world.random.random() < 0.6 else [self._world.random.choice(pairs)])

    def _cut_clients_off(self) -> None:
        one = self._world.host_of(self._some_broker())
        self._cut([pair for client in self._world.client_hosts() for pair in ((one, client), (client, one))])

    def _refuse_connections(self) -> None:
        """The port refuses although the process lives (history 10a); open streams to it end too."""
        world, broker = self._world, self._some_broker()
        address = f"broker:{broker}"
        world.network.refusing.add(address)
        world.loop.after(self._later(500 * MS, 8 * SECOND), world.network.refusing.discard, address)
        host = world.host_of(broker)
        for side in world.network.open_streams:
            if not side.is_closed and side.peer.host == host and side.host != host:
                world.network.reset(side)

    def _reset_streams(self) -> bool:
        network = self._world.network
        open_streams = [side for side in network.open_streams if not side.is_closed]
        if not open_streams:
            return False
        for side in self._world.random.sample(open_streams, min(len(open_streams), self._later(1, 6))):
            network.reset(side)
        return True

    def _slow_link(self) -> None:
        one, other = self._world.random.sample([*self._hosts(), "etcd"], 2)
        factor = self._world.random.choice((10.0, 100.0, 300.0))
        network = self._world.network
        network.slowness[one, other] = network.slowness[other, one] = factor
        duration_us = self._later(1 * SECOND, 8 * SECOND)
        self._world.loop.after(duration_us, network.slowness.pop, (one, other), None)
        self._world.loop.after(duration_us, network.slowness.pop, (other, one), None)

    # --- etcd and clocks ------------------------------------------------------------------------------------------

    def _etcd_restart(self) -> bool:
        etcd = self._world.etcd
        if not etcd.is_up:
            return False
        etcd.stop()
        self._world.loop.after(self._later(100 * MS, 6 * SECOND), self._start_etcd)
        return True

    def _start_etcd(self) -> None:
        if not self._world.etcd.is_up:
            self._world.etcd.start()

    def _etcd_answers_lost(self) -> None:
        options = self._world.etcd.options
        options.answer_lost, options.answer_slow, options.executed_late = 0.2, 0.2, 0.3
        self._world.loop.after(self._later(1 * SECOND, 6 * SECOND), self._etcd_answers_again)

    def _etcd_answers_again(self) -> None:
        options = self._world.etcd.options
        options.answer_lost = options.answer_slow = options.executed_late = 0.0

    def _wall_clock_jump(self) -> None:
        host = self._world.host_of(self._some_broker())
        self._world.clocks[host].wall_offset_ms += self._world.random.choice(
            (-3_600_000, -5_000, -100, 100, 5_000)
        )

    # --- disks ----------------------------------------------------------------------------------------------------

    def _disk_failure(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_faults.start_failing(broker)
        world.loop.after(self._later(50 * MS, 3 * SECOND), world.disk_faults.repair, broker)

    def _disk_full(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_faults.fill_up(broker)
        world.loop.after(self._later(500 * MS, 5 * SECOND), world.disk_faults.repair, broker)

    def _disk_reserve_low(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_faults.run_low(broker)
        world.loop.after(self._later(500 * MS, 5 * SECOND), world.disk_faults.repair, broker)

    def _disk_slow(self) -> None:
        world, broker = self._world, self._some_broker()
        world.disk_slowness[broker] = world.random.choice((10, 100, 1000))
        world.loop.after(self._later(500 * MS, 5 * SECOND), world.disk_slowness.pop, broker, None)

    def _disk_lost(self) -> bool:
        """A machine comes back with an empty disk. Once in a run, and only where all sets have other disks in sync."""
        world, broker = self._world, self._some_broker()
        if self._disks_lost or not self.can_lose_disk(broker):
            return False
        self._disks_lost += 1
        world.power_loss(broker)
        world.lose_disk(broker)
        world.loop.after(self._down_us(), world.start_machine, broker)
        return True

    def _restart_with_a_lost_disk(self) -> bool:
        """Everybody loses power, and one machine comes back with an empty disk, perhaps as the first (history 24)."""
        world, broker = self._world, self._some_broker()
        if self._disks_lost or not self.can_lose_disk(broker):
            return False
        self._disks_lost += 1
        for other in world.broker_ids:
            world.power_loss(other)
            world.loop.after(self._later(0, 4 * SECOND), world.start_machine, other)
        world.lose_disk(broker)
        return True

    def can_lose_disk(self, broker: BrokerId) -> bool:
        """Whether every set would still have a disk in sync, whatever swap of etcd's is under way."""
        for set_map in self._world.set_maps():
            others = [member for member in set_map.in_sync if member.broker != broker]
            if not others or not _is_calm(set_map):
                return False
        return True


def _is_calm(set_map: SetMap) -> bool:
    """With one member besides the lost one left, a removal under way could leave nobody: ask for the whole set."""
    return len(set_map.in_sync) == len(set_map.brokers)
