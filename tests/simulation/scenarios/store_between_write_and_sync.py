"""A commit, and power is lost between a store's write and its sync: of the primary, of a backup, or of all machines (P1, P4).

The frame with `prepare` is in the page cache of the machines that lose power, whole or torn, and durable on none of them. Whoever
is left has it or has it not; no client has heard of it if no disk has it, and what the client hears at last is what the log says.
"""

from lockstep.core.ids import BrokerId, SetName
from services.store.core.disk import AnyStep, DiskError, DiskProblem, SyncSegment
from tests.simulation.staging.stage import Stage

CASES = ("b1", "b2", "b1 b2", "b1 b2 b3")


def play(stage: Stage, case: str) -> None:
    victims = [BrokerId(name) for name in case.split()]
    stage.start()
    client, reader = stage.client("c1"), stage.client("c2")
    client.declare("a", "b")
    key = client.transaction("a", "b")
    for victim in victims:
        _lose_power_at_next_sync(stage, victim)
    commit = client.commit(key)
    stage.until(lambda: all(not stage.world.stores[victim].is_alive for victim in victims))
    stage.run(0.5)
    stage.expect(not commit.is_done or len(victims) < 3, "nothing is acknowledged that no disk has")
    stage.revive(*victims)
    stage.until(lambda: commit.is_done, 30)
    found = len(reader.browse("a")) + len(reader.browse("b"))
    stage.expect(found in (0, 2), "all or nothing")


def _lose_power_at_next_sync(stage: Stage, victim: BrokerId) -> None:
    disk = stage.world.disks[victim]

    def fault(set_name: SetName, step: AnyStep) -> None:
        if isinstance(step, SyncSegment):
            disk.fault = None
            stage.power_loss(victim)
            raise DiskError(DiskProblem.FAILED, "no power", step)

    disk.fault = fault
