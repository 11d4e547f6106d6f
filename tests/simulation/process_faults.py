"""Kinds of faults of processes and machines: killed, without power, stopped."""

from lockstep.core.inputs import HandOver
from tests.simulation.fault_tools import FaultTools
from tests.simulation.loop import MS, SECOND


class ProcessFaults(FaultTools):
    """Each method is one kind, named as in `options.FAULT_KINDS`; False: it could not be done."""

    def _kill_broker(self) -> None:
        world, broker = self._world, self._some_broker()
        world.crash_broker(broker, "killed")
        world.loop.after(self._down_us(), world.start_machine, broker)

    def _hand_over(self) -> bool:
        """Some set's primary gives it to another member that is in sync."""
        world = self._world
        entry = world.random.choice(world.set_maps())
        others = [member.broker for member in entry.in_sync if member.broker != entry.primary]
        process = world.brokers.get(entry.primary) if entry.primary else None
        if process is None or not process.is_alive or not others:
            return False
        process.feed(HandOver(entry.set_name, world.random.choice(others)))
        return True

    def _hand_over_to_one_that_dies(self) -> bool:
        """And the successor dies within a few effects, perhaps as it begins its epoch."""
        world = self._world
        entry = world.random.choice(world.set_maps())
        others = [member.broker for member in entry.in_sync if member.broker != entry.primary]
        primary = world.brokers.get(entry.primary) if entry.primary else None
        if primary is None or not primary.is_alive or not others:
            return False
        successor = world.random.choice(others)
        process = world.brokers[successor]
        if process.is_alive:
            process.fuse = world.random.randrange(1, 40)
            world.loop.after(3 * SECOND, world.start_machine, successor)
        primary.feed(HandOver(entry.set_name, successor))
        return True

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
