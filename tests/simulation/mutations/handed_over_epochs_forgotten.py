"""A snapshot does not say since which epoch sets were handed over: a newcomer takes earlier epochs for failures (T6, T8)."""

from msgspec.structs import replace

from lockstep.core import item_values
from lockstep.core.effects import AnyEffect, TellBackup
from lockstep.core.items import META_KEY
from lockstep.core.replication import SnapshotChunk
from lockstep.core.store_protocol import StateItem
from tests.simulation.mutations import Mutation
from tests.simulation.parts import Parts
from tests.simulation.weak_replica import WeakReplica


def forgotten(item: StateItem) -> StateItem:
    if item.key != META_KEY:
        return item
    meta = item_values.decode_meta(item.value)
    return item._replace(value=item_values.encode(replace(meta, open_from=None)))


class Forgetful(WeakReplica):
    def said(self, effect: AnyEffect) -> AnyEffect:
        if isinstance(effect, TellBackup) and isinstance(effect.message, SnapshotChunk):
            items = tuple(forgotten(item) for item in effect.message.items)
            return replace(effect, message=replace(effect.message, items=items))
        return effect


MUTATION = Mutation(
    "T6, T8: what was open before an epoch that was handed over stays what it is, on newcomers too",
    lambda: Parts(make_replica=Forgetful),
    ("handed_over/to a newcomer in the end",),
)
