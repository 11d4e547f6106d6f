"""Kinds of faults of the network: cut, one way or both, refused, reset, slow."""

from tests.simulation.fault_tools import FaultTools
from tests.simulation.loop import MS, SECOND


class NetworkFaults(FaultTools):
    """Each method is one kind, named as in `options.FAULT_KINDS`; False: it could not be done."""

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
