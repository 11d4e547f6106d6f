"""Committed events: exactly one for each durable effect of the committed log, and the same wherever a reader begins (DESIGN 7).

What the log means is worked out by `LogModel`, what readers get by the broker's `EventBuilder`, with the names that a replica's
state keeps of queues that are gone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex, SetName
from lockstep.core.set_state import SetState
from services.broker.core.events.builder import DecodedFrame, EventBuilder
from services.broker.core.events.state_names import StateNames
from services.broker.core.events.transactions import CommittedTransaction, EventKind
from tests.simulation.checkers.record import Record
from tests.simulation.log_model import FOREVER, LogModel

_BEGINNINGS = 3
"""Places in a log at which a second reader begins."""


class Seen(NamedTuple):
    """A message came to a place of a queue, or left it, at an index of the log."""

    at: int
    queue: int
    position: int
    is_enqueue: bool


def check(record: Record) -> Iterator[str]:
    for set_name, frames in record.logs.items():
        yield from _check_set(set_name, frames, record.models[set_name])


def _check_set(set_name: SetName, frames: Sequence[Frame], model: LogModel) -> Iterator[str]:
    durable = [DecodedFrame.of(frame.durable) for frame in frames]
    state = SetState(set_name)
    for frame in frames:
        state.apply_frame(Frame(frame.header, frame.durable, b""))
    names = StateNames(state)
    builder = EventBuilder(names, LogIndex(0))
    told = [done for frame in durable for done in builder.feed(frame)]
    found = [seen for done in told for seen in _seen(done)]
    expected = set(expected_events(model))
    if len(set(found)) < len(found):
        twice = sorted({seen for seen in found if found.count(seen) > 1})
        yield f"events of {set_name} say twice: {twice[:3]}"
    for missing in sorted(expected - set(found)):
        yield f"events of {set_name} do not say {missing}"
    for wrong in sorted(set(found) - expected):
        yield f"events of {set_name} say {wrong}, which did not happen"
    for place in range(1, _BEGINNINGS + 1):
        # In the middle of a frame, too.
        after = LogIndex(model.end * place // (_BEGINNINGS + 1))
        again = list(_read_from(after, durable, names))
        wanted = [done for done in told if done.index > after]
        if again != wanted:
            differing = next(
                (one for one, other in zip(again, wanted, strict=False) if one != other), "the end"
            )
            yield f"who reads {set_name} behind {after} gets other events, from {differing} on"


def _read_from(
    after: LogIndex, frames: Sequence[DecodedFrame], names: StateNames
) -> Iterator[CommittedTransaction]:
    builder = EventBuilder(names, after)
    for frame in frames:
        if frame.header.last <= after:
            continue
        needed = builder.earlier_needed(frame)
        if needed is not None:
            earlier = [
                other
                for other in frames
                if other.header.last > needed and other.header.first <= builder.known_after
            ]
            builder.show_earlier(needed, earlier)
        yield from builder.feed(frame)


def _seen(done: CommittedTransaction) -> Iterator[Seen]:
    for effects in done.effects:
        if effects.kind in (EventKind.DECLARE, EventKind.DELETE, EventKind.ROLLBACK):
            continue
        for position in effects.positions:
            yield Seen(done.index, effects.resource, position, effects.kind is EventKind.ENQUEUE)


def expected_events(model: LogModel) -> Iterator[Seen]:
    """Of durable messages in durable queues."""
    for queue in model.queues.values():
        if not queue.is_durable:
            continue
        for copy in queue.copies.values():
            if not copy.is_durable:
                continue
            yield Seen(copy.visible, queue.queue, copy.position, True)
            if copy.removed < FOREVER and copy.reason > 0:
                yield Seen(copy.removed, queue.queue, copy.position, False)
