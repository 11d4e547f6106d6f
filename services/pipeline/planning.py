"""Which offsets a micro-batch ends at, and the ranges that it consists of.

Law: every end is a consistent cut (DESIGN 7): as the brokers planned it, or in every set the lower of two cuts. That is one,
too: a transaction that is below both in one of its sets is below both in all of them.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.client.event_offsets import EventOffset
from lockstep.wire.v1 import events_pb2 as pb

Cut = dict[str, EventOffset]


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """What one task reads: the events of a resource set behind `begin`, up to `end`."""

    resource_set: str
    begin: EventOffset
    end: EventOffset
    brokers: tuple[str, ...] = ()
    """Whom to ask before others."""


def cut_of(plan: pb.PlanResponse) -> Cut:
    """Where a plan ends."""
    return {planned.to.resource_set: EventOffset.of(planned.to) for planned in plan.ranges}


def next_cut(start: Mapping[str, EventOffset], planned: Cut, target: Mapping[str, EventOffset] | None) -> Cut:
    """The end of the next micro-batch; `start` itself when there is nothing for it.

    `target`: what the query ends at. A plan may have gone by it in one set and not have moved in another, where the target still
    lies ahead: then the target is the end, so that the query reaches it.
    """
    cut = planned if target is None else _bounded(start, planned, target)
    if target is not None and cut == dict(start):
        cut = _bounded(start, dict(target), target)
    return cut


def _bounded(start: Mapping[str, EventOffset], planned: Cut, target: Mapping[str, EventOffset]) -> Cut:
    """The lower of plan and target in every set, but never before `start`. One that the target lacks waits for another query."""
    bounded = dict(start)
    for name, limit in target.items():
        end = min(planned.get(name, limit), limit, key=_index)
        bounded[name] = max(end, start[name], key=_index) if name in start else end
    return bounded


def parts_of(
    begin: Mapping[str, EventOffset], end: Mapping[str, EventOffset], plan: pb.PlanResponse | None
) -> list[PlannedPart]:
    """One part for each set with something in it, long ones split where the plan says so.

    `plan`: the one that gave `end`, if it is still known.
    """
    ranges = {planned.to.resource_set: planned for planned in plan.ranges} if plan is not None else {}
    parts = []
    for name, last in sorted(end.items()):
        # A set of which nobody has said where it begins is read from its beginning: if that is gone, the brokers say so.
        first = begin.get(name, EventOffset(0, 0))
        planned = ranges.get(name)
        splits = planned.splits if planned is not None else ()
        brokers = tuple(planned.brokers) if planned is not None else ()
        between = [EventOffset.of(one) for one in splits if first.index < one.index < last.index]
        for at, until in itertools.pairwise([first, *between, last]):
            if until.index > at.index:
                parts.append(PlannedPart(name, at, until, brokers))
    return parts


def _index(offset: EventOffset) -> int:
    return offset.index
