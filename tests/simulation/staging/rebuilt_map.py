"""`lockstep cluster rebuild-map --rebuild` for a script: the same plans, from what the replicas know of their disks."""

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import Epoch, Incarnation, SetName
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import Stamps
from services.broker.core.map_rebuilding import DiskFound, EtcdKnows, SetPlan, Verdict, plan_set
from tests.simulation.etcd import Etcd
from tests.simulation.staging.stage import Stage


def rebuild_map(stage: Stage, generation: str) -> dict[SetName, Verdict]:
    """What became of each set; nothing is written when one is stuck."""
    world = stage.world
    plans = {set_name: _plan(stage, set_name) for set_name in world.set_names}
    verdicts = {set_name: plan.verdict if plan else Verdict.CURRENT for set_name, plan in plans.items()}
    if Verdict.STUCK in verdicts.values():
        return verdicts

    def write(etcd: Etcd) -> None:
        etcd.put(world.keys.generation, generation.encode())
        etcd.delete(world.keys.lineage)
        etcd.delete(world.keys.set_back)
        etcd.delete(world.keys.stamps)
        for set_name, plan in plans.items():
            if plan is not None and plan.entry is not None:
                etcd.put(world.keys.set_map(set_name), plan.entry.encode())

    world.etcd.execute(write)
    return verdicts


def _plan(stage: Stage, set_name: SetName) -> SetPlan | None:
    world, etcd = stage.world, stage.world.etcd
    entry, generation = etcd.get(world.keys.set_map(set_name)), etcd.get(world.keys.generation)
    lineage, stamps = etcd.get(world.keys.lineage), etcd.get(world.keys.stamps)
    known = EtcdKnows(
        SetMap.decode(entry.value) if entry else None,
        entry.mod_revision if entry else 0,
        etcd.get(world.keys.set_lease(set_name)) is not None,
        Lineage.read(generation.value.decode() if generation else "", lineage.value if lineage else b""),
        etcd.revision,
        Stamps.decode(stamps.value if stamps else b""),
        etcd.get(world.keys.set_back) is not None,
    )
    running = [broker for broker, process in sorted(world.brokers.items()) if process.is_alive]
    found = []
    for broker in running:
        backup = world.brokers[broker].replicas[set_name].backup
        opened = backup.opened if backup is not None else None
        if opened is not None:
            last = opened.epochs[-1][0] if opened.epochs else Epoch(0)
            told = opened.map_bytes, opened.map_revision, opened.generation, opened.damage
            found.append(
                DiskFound(
                    broker,
                    opened.disk,
                    last,
                    opened.log_end,
                    opened.highest_epoch,
                    *told,
                    opened.etcd_revision,
                    opened.stamp,
                )
            )
    return plan_set(set_name, known, found, running, (), Incarnation("operator"))
