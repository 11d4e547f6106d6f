"""Rules of promotion switched off: membership of the in-sync set, disk, incarnation, who comes first (R1, R5, R9, R12)."""

from dataclasses import replace

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.inputs import AnyInput, MapSeen
from tests.simulation.mutations import Mutation
from tests.simulation.mutations.replicas import HookedReplica
from tests.simulation.options import Options
from tests.simulation.parts import Parts


class DoctoredMap(HookedReplica):
    """Is told another in-sync set than etcd's while somebody else, or nobody, leads."""

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        backup = self.backup
        if not isinstance(given, MapSeen) or given.set_map is None or not given.set_map.epoch:
            return given
        if (
            self.primary is not None
            or given.set_map.primary == self.broker
            or backup is None
            or backup.disk is None
        ):
            return given
        own = Member(self.broker, backup.disk, self.incarnation)
        return replace(given, set_map=self.doctored(given.set_map, own))

    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        raise NotImplementedError


class OutsideTheSet(DoctoredMap):
    """A learner takes itself for a member of the in-sync set."""

    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        if set_map.member(self.broker) is not None:
            return set_map
        return replace(set_map, in_sync=tuple(sorted((*set_map.in_sync, own))))


class AnyDisk(DoctoredMap):
    """A member with another disk than the map names, an empty one perhaps, takes itself for the member."""

    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        named = set_map.member(self.broker)
        if named is None:
            return set_map
        others = [member for member in set_map.in_sync if member.broker != self.broker]
        return replace(set_map, in_sync=tuple(sorted((*others, replace(named, disk=own.disk)))))


class AnyIncarnation(DoctoredMap):
    """A restarted member takes its memory for whole: its epoch record says nothing of a restart (R12)."""

    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        named = set_map.member(self.broker)
        if named is None or named.disk != own.disk:
            return set_map
        others = [member for member in set_map.in_sync if member.broker != self.broker]
        return replace(set_map, in_sync=tuple(sorted((*others, own))))

    def handled(self) -> None:
        if self.backup is not None and self.backup.copy is not None and self.backup._joining is None:
            self.backup.is_memory_whole = True


class FirstUpWins(DoctoredMap):
    """Whoever is there first makes the set anew from its own disk, whoever was in it."""

    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        return replace(set_map, in_sync=(own,))


def _restarts(options: Options) -> None:
    options.faults = ("full restart", "power loss of all", "kill broker", "rolling kill", "disk lost")
    options.fault_gap_us = 2_000_000


def _lost_disks(options: Options) -> None:
    options.faults = ("restart with a lost disk", "slow link")


def _shrinking(options: Options) -> None:
    options.faults = (
        "kill broker",
        "rolling kill",
        "isolate machine",
        "partition",
        "power loss",
        "full restart",
    )
    options.fault_gap_us = 1_500_000


MUTATIONS = (
    Mutation(
        "promotion outside the in-sync set",
        "R5: only a broker whose disk an in-sync entry names",
        lambda: Parts(make_replica=OutsideTheSet),
        _shrinking,
    ),
    Mutation(
        "any disk may stand",
        "R1, R5: a directory with another disk than the map names is a learner (history 24)",
        lambda: Parts(make_replica=AnyDisk),
        _lost_disks,
    ),
    Mutation(
        "incarnation not checked",
        "R12: a restarted broker lacks the non-durable state",
        lambda: Parts(make_replica=AnyIncarnation),
        _restarts,
    ),
    Mutation(
        "first up wins",
        "R9: a set starts with a disk of its last in-sync set, and nobody else is cleared",
        lambda: Parts(make_replica=FirstUpWins),
        _shrinking,
    ),
)
