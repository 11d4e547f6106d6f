"""Which offsets a micro-batch ends at, and the ranges that it consists of.

Law: every end is a consistent cut (DESIGN 7): as the brokers planned it, or in every set the lower of two cuts. That is one,
too: a transaction that is below both in one of its sets is below both in all of them.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lockstep.client.event_offsets import EventOffset
from lockstep.client.events import EventsClient
from lockstep.wire.v1 import events_pb2 as pb
from services.pipeline.options import MAX_EVENTS, SourceOptions

Cut = dict[str, EventOffset]
STILL_SECONDS = 1.0
"""Plans that stay where they are for so long have come to the end: what is committed behind it is no event, or a transaction in
doubt holds it back. What is being committed, and a quiet moment, take less."""


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


def plans_in_a_row(
    client: EventsClient, options: SourceOptions, known: Cut, until: Mapping[str, int] | None = None
) -> list[pb.PlanResponse]:
    """Plans, one behind the other, from `known` on: one alone may end long before the present, as brokers look only so far.

    `until`: the index in each set at which they are enough; None: what is committed when this is called. They go a bit beyond it,
    or end before it where nothing moves them for STILL_SECONDS.
    """

    def plan(start: Cut, max_events: int = 0, wait_seconds: float = 0.0) -> pb.PlanResponse:
        return client.plan(
            options.group,
            start,
            max_events=max_events,
            wait_seconds=wait_seconds,
            hold_seconds_max=options.hold_seconds,
        )

    plans = [plan(known)]
    while plans[-1].has_more:
        cut = cut_of(plans[-1])
        until = until if until is not None else client.committed(plans[0])
        if all(name in cut and cut[name].index >= index for name, index in until.items()):
            break
        further = plan(cut, wait_seconds=STILL_SECONDS)
        if cut_of(further) == cut:
            # Where transactions hold each other, brokers look further for a plan with a limit.
            further = plan(cut, max_events=MAX_EVENTS)
        if cut_of(further) == cut:
            break
        plans.append(further)
    return plans


def next_cut(start: Mapping[str, EventOffset], planned: Cut, way: Sequence[Cut] = ()) -> Cut:
    """The end of the next micro-batch; `start` itself when there is nothing for it.

    `way`: cuts up to the one that the query ends at, its target; empty: it goes on. A plan may have gone by the target in one set
    and not have moved in another, where the target still lies ahead: then the next cut of the way is the end, so that the query
    reaches it.
    """
    if not way:
        return planned
    cut = _bounded(start, planned, way[-1])
    for further in way:
        if cut != dict(start):
            break
        cut = _bounded(start, further, further)
    return cut


def _bounded(start: Mapping[str, EventOffset], planned: Cut, target: Mapping[str, EventOffset]) -> Cut:
    """The lower of plan and target in every set, but never before `start`. One that the target lacks waits for another query.
    One that the plan lacks stays where it is: whoever planned had not heard of it yet, and stopped before what is in it, too.
    """
    bounded = dict(start)
    for name in planned.keys() & target.keys():
        end = min(planned[name], target[name], key=_index)
        bounded[name] = max(end, start[name], key=_index) if name in start else end
    return bounded


def parts_of(
    begin: Mapping[str, EventOffset], end: Mapping[str, EventOffset], plans: Iterable[pb.PlanResponse]
) -> list[PlannedPart]:
    """One part for each set with something in it, long ones split where a plan says so, or ends.

    `plans`: those that led to `end`, in order, as far as they are still known.
    """
    splits: dict[str, list[EventOffset]] = {}
    brokers: dict[str, tuple[str, ...]] = {}
    for plan in plans:
        for planned in plan.ranges:
            found = splits.setdefault(planned.to.resource_set, [])
            found += map(EventOffset.of, (*planned.splits, planned.to))
            brokers[planned.to.resource_set] = tuple(planned.brokers)
    parts = []
    for name, last in sorted(end.items()):
        # A set of which nobody has said where it begins is read from its beginning: if that is gone, the brokers say so.
        first = begin.get(name, EventOffset(0, 0))
        between = [one for one in splits.get(name, ()) if first.index < one.index < last.index]
        for at, until in itertools.pairwise([first, *between, last]):
            if until.index > at.index:
                parts.append(PlannedPart(name, at, until, brokers.get(name, ())))
    return parts


def _index(offset: EventOffset) -> int:
    return offset.index
