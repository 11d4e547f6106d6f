"""The coordinators of a world: their life and death, what they have reported, and whether anything is left for them to do.

Law: a world without coordinators has none, and draws nothing for them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.core.decision_log import DecisionKeys
from services.coordinator.core.messages import Effect
from tests.simulation.coordinator import Coordinator
from tests.simulation.distributed import DistributedTransaction
from tests.simulation.loop import MS, SECOND
from tests.simulation.quiet_moments import QuietMoments

if TYPE_CHECKING:
    from tests.simulation.world import World


class Coordinators:
    """Lives as long as its world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        coordination = world.options.coordination
        count = coordination.coordinators if coordination is not None else 0
        self.places = [f"k{number}" for number in range(1, count + 1)]
        self.running: dict[str, Coordinator] = {}
        """By place; some of them are dead."""
        self.departed: set[str] = set()
        """Names of the dead: what they asked for may never end for them."""
        self.begun: list[DistributedTransaction] = []
        """All that clients have begun."""
        self.hazards: list[str] = []
        self.before_effect: Callable[[Coordinator, Effect], None] | None = None
        """A scenario's triggers: called before a coordinator performs an effect; may stop or crash it there."""
        self._lives = 0
        self._moments = QuietMoments(world, self.running)

    def start(self, place: str) -> None:
        """Start it, if it does not run."""
        process = self.running.get(place)
        if process is None or not process.is_alive:
            self._lives += 1
            self.running[place] = Coordinator(self._world, place, self._lives)

    def start_all(self) -> None:
        for place in self.places:
            self.start(place)

    def crash(self, place: str, why: str) -> None:
        """The process is gone."""
        process = self.running.get(place)
        if process is not None and process.is_alive:
            self._world.branches.reach(f"coordinator crash: {why}")
            self._world.trace(None, f"{process.name}: {why}")
            self.departed.add(process.name)
            process.die()

    def crash_at_step(self, place: str) -> None:
        """The process is gone, at a step of its protocol; now and then others go with it: branches wait for them."""
        world = self._world
        self.crash(place, "at a step")
        if world.random.random() < 0.5:
            for other in self.places:
                self.crash(other, "with another")
        if world.random.random() < 0.5 and (primaries := world.primaries()):
            broker = world.random.choice(primaries)
            world.crash_broker(broker, "killed")
            world.loop.after(world.random.randrange(10 * MS, 8 * SECOND), world.start_machine, broker)
        for dead in self.places:
            world.loop.after(world.random.randrange(10 * MS, 9 * SECOND), self.start, dead)

    def alive(self) -> list[Coordinator]:
        return [process for process in self.running.values() if process.is_alive]

    def at_work(self) -> list[str]:
        """What is not ended yet; empty when there is nothing left for a coordinator to do, or there is none to do it."""
        if not self.places:
            return []
        keys = DecisionKeys(self._world.keys.cluster)
        found = [
            f"the decision log still has {key}"
            for prefix in (keys.all_participants, keys.all_decisions)
            for key, _ in self._world.etcd.prefix(prefix)
        ]
        for process in self.alive():
            if process.core.transactions:
                found.append(f"{process.name} has {len(process.core.transactions)} transactions in hand")
        return found
