"""Scans of one segment: what follows the log, whatever the snapshot covers."""

import pytest

from lockstep.core.epoch_table import EpochTable
from lockstep.core.ids import Epoch, LogIndex, TimeMs
from services.store.core.disk import Compute, ReadSegment
from services.store.core.journal import Journal
from services.store.core.journal_format import (
    SEGMENT_HEADER_BYTES,
    encode_group_header,
    encode_segment_header,
)
from services.store.core.segment import Segment
from services.store.core.segment_scan import SegmentScan
from tests.unit.services.store.store_rig import frame

SALT, SIZE = 7, 4096


def segment(number: int, *frames: bytes) -> bytes:
    """A file with one group."""
    body = b"".join(frames)
    head = encode_segment_header(SALT, number, SIZE)
    group = encode_group_header(SALT, number, SEGMENT_HEADER_BYTES, len(body), LogIndex(0))
    return (head + group + body).ljust(SIZE, b"\0")


def scanned(journal: Journal, file: bytes) -> str:
    """What is wrong with the file, as the next of the chain."""
    number = journal.segments[-1].number + 1 if journal.segments else 1
    journal.segments.append(Segment(number, SIZE))
    procedure = SegmentScan(journal, SALT, None, SIZE).run()
    try:
        steps = next(procedure)
        while True:
            (step,) = steps
            if isinstance(step, Compute):
                steps = procedure.send((step.function(),))
                continue
            assert isinstance(step, ReadSegment)
            steps = procedure.send((file[step.offset : step.offset + step.length],))
    except StopIteration as stop:
        return str(stop.value)


def journal_behind(base: int) -> Journal:
    """Of a set whose snapshot is at `base`."""
    return Journal(LogIndex(base), EpochTable([(Epoch(1), LogIndex(1))]), TimeMs(0), 1)


@pytest.mark.parametrize("stale", [1, 4])
def test_a_frame_that_the_snapshot_covers_does_not_begin_a_segment_behind_later_ones(stale: int) -> None:
    """As it would lie in a file that was a segment before, and is one again."""
    journal = journal_behind(4)
    assert scanned(journal, segment(1, frame(4), frame(5), frame(6))) == ""
    assert (
        scanned(journal, segment(2, frame(stale)))
        == f"segment 2 at {SEGMENT_HEADER_BYTES}: frame {stale}..{stale} behind 6"
    )
    assert journal.end == 6


def test_frames_that_the_snapshot_covers_go_on_from_segment_to_segment() -> None:
    journal = journal_behind(4)
    assert scanned(journal, segment(1, frame(1), frame(2))) == ""
    assert scanned(journal, segment(2, frame(4), frame(5))) == "", "covered ones need not be complete"
    assert scanned(journal, segment(3, frame(6))) == ""
    assert journal.end == 6
