"""Replicas take frames and acknowledgements of any epoch for their own (R2)."""

from dataclasses import replace

from lockstep.core.clock import Now
from lockstep.core.inputs import AnyInput, BackupSaid, PrimarySaid
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class EpochBlind(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, PrimarySaid) and self.backup is not None:
            message = replace(given.message, epoch=self.backup.epoch)
            return replace(given, stream=self.backup.stream, message=message)
        if isinstance(given, BackupSaid) and self.primary is not None:
            return replace(given, message=replace(given.message, epoch=self.primary.epoch))
        return given


MUTATION = Mutation(
    "R2: a replica refuses lower epochs than it has seen",
    lambda: Parts(make_replica=EpochBlind),
)
