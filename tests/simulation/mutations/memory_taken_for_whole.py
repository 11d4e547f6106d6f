"""A restarted member takes its memory for whole, and its epoch record says nothing of a restart (R12, history 23)."""

from dataclasses import replace

from lockstep.core.cluster_map import Member, SetMap
from lockstep.core.set_state import SetState
from tests.simulation.doctored_map import DoctoredMap
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts


class AnyIncarnation(DoctoredMap):
    def doctored(self, set_map: SetMap, own: Member) -> SetMap:
        named = set_map.member(self.broker)
        if named is None or named.disk != own.disk:
            return set_map
        others = [member for member in set_map.in_sync if member.broker != self.broker]
        return replace(set_map, in_sync=tuple(sorted((*others, own))))

    def weaken_state(self, state: SetState) -> None:
        backup = self.backup
        if backup is not None and backup.copy is not None and backup._joining is None:
            backup.is_memory_whole = True


MUTATION = Mutation(
    "R12: a restarted broker lacks the non-durable state, and is not in sync until it has got it",
    lambda: Parts(make_replica=AnyIncarnation),
    ("restarted_backup_promoted",),
)
