"""Replicas take frames and acknowledgements of any epoch for their own, and a store what any process sends (R2, history 23)."""

from msgspec.structs import replace

from lockstep.core.clock import Now
from lockstep.core.ids import Epoch, Incarnation, SetName
from lockstep.core.inputs import AnyInput, BackupSaid, PrimarySaid
from lockstep.core.store_protocol import OpenSet
from services.store.core.limits import StoreLimits
from services.store.core.messages import Reply, Requested, StoreEffect, StoreInput
from services.store.core.store_core import StoreCore
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


class AnyWriterStore(StoreCore):
    def __init__(self, limits: StoreLimits | None = None) -> None:
        super().__init__(limits)
        self._openers: dict[SetName, tuple[int, Epoch, Incarnation]] = {}
        self._named: dict[int, tuple[Epoch, Incarnation]] = {}

    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        if isinstance(event, Requested):
            request = event.request
            self._named[event.stream] = (request.epoch, request.incarnation)
            if isinstance(request, OpenSet):
                known = self._openers.get(request.set_name)
                epoch = max(request.epoch, known[1]) if known is not None else request.epoch
                self._openers[request.set_name] = (event.stream, epoch, request.incarnation)
            opener = self._openers.get(request.set_name)
            if opener is not None:
                event = Requested(opener[0], replace(request, epoch=opener[1], incarnation=opener[2]))
        return [self._renamed(effect) for effect in super().handle(event, now)]

    def _renamed(self, effect: StoreEffect) -> StoreEffect:
        if isinstance(effect, Reply) and effect.stream in self._named:
            epoch, incarnation = self._named[effect.stream]
            return replace(effect, answer=replace(effect.answer, epoch=epoch, incarnation=incarnation))
        return effect


class EpochBlind(WeakReplica):
    def heard(self, given: AnyInput, now: Now) -> AnyInput:
        if isinstance(given, PrimarySaid) and self.backup is not None:
            message = replace(given.message, epoch=self.backup.epoch)
            return replace(given, stream=self.backup.stream, message=message)
        if isinstance(given, BackupSaid) and self.primary is not None:
            return replace(given, message=replace(given.message, epoch=self.primary.epoch))
        return given


MUTATION = Mutation(
    "R2: a replica refuses lower epochs than it has seen; the last opener is a store's only writer",
    lambda: Parts(make_replica=EpochBlind, make_store_core=AnyWriterStore),
    ("late_cut",),
)
