"""Rules of disks switched off: the sync before the acknowledgement, the writer's incarnation, the torn tail's check."""

from dataclasses import replace

from lockstep.core.ids import Epoch, Incarnation, SetName
from lockstep.core.store_protocol import OpenSet
from services.store.core.limits import StoreLimits
from services.store.core.messages import Reply, Requested, StoreEffect, StoreInput
from services.store.core.store_core import StoreCore
from tests.simulation.disk import VirtualDisk
from tests.simulation.mutations import Mutation
from tests.simulation.options import Options
from tests.simulation.parts import Parts


def lying_disk(name: str) -> VirtualDisk:
    """A disk whose syncs do nothing."""
    disk = VirtualDisk(name)
    disk.is_syncing = False
    return disk


class AnyWriterStore(StoreCore):
    """Takes every request for one of the last opener: neither epoch nor incarnation is checked (R2, history 23)."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        super().__init__(limits)
        self._openers: dict[SetName, tuple[int, Epoch, Incarnation]] = {}
        self._named: dict[int, tuple[Epoch, Incarnation]] = {}

    def handle(self, event: StoreInput, now: float = 0.0) -> list[StoreEffect]:
        if isinstance(event, Requested):
            request = event.request
            self._named[event.stream] = (request.epoch, request.incarnation)
            if isinstance(request, OpenSet):
                highest = max(request.epoch, self._openers.get(request.set_name, (0, Epoch(0), ""))[1])
                request = replace(request, epoch=highest)
                self._openers[request.set_name] = (event.stream, highest, request.incarnation)
            opener = self._openers.get(request.set_name)
            if opener is not None:
                request = replace(request, epoch=opener[1], incarnation=opener[2])
                event = Requested(opener[0], request)
        return [self._renamed(effect) for effect in super().handle(event, now)]

    def _renamed(self, effect: StoreEffect) -> StoreEffect:
        if isinstance(effect, Reply) and effect.stream in self._named:
            epoch, incarnation = self._named[effect.stream]
            return replace(effect, answer=replace(effect.answer, epoch=epoch, incarnation=incarnation))
        return effect


def _power(options: Options) -> None:
    options.faults = ("power loss", "power loss of all", "kill broker")
    options.disk_sync_us = 10_000
    options.fault_gap_us = 2_000_000


def _stores(options: Options) -> None:
    options.faults = ("pause store", "kill broker", "pause machine", "full restart")
    options.fault_gap_us = 1_000_000


MUTATIONS = (
    Mutation(
        "acknowledge before fsync",
        "DESIGN 5: an answer leaves after the sync that it reports",
        lambda: Parts(make_disk=lying_disk),
        _power,
    ),
    Mutation(
        "any writer may append",
        "R2, history 23: the last opener is the only writer",
        lambda: Parts(make_store_core=AnyWriterStore),
        _stores,
    ),
)
