"""A restarted primary goes on in the epoch that its map entry names, as if it had begun it (R5, history 1)."""

from dataclasses import replace

from lockstep.core.clock import Now
from lockstep.core.cluster_map import Member
from lockstep.core.inputs import AnyInput
from services.broker.core.promotion import Candidacy
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class Continuing(WeakReplica):
    def _decide(self, given: AnyInput, now: Now) -> None:
        super()._decide(given, now)
        set_map, backup = self.set_map, self.backup
        if self.primary is not None or set_map is None or set_map.primary != self.broker or backup is None:
            return
        if not backup.is_loaded or backup.opened is None or not set_map.names_disk(backup.opened.disk):
            return
        own = Member(self.broker, backup.opened.disk, self.incarnation)
        others = [member for member in set_map.in_sync if member.broker != self.broker]
        target = replace(set_map, primary_incarnation=self.incarnation, in_sync=tuple(sorted((*others, own))))
        self._lead(Candidacy(target, (), True), now)


MUTATION = Mutation(
    "R5: no process continues an epoch that it did not begin",
    lambda: Parts(make_replica=Continuing),
    ("history_01_same_epoch",),
)
