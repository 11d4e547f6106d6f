"""`lockstep cluster rebuild-map --rebuild` on a world.

Law: as the real command (`services/broker/map_rebuild.py`): every disk is asked, and again behind its fence; entries come last,
by compare with what was read. What cannot be done now changes nothing, and is tried again by whoever asked for it.
"""

from collections.abc import Collection, Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lockstep.core.cluster_map import SetMap
from lockstep.core.ids import BrokerId, Epoch, Incarnation, SetName
from lockstep.core.lineage import Lineage
from lockstep.core.stamps import Stamps
from services.broker.core.map_rebuilding import (
    DiskFound,
    EtcdKnows,
    SetPlan,
    Verdict,
    directory_of,
    plan_set,
    with_all_seen,
)
from services.store.core.requests import FenceSet, SetSurveyed, SurveySet
from tests.simulation.loop import SECOND

if TYPE_CHECKING:
    from tests.simulation.etcd import Etcd
    from tests.simulation.world import World

SURVEY_US = 1 * SECOND
LOOKS_MAX = 3
_WHO = Incarnation("operator")
_HOST = "operators"
_Surveys = dict[tuple[BrokerId, SetName], SetSurveyed]


class _Found(NamedTuple):
    """What etcd knows, what the disks say, and what follows from that."""

    known: dict[SetName, EtcdKnows]
    surveys: _Surveys
    plans: list[SetPlan]


class MapRebuild:
    """Lives as long as who uses it."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.generations: list[str] = []
        """Those that it has begun."""
        self.to_stop: list[BrokerId] = []
        """Brokers that lead by an entry which etcd lacks, as was found last: nothing can be done before they are stopped."""

    def attempt(self, generation: str, without: Collection[BrokerId] = ()) -> Generator[int, None, None]:
        """Yields microseconds to wait; afterwards the new generation is begun, or everything is as it was. `without`: whose disks
        are given up.
        """
        world, self.to_stop = self.world, []
        found = yield from self._look(without)
        if found is not None and any(plan.is_lead_doubtful for plan in found.plans):
            yield (world.lease_settings.lease_seconds + 1) * SECOND
            found = yield from self._look(without)
        if found is None:
            return
        known, surveys, plans = found
        for plan in plans:
            world.trace(plan.set_name, f"map rebuilding: {plan.verdict.value} {plan.problem}")
        doubtful = [plan for plan in plans if plan.problem and plan.is_lead_doubtful and not plan.unheard]
        entries = [known[plan.set_name].set_map for plan in doubtful]
        self.to_stop = [entry.primary for entry in entries if entry is not None]
        if any(plan.verdict is Verdict.STUCK for plan in plans):
            return
        rebuilt = [plan for plan in plans if plan.entry is not None]
        if not rebuilt and not any(etcd.is_set_back for etcd in known.values()):
            return
        again: _Surveys = {}
        holders = sorted({disk.broker for plan in rebuilt for disk in plan.disks})
        fences = {plan.set_name: plan.entry.epoch for plan in rebuilt if plan.entry is not None}
        self._survey(holders, list(fences), fences, again)
        yield SURVEY_US
        if not world.etcd.is_up or any(
            self._has_changed(plan.set_name, known[plan.set_name]) for plan in rebuilt
        ):
            return
        for plan in rebuilt:
            for disk in plan.disks:
                now = again.get((disk.broker, plan.set_name))
                if now is None or _place(_disk(disk.broker, now)) != _place(disk):
                    return
        self._restore_names(plans, surveys)
        world.branches.reach("map rebuilt" if rebuilt else "map rebuilt where all sets are led")
        self._write(rebuilt, generation)

    def _look(self, without: Collection[BrokerId]) -> Generator[int, None, _Found | None]:
        """None: etcd is out of reach, or does not stay as it is."""
        world, plans = self.world, list[SetPlan]()
        for _ in range(LOOKS_MAX):
            if not world.etcd.is_up:
                return None
            before = {set_name: _etcd_knows(world, set_name) for set_name in world.set_names}
            running = [broker for broker, process in sorted(world.brokers.items()) if process.is_alive]
            surveys: _Surveys = {}
            self._survey(running, world.set_names, {}, surveys)
            yield SURVEY_US
            known = {set_name: _etcd_knows(world, set_name) for set_name in world.set_names}
            if world.etcd.is_up and all(known[name].goes_on_from(before[name]) for name in known):
                break
        else:
            return None
        # A broker answers for all of its disk, or not at all.
        reached = [broker for broker in running if all((broker, name) in surveys for name in known)]
        found = {
            set_name: [self._found(broker, set_name, surveys[broker, set_name]) for broker in reached]
            for set_name in world.set_names
        }
        etcd = known[world.set_names[0]]
        found = with_all_seen(found, etcd.lineage, etcd.etcd_revision, etcd.stamps)
        for set_name in world.set_names:
            looked_at = partial(
                plan_set, set_name, known[set_name].in_sight_of(found), found[set_name], reached
            )
            plan = looked_at(without, _WHO)
            if plan is not None and plan.unheard and set(plan.unheard) <= set(reached):
                # What was in their machines is lost for good: they are here with other disks.
                plan = looked_at((*without, *plan.unheard), _WHO)
            if plan is not None:
                plans.append(plan)
        return _Found(known, surveys, plans)

    def _found(self, broker: BrokerId, set_name: SetName, one: SetSurveyed) -> DiskFound:
        """With what the broker adds, which has the disk asked."""
        replica = self.world.brokers[broker].replicas.get(set_name)
        found = replica.damage_found(one.status.disk) if replica is not None else ""
        return replace(_disk(broker, one), found_by_broker=found)

    def _has_changed(self, set_name: SetName, known: EtcdKnows) -> bool:
        now = _etcd_knows(self.world, set_name)
        return now.is_led or (now.lineage, now.revision) != (known.lineage, known.revision)

    def _survey(
        self,
        brokers: Collection[BrokerId],
        set_names: Collection[SetName],
        fences: dict[SetName, Epoch],
        into: _Surveys,
    ) -> None:
        """What the disks say, soon; those of `fences` are fenced before."""
        for broker in brokers:
            for set_name in set_names:
                side = self.world.network.connect(_HOST, f"store:{broker}")

                def take(answer: object, at: tuple[BrokerId, SetName] = (broker, set_name)) -> None:
                    if isinstance(answer, SetSurveyed):
                        into[at] = answer

                side.on_message = take
                if set_name in fences:
                    side.send(FenceSet(set_name, fences[set_name]))
                side.send(SurveySet(set_name, Epoch(0), True))

    def _restore_names(self, plans: Collection[SetPlan], surveys: _Surveys) -> None:
        keys, names = self.world.keys, {}
        for plan in plans:
            disks = [disk for disk in plan.disks if not disk.trouble]
            named = [disk for disk in disks if plan.entry is not None and plan.entry.names_disk(disk.disk)]
            best = max(named or disks, key=lambda disk: (disk.last_epoch, disk.log_end), default=None)
            if best is not None:
                survey = surveys[best.broker, plan.set_name]
                names[plan.set_name] = [("queue", name) for name in survey.queues]
                names[plan.set_name] += [("exchange", name) for name in survey.exchanges]
        owners, _ = directory_of(names)

        def put(etcd: "Etcd") -> None:
            for name, owner in owners.items():
                if etcd.get(keys.directory(*name)) is None:
                    etcd.put(keys.directory(*name), owner.encode())

        self.world.etcd.execute(put)

    def _write(self, rebuilt: Collection[SetPlan], generation: str) -> None:
        keys = self.world.keys

        def write(etcd: "Etcd") -> None:
            etcd.put(keys.generation, generation.encode())
            etcd.delete(keys.lineage)
            etcd.delete(keys.set_back)
            etcd.delete(keys.stamps)
            for plan in rebuilt:
                assert plan.entry is not None, "a set that is rebuilt has an entry"
                etcd.put(keys.set_map(plan.set_name), plan.entry.encode())

        self.world.etcd.execute(write)
        self.generations.append(generation)


def _etcd_knows(world: "World", set_name: SetName) -> EtcdKnows:
    """What etcd says of the set now."""
    etcd, keys = world.etcd, world.keys
    entry, generation = etcd.get(keys.set_map(set_name)), etcd.get(keys.generation)
    lineage, stamps = etcd.get(keys.lineage), etcd.get(keys.stamps)
    return EtcdKnows(
        SetMap.decode(entry.value) if entry else None,
        entry.mod_revision if entry else 0,
        etcd.get(keys.set_lease(set_name)) is not None,
        Lineage.read(generation.value.decode() if generation else "", lineage.value if lineage else b""),
        etcd.revision,
        Stamps.decode(stamps.value if stamps else b""),
        etcd.get(keys.set_back) is not None,
    )


def _disk(broker: BrokerId, one: SetSurveyed) -> DiskFound:
    status = one.status
    return DiskFound(
        broker,
        status.disk,
        one.last_epoch,
        status.log_end,
        status.highest_epoch,
        one.map_bytes,
        one.map_revision,
        one.generation,
        status.damage,
        one.etcd_revision,
        one.stamp,
        one.epochs,
        one.reigns,
        status.commit_index,
        status.snapshot_index,
    )


def _place(disk: DiskFound) -> tuple[object, ...]:
    return disk.disk, disk.last_epoch, disk.log_end
