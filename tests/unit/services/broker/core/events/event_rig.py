"""What readers of a log get, wherever they begin, for tests."""

from collections.abc import Iterator, Sequence

from lockstep.core.frames import Frame
from lockstep.core.ids import LogIndex, QueuePosition, place
from lockstep.core.set_state import SetState
from services.broker.core.events.builder import DecodedFrame
from services.broker.core.events.state_names import StateNames
from services.broker.core.events.transactions import CommittedTransaction, EventKind
from tests.simulation.event_reader import read_events
from tests.unit.lockstep.core.history import Log

KINDS_OF_MESSAGES = (EventKind.ENQUEUE, EventKind.DEQUEUE, EventKind.EXPIRE, EventKind.DEAD_LETTER)


def told(
    log: Log, after: int = 0, state: SetState | None = None, lowest: int = 1
) -> list[CommittedTransaction]:
    """All that a reader gets who begins behind `after`. `state`: whose names it gets; by default the log's own."""
    log.flush()
    return list(read(log.frames, after, StateNames(state or log.state), lowest))


def read(
    frames: Sequence[Frame], after: int, names: StateNames, lowest: int = 1
) -> Iterator[CommittedTransaction]:
    """As a broker reads its journal, which has the frames from the one with `lowest` on."""
    decoded = [DecodedFrame.of(frame.durable) for frame in frames if frame.header.first >= lowest]
    yield from read_events(decoded, LogIndex(after), names, LogIndex(lowest))


def words(done: CommittedTransaction) -> list[str]:
    """Its events: 'enqueue q 5.0'."""
    return [
        f"{effects.kind.name.lower()} {effects.name} {position >> 24}.{position & 0xFFFFFF}"
        if effects.kind in KINDS_OF_MESSAGES
        else f"{effects.kind.name.lower()} {effects.name}".strip()
        for effects in done.effects
        for position in effects.positions
    ]


def all_words(transactions: Sequence[CommittedTransaction]) -> list[str]:
    return [word for done in transactions for word in words(done)]


def position(index: int, ordinal: int = 0) -> QueuePosition:
    return QueuePosition(place(LogIndex(index), ordinal))
