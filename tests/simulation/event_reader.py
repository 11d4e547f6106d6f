"""Reads a log's committed events as a broker does, with the same builders, from frames that are all at hand."""

from collections.abc import Iterator, Sequence

from lockstep.core.ids import LogIndex
from services.broker.core.events.builder import DecodedFrame, EventBuilder
from services.broker.core.events.record_effects import Names
from services.broker.core.events.transactions import CommittedTransaction


def read_events(
    frames: Sequence[DecodedFrame], after: LogIndex, names: Names, lowest: LogIndex
) -> Iterator[CommittedTransaction]:
    """What somebody gets who begins behind `after`. `lowest`: the log is there from this index on, with which a frame begins.

    Raises `ContentGone` in front of a frame that ends a transaction which is not all there.
    """
    builder = EventBuilder(names, after)
    for frame in frames:
        if frame.header.last <= after:
            continue
        needed = builder.earlier_needed(frame)
        if needed is not None:
            first = LogIndex(max(needed, lowest - 1))
            is_kept = first < builder.known_after
            builder.take_earlier(
                needed, _collected(frames, first, builder.known_after, names) if is_kept else None
            )
        yield from builder.feed(frame)


def _collected(
    frames: Sequence[DecodedFrame], first: LogIndex, until: LogIndex, names: Names
) -> EventBuilder:
    """A collector of what is open at `until`."""
    collector = EventBuilder(names, first, is_collecting=True)
    for frame in frames:
        if frame.header.last > first and frame.header.first <= until:
            collector.collect(frame, until)
    return collector
