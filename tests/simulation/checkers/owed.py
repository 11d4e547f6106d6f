"""What is owed to readers of committed events is there: a store that calls an index committed can give every frame up to it, from
the first that is owed to anybody on (DESIGN 5, history 19).

Not what came before a snapshot that was installed, nor what a limit or damage took away: that, the store's own status says.
"""

from collections.abc import Iterator

from lockstep.core.frames import Frame, decode_header, decode_records
from lockstep.core.ids import LogIndex, SetName, TransactionKey
from lockstep.core.outcomes import Outcome
from lockstep.core.set_state import SetState
from lockstep.core.state_listener import StateListener
from tests.simulation.checkers.record import JournalReading, Record


def check(record: Record) -> Iterator[str]:
    for set_name, frames in record.logs.items():
        readings = [reading for reading in record.readings if reading.set_name == set_name]
        if readings:
            owed = OwedAfter(set_name, frames)
            for reading in readings:
                yield from _check(reading, owed)


def _check(reading: JournalReading, owed: "OwedAfter") -> Iterator[str]:
    if reading.commit_index > owed.end:
        return  # nobody knows yet what was committed there, nor what is owed
    index = max(owed.at(reading.commit_index), reading.floor)
    where = f"the store of {reading.broker} has committed {reading.commit_index} in {reading.set_name}"
    for durable in reading.frames:
        header = decode_header(durable)
        if header.first > index + 1 and index < reading.commit_index:
            yield f"{where}, owes what is behind {index}, and its frame behind {index} begins at {header.first}"
            return
        index = max(index, header.last)
    if index < reading.commit_index:
        yield f"{where}, owes it, and can be read up to {index} {reading.refusal}"


class OwedAfter(StateListener):
    """Up to where nothing is owed to anybody, by how much is committed; what was given up once is never owed again. Of a
    transaction that ends behind that, all that is durable is owed (history 19).
    """

    def __init__(self, set_name: SetName, frames: list[Frame]) -> None:
        self._highest: list[tuple[LogIndex, LogIndex]] = [(LogIndex(0), LogIndex(0))]
        self._firsts: dict[TransactionKey, LogIndex] = {}
        """First durable record of each transaction."""
        self._ends: list[tuple[LogIndex, LogIndex]] = []
        """(record that ended a transaction, its first durable record)."""
        state, highest = SetState(set_name, self), LogIndex(0)
        for frame in frames:
            durable = Frame(frame.header, frame.durable, b"")
            for indexed in decode_records(durable):
                key = getattr(indexed.record, "transaction", None)
                if key is not None:
                    self._firsts.setdefault(key, indexed.index)
            state.apply_frame(durable)
            highest = max(highest, state.owed_after())
            self._highest.append((frame.header.last, highest))

    def transaction_ended(self, key: TransactionKey, outcome: Outcome) -> None:
        if outcome.index and key in self._firsts:
            self._ends.append((outcome.index, self._firsts[key]))

    @property
    def end(self) -> LogIndex:
        return self._highest[-1][0]

    def at(self, commit_index: LogIndex) -> LogIndex:
        owed_after = max(highest for last, highest in self._highest if last <= commit_index)
        needed = (LogIndex(first - 1) for end, first in self._ends if owed_after < end <= commit_index)
        return min([owed_after, *needed])
