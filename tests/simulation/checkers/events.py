"""Committed events: exactly one for each durable effect of the committed log, and the same wherever a reader begins (DESIGN 7).
Where a store has only the end of the log, a transaction that is not all in it is told to nobody, and nothing else is refused.

What the log means is worked out by `LogModel`, what readers get by the broker's `EventBuilder`, with the names that a replica's
state keeps of queues that are gone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lockstep.core.branch_names import branch_name, is_ours
from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex, SetName, TransactionKey
from lockstep.core.set_state import SetState
from lockstep.core.xid import Xid
from services.broker.core.events.builder import ContentGone, DecodedFrame
from services.broker.core.events.state_names import StateNames
from services.broker.core.events.transactions import CommittedTransaction, EventKind
from tests.simulation.checkers.record import Record
from tests.simulation.distributed import DistributedTransaction
from tests.simulation.event_reader import read_events
from tests.simulation.log_model import FOREVER, LogModel

_BEGINNINGS = 3
"""Places in a log at which a second reader begins."""
_NEWCOMERS = 2
"""Snapshots in the middle of the longest transactions, whose first records are in nothing that was read behind them."""


class Seen(NamedTuple):
    """A message came to a place of a queue, or left it, at an index of the log."""

    at: int
    queue: int
    position: int
    is_enqueue: bool


def check(record: Record) -> Iterator[str]:
    for set_name, frames in record.logs.items():
        yield from _check_set(set_name, frames, record.models[set_name], record.distributed)


def _check_set(
    set_name: SetName,
    frames: Sequence[Frame],
    model: LogModel,
    distributed: Sequence[DistributedTransaction],
) -> Iterator[str]:
    durable = [DecodedFrame.of(frame.durable) for frame in frames]
    state = SetState(set_name)
    for frame in frames:
        state.apply_frame(Frame(frame.header, frame.durable, b""))
    names = StateNames(state)
    told, gone = _read(LogIndex(0), durable, names)
    if gone is not None:
        yield f"events of {set_name} end although all of the log is there: {gone}"
        return
    found = [seen for done in told for seen in _seen(done)]
    expected = set(expected_events(model))
    if len(set(found)) < len(found):
        twice = sorted({seen for seen in found if found.count(seen) > 1})
        yield f"events of {set_name} say twice: {twice[:3]}"
    for missing in sorted(expected - set(found)):
        yield f"events of {set_name} do not say {missing}"
    for wrong in sorted(set(found) - expected):
        yield f"events of {set_name} say {wrong}, which did not happen"
    yield from _check_sets_of(set_name, told, distributed)
    for place in range(1, _BEGINNINGS + 1):
        # In the middle of a frame, too.
        after = LogIndex(model.end * place // (_BEGINNINGS + 1))
        again, _ = _read(after, durable, names)
        yield from _compared(set_name, told, after, again)
    spans = _spans(durable)
    for span in sorted(spans.values(), key=len)[-_NEWCOMERS:]:
        middle = (span.start + span.stop) // 2
        snapshot = next(frame.header.last for frame in durable if frame.header.last >= middle)
        yield from _check_newcomer(set_name, snapshot, durable, told, spans, names)


def _check_sets_of(
    set_name: SetName, told: Sequence[CommittedTransaction], distributed: Sequence[DistributedTransaction]
) -> Iterator[str]:
    """Whoever plans learns from each branch that a coordinator has committed where to look for the others. A branch that a script
    has made by hand, or another transaction manager, has no others.
    """
    sets = {mine.global_id: sorted(mine.sets) for mine in distributed}
    for done in told:
        if not done.is_joint or done.is_heuristic:
            continue
        xid = Xid.decode(done.xid)
        wanted = sets.get(branch_name(xid).global_id) if is_ours(xid) else None
        if wanted is not None and list(done.resource_sets) != wanted:
            yield f"events of {set_name} at {done.index} name the sets {done.resource_sets}, not {wanted}"


def _compared(
    set_name: SetName,
    told: Sequence[CommittedTransaction],
    after: LogIndex,
    again: Sequence[CommittedTransaction],
    before: LogIndex = FOREVER,
) -> Iterator[str]:
    """Whether who reads behind `after` was told the same, up to `before`."""
    wanted = [done for done in told if after < done.index < before]
    if again != wanted:
        differing = next((one for one, other in zip(again, wanted, strict=False) if one != other), "the end")
        yield f"who reads {set_name} behind {after} gets other events, from {differing} on"


def _check_newcomer(
    set_name: SetName,
    snapshot: LogIndex,
    durable: Sequence[DecodedFrame],
    told: Sequence[CommittedTransaction],
    spans: Mapping[TransactionKey, range],
    names: StateNames,
) -> Iterator[str]:
    """A broker whose store came to the set with a snapshot has the frames behind it. Who is refused goes on behind that."""
    frames = [frame for frame in durable if frame.header.first > snapshot]
    starts = [snapshot, *(frame.header.last for frame in frames[:1])]
    while starts:
        after = starts.pop()
        again, gone = _read(after, frames, names, LogIndex(snapshot + 1))
        before = FOREVER
        if gone is not None:
            before = next(frame.header.first for frame in frames if frame.header.last >= gone.end)
            starts.append(gone.end)
            if spans[gone.key].start > snapshot:
                yield f"who reads {set_name} from {snapshot + 1} on is refused {gone.key}, of which nothing is gone"
        yield from _compared(set_name, told, after, again, before)


def _spans(frames: Sequence[DecodedFrame]) -> dict[TransactionKey, range]:
    """From each transaction's first durable record to its last."""
    found: dict[TransactionKey, range] = {}
    for frame in frames:
        for indexed in frame.records:
            key: TransactionKey | None = getattr(indexed.record, "transaction", None)
            if key is not None:
                first = found[key].start if key in found else indexed.index
                found[key] = range(first, indexed.index)
    return found


def _read(
    after: LogIndex, frames: Sequence[DecodedFrame], names: StateNames, lowest: LogIndex = LogIndex(0)
) -> tuple[list[CommittedTransaction], ContentGone | None]:
    """What somebody gets who begins behind `after`, and what ends it. `lowest`: the frames begin with it."""
    found: list[CommittedTransaction] = []
    try:
        for done in read_events(frames, after, names, lowest):
            found.append(done)
    except ContentGone as gone:
        return found, gone
    return found, None


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
