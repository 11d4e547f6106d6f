"""T6, T8: whoever goes on with open transactions goes on behind the very log that its predecessor has handed on.

What is open and in hand is in no log. So a record that begins an epoch and keeps it may only follow the last word of the epoch
right before, at the end of the log that this word was said of.
"""

from collections.abc import Iterator

from lockstep.core.frames import decode_records
from lockstep.core.ids import Epoch
from lockstep.core.records import EpochBegins
from tests.simulation.checkers.record import Record


def check(record: Record) -> Iterator[str]:
    for set_name, frames in record.logs.items():
        for frame in frames:
            for indexed in decode_records(frame):
                begun = indexed.record
                if not isinstance(begun, EpochBegins) or not begun.is_handed_over:
                    continue
                end = record.handed_on.get((set_name, Epoch(begun.epoch - 1)))
                if end != indexed.index - 1:
                    said = "nobody" if end is None else f"the log up to {end}"
                    yield (
                        f"epoch {begun.epoch} of {set_name} on {begun.broker} goes on at {indexed.index} with what was open, "
                        f"and the epoch before it handed on {said}"
                    )
