"""Kinds of faults of coordinators: killed, stopped, cut off from etcd or from brokers."""

from services.coordinator.core.steps import Step
from tests.simulation.coordinator import Coordinator
from tests.simulation.loop import MS, SECOND
from tests.simulation.network_faults import NetworkFaults

_STEPS = (
    Step.COMMIT_ASKED,
    Step.PARTICIPANTS_WRITTEN,
    Step.VOTE_RECEIVED,
    Step.VOTES_COMPLETE,
    Step.DECISION_WRITTEN,
    Step.BRANCH_COMPLETED,
    Step.ALL_COMPLETED,
    Step.LOG_DELETED,
    Step.ONE_PHASE_COMPLETED,
)


class CoordinatorFaults(NetworkFaults):
    """Each method is one kind, named as in `coordinated.COORDINATOR_FAULT_KINDS`; False: it could not be done."""

    def _some_coordinator(self) -> Coordinator | None:
        alive = self._world.coordinators.alive()
        return self._world.random.choice(alive) if alive else None

    def _kill_coordinator(self) -> bool:
        process = self._some_coordinator()
        if process is None:
            return False
        self._world.coordinators.crash(process.place, "killed")
        self._world.loop.after(self._down_us(), self._world.coordinators.start, process.place)
        return True

    def _kill_coordinator_between_effects(self) -> bool:
        process = self._some_coordinator()
        if process is None:
            return False
        process.fuse = self._world.random.randrange(1, 30)
        self._world.loop.after(3 * SECOND, self._world.coordinators.start, process.place)
        return True

    def _kill_coordinator_at_a_step(self) -> None:
        """All of them are to die at it: the first one that comes there does."""
        step = self._world.random.choice(_STEPS)
        for process in self._world.coordinators.alive():
            process.step_fuse = step

    def _kill_all_coordinators(self) -> None:
        for place in self._world.coordinators.places:
            self._world.coordinators.crash(place, "killed")
            self._world.loop.after(self._down_us(), self._world.coordinators.start, place)

    def _pause_coordinator(self) -> bool:
        process = self._some_coordinator()
        if process is None:
            return False
        short = self._world.random.random() < 0.3
        self._world.pause(
            process, self._later(50 * MS, 900 * MS) if short else self._later(2 * SECOND, 6 * SECOND)
        )
        return True

    def _cut_coordinator_off_from_etcd(self) -> bool:
        process = self._some_coordinator()
        if process is None:
            return False
        pairs = [(process.host, "etcd"), ("etcd", process.host)]
        self._cut(pairs if self._world.random.random() < 0.5 else [self._world.random.choice(pairs)])
        return True

    def _cut_coordinator_off_from_brokers(self) -> bool:
        process = self._some_coordinator()
        if process is None:
            return False
        hosts = self._hosts()
        cut = hosts if self._world.random.random() < 0.4 else [self._world.random.choice(hosts)]
        self._cut([pair for host in cut for pair in ((process.host, host), (host, process.host))])
        return True
