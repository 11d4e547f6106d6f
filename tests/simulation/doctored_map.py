"""Replicas that believe in another in-sync set than etcd's, for mutations of the rules of promotion."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.inputs import AnyInput, MapSeen
from tests.simulation.weak_replica import WeakReplica


class DoctoredMap(WeakReplica):
    """Is told another in-sync set while somebody else leads, or nobody."""

    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, MapSeen):
            self._true_map = given
            return self._doctored_input(given)
        seen: MapSeen | None = self.__dict__.get("_true_map")
        if seen is not None and seen.set_map is not None and self.primary is None:
            # The own disk may be known by now.
            doctored = self._doctored_input(seen)
            self._facts.set_map = doctored.set_map
        return given

    def _doctored_input(self, given: MapSeen) -> MapSeen:
        backup, set_map = self.backup, given.set_map
        if set_map is None or not set_map.epoch or self.primary is not None or set_map.primary == self.broker:
            return given
        if backup is None or backup.disk is None or self._candidate.asked is not None:
            return given
        own = Member(self.broker, backup.disk, self.incarnation)
        return replace(given, set_map=self.doctored(set_map, own))

    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        """The map that this replica believes in; `own`: itself as a member would be named."""
        raise NotImplementedError
