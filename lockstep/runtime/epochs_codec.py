"""Epoch tables on the wire, with their reigns, which versions before them neither say nor read."""

from collections.abc import Iterable

from lockstep.core.epoch_table import REIGN_MAX, EpochStarts, Reigns
from lockstep.core.ids import Epoch, LogIndex
from lockstep.wire.v1 import store_pb2


def encode_epochs(epochs: EpochStarts, reigns: Reigns) -> list[store_pb2.EpochStart]:
    known = dict(reigns)
    return [
        store_pb2.EpochStart(epoch=epoch, first_index=first, reign=known.get(epoch, 0))
        for epoch, first in epochs
    ]


def decode_epochs(starts: Iterable[store_pb2.EpochStart]) -> EpochStarts:
    return tuple((Epoch(start.epoch), LogIndex(start.first_index)) for start in starts)


def decode_reigns(starts: Iterable[store_pb2.EpochStart]) -> Reigns:
    """A number that is no reign is none that is known."""
    return tuple((Epoch(start.epoch), start.reign) for start in starts if 0 < start.reign <= REIGN_MAX)
