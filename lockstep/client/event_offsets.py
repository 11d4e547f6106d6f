"""Places in the committed logs of resource sets, as readers of events keep them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lockstep.wire.v1 import events_pb2 as pb


@dataclass(frozen=True, slots=True)
class EventOffset:
    """Everything at or below `index` of one set's log; `epoch` is that of the record there, 0 for index 0 (DESIGN 7)."""

    index: int
    epoch: int
    reign: int = field(default=0, compare=False)
    """Which primary wrote that record, should the epoch have begun twice; 0: nobody has said."""

    @classmethod
    def of(cls, offset: pb.EventOffset) -> "EventOffset":
        """As it came over the wire."""
        return cls(offset.index, offset.epoch, offset.reign)

    def in_set(self, resource_set: str) -> pb.EventOffset:
        """As it goes over the wire."""
        return pb.EventOffset(resource_set=resource_set, index=self.index, epoch=self.epoch, reign=self.reign)


Offsets = Mapping[str, EventOffset]
"""One for each resource set, by its name."""


def offsets_of(offsets: Iterable[pb.EventOffset]) -> dict[str, EventOffset]:
    """In order of the sets' names."""
    found = {offset.resource_set: EventOffset.of(offset) for offset in offsets}
    return dict(sorted(found.items()))


def as_messages(offsets: Offsets) -> list[pb.EventOffset]:
    """In order of the sets' names."""
    return [offset.in_set(name) for name, offset in sorted(offsets.items())]
